"""A snapshot that is interrupted again and again beside a writer gives the table all the same."""

import random
import threading
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from penstock.config import SnapshotSettings
from penstock.snapshots.init_stream import InitStream
from penstock.snapshots.store import SnapshotRun
from tests.feeds.postgres.reading import Reader
from tests.servers import Database, Nats
from tests.snapshots.conftest import World, read

ROWS = 1500
CREATE = (
    "CREATE TABLE t (id int PRIMARY KEY, n int, big text);"
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL;"
    f"INSERT INTO t SELECT n, 0, repeat('b', 3000) || n FROM generate_series(1, {ROWS}) n"
)
ENDED = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND application_name = 'penstock' AND backend_type = 'client backend'"
)
Rows = dict[int, dict[str, Any]]


class Writer(threading.Thread):
    """Changes rows at random, keys too, without touching the large value of most."""

    def __init__(self, database: Database, seed: int) -> None:
        super().__init__(daemon=True)
        self._url, self._random = database.url, random.Random(seed)
        self._over = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with psycopg.connect(self._url) as connection:
                while not self._over.is_set():
                    for _ in range(self._random.randint(1, 5)):
                        connection.execute(*self._change())
                    connection.commit() if self._random.random() < 0.9 else connection.rollback()
        except BaseException as error:
            self.failure = error

    def _change(self) -> tuple[bytes, tuple[int, ...]]:
        some, other = self._random.randint(1, ROWS), self._random.randint(1, ROWS)
        insert = b"INSERT INTO t VALUES (%s, 0, repeat('x', 3000)) ON CONFLICT (id) DO NOTHING"
        move = b"UPDATE t SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM t WHERE id = %s)"
        return self._random.choice([
            (b"UPDATE t SET n = n + 1 WHERE id = %s", (some,)),
            (b"DELETE FROM t WHERE id = %s", (some,)),
            (insert, (some,)),
            (move, (some, other, some)),
            (move, (some, other, some)),
        ])  # fmt: skip

    def stop(self) -> None:
        self._over.set()
        self.join(60)
        assert self.failure is None


def folded(rows: Rows, places: dict[int, str], changes: list[dict[str, Any]]) -> Rows:
    """By the rule of docs/reference/messages.md. A large value that nothing has is None."""
    for change in changes:
        key, before, after = change["key"]["id"], change["before"] or {}, change["after"]
        gone = before.get("id", key)
        old = rows.get(gone, {})
        if places.get(gone, "") <= change["cursor"]:
            rows.pop(gone, None)
        if change["operation"] != "DELETE" and places.get(key, "") <= change["cursor"]:
            if "big" in change["unchanged"]:
                after = {**after, "big": old.get("big")}
            rows[key] = after
    return rows


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_rows_and_changes_are_the_table(
    seed: int, database: Database, nats: Nats, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, reader = World(database, nats), Reader(database)
    database.execute(CREATE)
    reader.prepare()
    count, lock, publish = 0, threading.Lock(), InitStream.publish

    def interrupted(stream: InitStream, *given: Any) -> int:
        nonlocal count
        with lock:
            count += 1
            if count % 25 == 0 and run.progress.snapshots < 4:
                database.execute(ENDED)
        return publish(stream, *given)

    monkeypatch.setattr(InitStream, "publish", interrupted)
    run = SnapshotRun(world.job("t"), world.sink, SnapshotSettings(chunk_rows=10, slots=2))
    writer = Writer(database, seed)
    with ExitStack() as stack:
        stack.callback(world.close)
        stack.callback(reader.close)
        writer.start()
        stack.callback(writer.stop)
        run.run()
        writer.stop()
        assert run.progress.snapshots >= 3
        rows: Rows = {}
        places: dict[int, str] = {}
        for body in map(read, sorted(world.chunks(run), key=lambda one: one.sequence)):
            rows |= {row["id"]: row for row in body["data"]}
            places |= dict.fromkeys(
                rows.keys() & {row["id"] for row in body["data"]}, cursor_of(body["position"])
            )
        meta = world.meta("t")
        database.execute("INSERT INTO t VALUES (0, 0, 'the end')")
        reader.until(lambda: any((row["after"] or {}).get("id") == 0 for row in reader.rows))
    assert len(set(places.values())) >= 3
    numbers = [one["chunk"] for one in meta["chunks"]]
    assert numbers == list(range(len(numbers)))
    cursor = cursor_of(run.progress.position)
    changes = [one for one in reader.rows if one["cursor"] >= cursor]
    found = {key: (row["n"], row["big"]) for key, row in folded(rows, places, changes).items()}
    table = database.execute("SELECT id, n, big FROM t")
    assert found == {key: (n, big) for key, n, big in table}


def cursor_of(position: str) -> str:
    return position.rpartition(":")[0]
