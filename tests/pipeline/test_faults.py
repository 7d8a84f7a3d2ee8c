"""Real processes die; no change is lost, none is repeated, none gets a new id."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.pipeline.running import Run, count, document, eventually, messages, running, send
from tests.pipeline.truth import Truth, assert_same
from tests.servers import Database, Nats, Postgres

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.fault]

KILLS = int(os.environ.get("PENSTOCK_TEST_KILLS", "6"))
SEED = int(os.environ.get("PENSTOCK_TEST_SEED", "20261121"))

TABLE = """
CREATE TABLE items (id bigserial PRIMARY KEY, who int, note text);
CREATE PUBLICATION pub FOR TABLE items
"""

RECENT = "id > currval('items_id_seq') - 5"


class Load:
    """Writes transactions of several rows, inserts, updates and deletes, until stopped."""

    def __init__(self, database: Database) -> None:
        self.changes = 0
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with psycopg.connect(self._database.url, autocommit=True) as connection:
            while not self._stop.wait(0.05):
                with connection.transaction():
                    connection.execute(
                        "INSERT INTO items (who, note) SELECT n, repeat('x', 50 * n)"
                        " FROM generate_series(1, 20) n"
                    )
                    done = connection.execute(f"UPDATE items SET who = who + 1 WHERE {RECENT}")
                    gone = connection.execute(
                        "DELETE FROM items WHERE id = currval('items_id_seq')"
                    )
                self.changes += 20 + done.rowcount + gone.rowcount

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.changes


@contextmanager
def load(database: Database) -> Iterator[Load]:
    writer = Load(database)
    writer._thread.start()
    try:
        yield writer
    finally:
        writer.stop()


def prepared(database: Database) -> Truth:
    database.execute(TABLE)
    slot = f"slot_{database.name}"
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    return Truth(database)


def assert_exact(truth: Truth, nats: Nats, stream: str, changes: int) -> None:
    """The stream holds exactly the changes, in the source's order, under their ids."""
    facts = truth.read()
    assert len(facts) == changes
    assert_same(facts, [message.body for message in messages(nats, stream)])


def stored_all(nats: Nats, stream: str, changes: int) -> bool:
    return count(nats, stream) >= changes


@pytest.mark.thorough  # tests/chaos kills it, too, and other sources' tests do
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_kill_9_of_the_pipeline_at_random_moments(
    database: Database, nats: Nats, stream: str, tmp_path: Path, seed: int
) -> None:
    truth = prepared(database)
    chance = random.Random(seed)
    pipeline = document(tmp_path, database, nats, stream)
    with load(database) as writer:
        for _ in range(KILLS // 2):
            with running(tmp_path, pipeline) as run:
                # Some die before the first batch, most while batches flow.
                if chance.random() < 0.6:
                    eventually(lambda run=run: run.status()["last_batch"], run=run)
                    time.sleep(chance.uniform(0, 1.5))
                else:
                    time.sleep(chance.uniform(0, 8))
                run.kill()
        changes = writer.stop()
    with running(tmp_path, pipeline) as run:
        eventually(lambda: stored_all(nats, stream, changes), seconds=180, run=run)
    assert_exact(truth, nats, stream, changes)


def processes(run: Run, what: str) -> list[psutil.Process]:
    """Those with this name (forks have one), and those whose command ends so."""
    found = []
    for process in psutil.Process(run.process.pid).children(recursive=True):
        with suppress(psutil.Error):  # some end while we look
            if what == process.name() or process.cmdline()[-1].endswith(what):
                found.append(process)
    return found


PLANNER, WORKERS = "source_runner", "worker"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("spark", "victims"),
    [
        # Chaos kills the same parts.
        pytest.param({}, [PLANNER, WORKERS, "java"], marks=pytest.mark.thorough),
        ({"trigger": "100ms"}, [PLANNER, WORKERS]),
        pytest.param({"fork_server": False}, [PLANNER, WORKERS], marks=pytest.mark.thorough),
    ],
    ids=["auto", "an interval", "without the fork server"],
)
def test_kill_9_of_the_parts_of_a_pipeline(
    database: Database,
    nats: Nats,
    stream: str,
    tmp_path: Path,
    spark: dict[str, Any],
    victims: list[str],
) -> None:
    truth = prepared(database)
    pipeline = document(tmp_path, database, nats, stream, spark=spark)
    with load(database) as writer, running(tmp_path, pipeline) as run:
        eventually(lambda: run.status()["last_batch"], run=run)
        for victim in victims:
            # There may be none for a moment: the last victim's query is being started anew.
            found = eventually(lambda v=victim: processes(run, v), run=run)
            send(found, signal.SIGKILL)
            before = count(nats, stream)
            eventually(lambda n=before: count(nats, stream) > n + 200, run=run)
        changes = writer.stop()
        eventually(lambda: stored_all(nats, stream, changes), run=run)
        assert run.stop() == 0
    assert_exact(truth, nats, stream, changes)


