"""Whom an instance waits for, and whose reader it may end."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.config import Pipeline
from penstock.leases import Lease
from penstock.leases.memory import MemoryStore
from penstock.model.errors import LeaseLost
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.reading.positions import Positions
from penstock.service.ownership import Ownership, positions_of
from penstock.service.standby import Standby
from tests.servers import Database
from tests.service.pipelines import pipeline_of
from tests.waiting import until

pytestmark = pytest.mark.live


class Clock:
    """Stands still; when it runs, a second passes from look to look."""

    now = 0.0
    runs = False

    def __call__(self) -> float:
        self.now += self.runs
        return self.now


def pipeline_on(folder: Path, *databases: Database) -> Pipeline:
    backends = (
        {"name": f"b{number}", "type": "postgres", "connection": database.url,
         "slot": f"s{number}_{database.name}", "publication": "p"}
        for number, database in enumerate(databases)
    )  # fmt: skip
    return pipeline_of(*backends, sink={"type": "memory"}, folder=folder)


def owned_there(reader: str) -> MemoryStore:
    """A store with the lease of an instance on another machine."""
    store, found = MemoryStore(), {"machine": "another", "pid": 1, "readers": {"b0": reader}}
    store.put(Lease(name="owner:shop", owner="there", properties=found))
    return store


class Waiting:
    """A standby that waits in a thread."""

    def __init__(
        self, pipeline: Pipeline, store: MemoryStore | None = None, clock: Any = time.monotonic
    ) -> None:
        self.stop = threading.Event()
        self._own = Ownership(store or MemoryStore(), "shop", instance="us", clock=clock)
        self.standby = Standby(pipeline, self._own, self.stop)
        self.ours: list[bool] = []
        self._thread = threading.Thread(
            target=lambda: self.ours.append(self.standby.wait(lambda: None))
        )

    def __enter__(self) -> "Waiting":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(60)
        self._own.release()

    def waits_for(self) -> str:
        until(lambda: self.standby.reason or self.ours)
        assert not self.ours, "it does not wait"
        return str(self.standby.reason)

    def owns(self) -> bool:
        return until(lambda: self.ours)[0]


@pytest.fixture
def reader(database: Database) -> Iterator[int]:
    """Somebody reads the slot of the first backend; which process of the server."""
    slot = f"s0_{database.name}"
    database.execute("CREATE PUBLICATION p")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    url = database.url + "?replication=database"
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        command = (
            f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names 'p')"
        )
        connection.pgconn.send_query(command.encode())
        until(lambda: held(database, slot))
        yield connection.info.backend_pid


def held(database: Database, slot: str) -> bool:
    query = "SELECT active_pid IS NOT NULL FROM pg_replication_slots WHERE slot_name = %s"
    return bool(database.execute(query, [slot])[0][0])


def test_who_has_nobody_before_it_owns_at_once(database: Database, tmp_path: Path) -> None:
    with Waiting(pipeline_on(tmp_path, database)) as waiting:
        assert waiting.owns()
        assert not waiting.standby.waited


def test_a_slot_that_somebody_reads_is_waited_for(
    database: Database, reader: int, tmp_path: Path
) -> None:
    with Waiting(pipeline_on(tmp_path, database)) as waiting:
        assert f"in use by the process {reader} of the server" in waiting.waits_for()
        time.sleep(1.2)
        assert held(database, f"s0_{database.name}"), "who is not ours is not ended"
        database.execute("SELECT pg_terminate_backend(%s)", [reader])
        assert waiting.owns()
        assert waiting.standby.reason is None


def test_a_backend_whose_slot_is_taken_does_not_hold_up_the_others(
    database: Database, reader: int, tmp_path: Path
) -> None:
    with Waiting(pipeline_on(tmp_path, database, database)) as waiting:
        assert waiting.owns()


def test_the_reader_of_an_instance_that_lost_its_lease_is_ended(
    database: Database, reader: int, tmp_path: Path
) -> None:
    store, clock = owned_there(str(reader)), Clock()
    with Waiting(pipeline_on(tmp_path, database), store, clock) as waiting:
        assert f"there, as process {reader} of the server" in waiting.waits_for()
        assert held(database, f"s0_{database.name}")
        clock.runs = True
        assert waiting.owns()


def test_the_positions_are_claimed_before_a_reader_is_ended(
    database: Database, reader: int, tmp_path: Path
) -> None:
    """A planner that lost its connection, while its service is frozen, would connect again."""
    store, clock = owned_there("1"), Clock()
    pipeline = pipeline_on(tmp_path, database)
    planner = positions_of(pipeline, "b0", "there")
    planner.save({PartitionId("p0"): Bookmark(Place("0A", 0))}, force=True)
    planner.verify()
    with Waiting(pipeline, store, clock) as waiting:
        waiting.waits_for()
        planner.verify()
        clock.runs = True
        until(lambda: lost(planner))
        assert held(database, f"s0_{database.name}")


def lost(planner: Positions) -> bool:
    try:
        planner.verify()
    except LeaseLost:
        return True
    return False


def test_the_reader_of_somebody_else_is_not_ended_when_a_lease_expires(
    database: Database, reader: int, tmp_path: Path
) -> None:
    """An instance with another store took over from the one whose lease this is."""
    store, clock = owned_there("1"), Clock()
    with Waiting(pipeline_on(tmp_path, database), store, clock) as waiting:
        waiting.waits_for()
        clock.runs = True
        time.sleep(2.5)
        until(lambda: "in use by the process" in waiting.waits_for())
        assert held(database, f"s0_{database.name}")


def test_a_standby_stops_when_it_is_told_to(
    database: Database, reader: int, tmp_path: Path
) -> None:
    with Waiting(pipeline_on(tmp_path, database)) as waiting:
        waiting.waits_for()
        waiting.stop.set()
        assert waiting.owns() is False
