"""Whom an instance waits for, and whose reader it may end. For instances that have positions of
their own, the sink has one lease for all of them.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import structlog

from penstock.config import Pipeline
from penstock.leases import Lease, LeaseStore
from penstock.leases.memory import MemoryStore
from penstock.model.errors import LeaseLost, Unavailable
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.reading.positions import Positions
from penstock.service.ownership import Owner, Ownership, positions_of
from penstock.service.standby import Standby, WriterLease
from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.owners import OwnersStore
from tests.servers import Database, Nats
from tests.service.pipelines import pipeline_of
from tests.waiting import until


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


class MayBeAway(MemoryStore):
    """A store that cannot be reached while it is away."""

    away = False

    def get(self, name: str) -> Lease | None:
        if self.away:
            raise Unavailable("the store is away")
        return super().get(name)


def test_without_its_store_an_instance_is_no_standby_that_could_take_over(tmp_path: Path) -> None:
    pipeline = pipeline_of({"name": "b0", "type": "memory"}, sink={"type": "memory"},
                           folder=tmp_path)  # fmt: skip
    store = MayBeAway()
    store.put(Lease(name="owner:shop", owner="there"))
    with Waiting(pipeline, store, Clock()) as waiting:
        assert "another instance owns the pipeline: there" in waiting.waits_for()
        store.away = True
        until(lambda: waiting.standby.error)
        assert (waiting.standby.reason, waiting.standby.error) == (
            None,
            "the store is away [unavailable]",
        )
        store.away = False
        assert "there" in waiting.waits_for()
        assert waiting.standby.error == ""


def test_a_standby_stops_when_it_is_told_to(
    database: Database, reader: int, tmp_path: Path
) -> None:
    with Waiting(pipeline_on(tmp_path, database)) as waiting:
        waiting.waits_for()
        waiting.stop.set()
        assert waiting.owns() is False


NARROW = [
    "t.>", "penstock.>", "$JS.API.INFO", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.CREATE.*",
    "$JS.API.STREAM.MSG.GET.*",
]  # fmt: skip


def written_to(
    nats: Nats, stream: str, *, type: str = "memory", name: str = "shop", **sink: str
) -> Pipeline:
    backend = {"name": "b", "type": type}
    if type == "postgres":
        backend |= {"connection": "postgresql://h/d", "slot": "s", "publication": "p"}
    target = {"url": nats.url, "stream": stream, "subject": f"{stream}.{{collection}}"}
    return pipeline_of(backend, sink={"type": "jetstream", **target, **sink}, name=name)


MakeWriter = Callable[..., WriterLease]


@pytest.fixture
def writer(nats: Nats, stream: str) -> Iterator[MakeWriter]:
    """`writer(instance)`: an instance of the pipeline `shop`."""
    with ExitStack() as stack:

        def make(instance: str, **more: Any) -> WriterLease:
            made = WriterLease(written_to(nats, stream, **more), instance)
            stack.callback(made.release)
            return made

        yield make


@pytest.fixture
def rows(nats: Nats, stream: str) -> OwnersStore:
    return OwnersStore(JetStreamSettings(url=nats.url, stream=stream))


def test_the_reason_to_wait_names_the_other_and_what_to_set(writer: MakeWriter) -> None:
    first, second = writer("one"), writer("two")
    assert first.attempt(None) is None
    assert first.attempt(None) is None, "it has it already"
    reason = second.attempt(None)
    assert reason is not None
    assert "positions: one;" in reason
    assert "set positions to a store that all instances reach" in reason
    first.release()
    assert second.attempt(None) is None
    assert not first.lost
    assert not second.lost


def test_other_pipelines_write_to_the_stream_as_they_like(writer: MakeWriter) -> None:
    assert writer("one").attempt(None) is None
    assert writer("two", name="store").attempt(None) is None


def test_one_that_does_not_renew_loses_it(writer: MakeWriter, rows: OwnersStore) -> None:
    """A process that is frozen, or on a machine that is gone."""
    rows.put(Lease(name="owner:shop", owner="gone", properties={"readers": {}}))
    second, began = writer("two"), time.monotonic()
    assert second.attempt(None) is not None
    until(lambda: second.attempt(None) is None)
    assert time.monotonic() - began > 3


def take_over(store: LeaseStore) -> None:
    """The pipeline's lease is another instance's, though its owner renews it meanwhile."""

    def taken() -> bool:
        row = store.get("owner:shop")
        assert row is not None
        return isinstance(store.put_all([replace(row, owner="two")])[0], Lease)

    until(taken)


def test_one_that_was_taken_over_has_lost_it(writer: MakeWriter, rows: OwnersStore) -> None:
    first = writer("one")
    assert first.attempt(None) is None
    take_over(rows)
    until(lambda: first.lost)


def test_who_took_over_the_pipeline_has_it_at_once(writer: MakeWriter, rows: OwnersStore) -> None:
    """With shared positions the pipeline's lease has expired already: not twice four seconds."""
    rows.put(Lease(name="owner:shop", owner="gone", properties={"readers": {}}))
    second = writer("two")
    assert second.attempt(Owner(instance="another", readers={})) is not None
    assert second.attempt(Owner(instance="gone", readers={})) is None