def stands_still(run: Run) -> bool:
    """Whether the slot is where it was two seconds ago."""
    before = run.status()["backends"][0]["confirmed"]
    time.sleep(2)
    return bool(run.status()["backends"][0]["confirmed"] == before)


def confirmed(database: Database) -> str:
    """How far our slot is acknowledged, as the server says."""
    rows = database.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
        [f"slot_{database.name}"],
    )
    return str(rows[0][0])


@pytest.mark.thorough  # outages, a frozen server and chaos are tests of their own
@pytest.mark.timeout(600)
def test_servers_go_and_come_back(stream: str, tmp_path: Path) -> None:
    """NATS in order, killed, and frozen; PostgreSQL at once."""
    outages = []
    with Postgres() as postgres, postgres.database() as database, Nats() as nats:
        truth = prepared(database)
        with running(tmp_path, document(tmp_path, database, nats, stream)) as run:
            with load(database) as writer:
                eventually(lambda: run.status()["last_batch"], run=run)
                for how in ("stop", "kill", "freeze"):
                    outages.append(outage_of_nats(how, run, database, nats, stream))
                changes = writer.stop()
            eventually(lambda: stored_all(nats, stream, changes), run=run)
            postgres.stop("immediate")
            eventually(lambda: run.status()["backends"][0]["connected"] is False, run=run)
            assert run.status()["health"] in ("degraded", "unhealthy")
            postgres.start()
            database.execute("INSERT INTO items (who) SELECT generate_series(1, 500)")
            eventually(lambda: stored_all(nats, stream, changes + 500), run=run)
            eventually(lambda: run.status()["health"] == "ok", run=run)
            assert run.stop() == 0
        stored = messages(nats, stream)
        for acknowledged, back in outages:
            later = min(m.id.split(":")[1] for m in stored if m.stored_at > back)
            passed = "SELECT %s::pg_lsn > %s::pg_lsn"
            assert database.execute(passed, (acknowledged, later)) == [(False,)]
        assert_exact(truth, nats, stream, changes + 500)


def outage_of_nats(
    how: str, run: Run, database: Database, nats: Nats, stream: str
) -> tuple[str, datetime]:
    """Until it is back and stores: how far we acknowledged meanwhile, and when it ended."""
    pid, before = nats.pid, count(nats, stream)
    if how == "freeze":
        os.kill(pid, signal.SIGSTOP)
    else:
        getattr(nats, how)()
    eventually(lambda: run.status()["sinks"][0]["connected"] is False, run=run)
    # What was stored before may still be acknowledged; what is written now may not.
    eventually(lambda: stands_still(run), run=run)
    outage = confirmed(database), datetime.now(UTC)
    if how == "freeze":
        os.kill(pid, signal.SIGCONT)
    else:
        nats.start()
    eventually(lambda: count(nats, stream) > before, run=run)
    return outage
