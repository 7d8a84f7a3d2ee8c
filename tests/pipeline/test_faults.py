"""Real processes die; no change is lost, none is repeated, none gets a new id."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.pipeline.running import Run, count, document, eventually, messages, running, send
from tests.pipeline.truth import Truth, assert_same
from tests.servers import Database, Nats

pytestmark = pytest.mark.fault


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


def processes(run: Run, what: str) -> list[psutil.Process]:
    """Those with this name (forks have one), and those whose command ends so."""
    found = []
    for process in psutil.Process(run.process.pid).children(recursive=True):
        with suppress(psutil.Error):  # some end while we look
            if what == process.name() or process.cmdline()[-1].endswith(what):
                found.append(process)
    return found


def kill_the_parts(run: Run, nats: Nats, stream: str) -> None:
    """Of a pipeline under load: its readers, then its workers."""
    for victim in ("source_runner", "worker"):
        # There may be none for a moment: the last victim's query is being started anew.
        found = eventually(lambda v=victim: processes(run, v), run=run)
        send(found, signal.SIGKILL)
        before = count(nats, stream)
        eventually(lambda n=before: count(nats, stream) > n + 200, run=run)


@pytest.mark.thorough  # with it, `test_two_instances.py` kills the same
@pytest.mark.timeout(600)
def test_kill_9_of_the_parts_of_a_pipeline_without_the_fork_server(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    truth = prepared(database)
    pipeline = document(tmp_path, database, nats, stream, spark={"fork_server": False})
    with load(database) as writer, running(tmp_path, pipeline) as run:
        eventually(lambda: run.status()["last_batch"], run=run)
        kill_the_parts(run, nats, stream)
        changes = writer.stop()
        eventually(lambda: stored_all(nats, stream, changes), run=run)
        assert run.stop() == 0
    assert_exact(truth, nats, stream, changes)