def test_a_source_with_a_single_reader_needs_the_lease_too(writer: MakeWriter) -> None:
    """Another pipeline of this name may read another source."""
    assert writer("one", type="postgres").attempt(None) is None
    reason = writer("two", type="postgres").attempt(None)
    assert reason is not None
    assert "or another name than shop if this is another pipeline" in reason


def test_without_the_permission_it_is_free_and_warns_once(
    own_nats: Callable[..., Nats], stream: str
) -> None:
    user = {"user": "u", "password": "p", "permissions": {"publish": [f"{stream}.>"]}}
    server = own_nats({"authorization": {"users": [user]}})
    lease = WriterLease(written_to(server, stream, user="u", password="p"), "one")
    with structlog.testing.capture_logs() as logs:
        assert [lease.attempt(None) for _ in range(3)] == [None] * 3
    assert [each["log_level"] for each in logs] == ["warning"]
    assert "cannot be found" in logs[0]["event"]
    assert not lease.lost
    lease.release()


def test_with_the_permissions_of_the_page_it_is_kept(
    own_nats: Callable[..., Nats], stream: str
) -> None:
    """No consumer is made, and no bucket."""
    narrow = [*NARROW, f"{stream}.>"]
    users = [{"user": "u", "password": "p", "permissions": {"publish": narrow}}]
    server = own_nats({"authorization": {"users": users}})
    settings = {"url": server.url, "stream": stream, "user": "u", "password": "p"}
    rows = OwnersStore(JetStreamSettings.model_validate(settings))
    put = [rows.put(Lease(name=name, owner="me")) for name in ("owner:b", "owner:a", "x")]
    assert rows.get("owner:a") == put[1]
    assert rows.list("owner:") == [put[1], put[0]]
    rows.delete(put[0])
    assert rows.list("owner:") == [put[1]]
    rows.close()


def test_it_has_as_many_copies_as_the_stream_is_asked_to(nats: Nats, stream: str) -> None:
    settings = JetStreamSettings(url=nats.url, stream=stream, replicas=3)
    rows = OwnersStore(settings)
    with pytest.raises(Exception, match="replicas"):  # one server cannot have three
        rows.put(Lease(name="a"))
    rows.close()


def test_one_that_loses_the_pipeline_gives_the_sink_back(
    nats: Nats, stream: str, writer: MakeWriter
) -> None:
    """Else the owner of the pipeline would wait for it, and it for the owner."""
    store, stop = MemoryStore(), threading.Event()
    ownership = Ownership(store, "shop", instance="one")
    standby = Standby(written_to(nats, stream), ownership, stop)
    assert standby.wait(lambda: None)
    assert standby.lost == ""
    second = writer("two")
    assert second.attempt(None) is not None

    take_over(store)
    until(lambda: "shop" in standby.lost)
    thread = threading.Thread(target=lambda: standby.wait(lambda: None))
    thread.start()
    try:
        until(lambda: second.attempt(None) is None)
    finally:
        stop.set()
        thread.join(60)
        standby.release()
        ownership.release()
