"""A commit that the stream has before other sessions see it, as with a synchronous standby."""

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from penstock.feeds.postgres import watch
from tests.servers import Database, Postgres
from tests.sinks.postgres.flow import Flow
from tests.waiting import until

_WAITS = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    """Of a server whose commits wait for a standby only where they ask for it."""
    with Postgres(settings={"synchronous_commit": "local"}) as server, server.database() as found:
        yield found


@contextmanager
def altered_unseen(database: Database, seconds: float) -> Iterator[None]:
    """A table gets a column; the commit is seen after so many seconds, when the block has ended."""
    with _server_setting(database, "nobody"):
        text = (
            "SET synchronous_commit = on; ALTER TABLE items ADD size int DEFAULT 7;"
            " UPDATE items SET name = 'changed'"
        )
        committing = threading.Thread(target=database.execute, args=(text,))
        committing.start()
        until(lambda: database.execute(f"SELECT 1 {_WAITS}"), 20)
        time.sleep(seconds)
        yield
        database.execute(f"SELECT pg_cancel_backend(pid) {_WAITS}")
        committing.join(20)
        assert not committing.is_alive()


@contextmanager
def _server_setting(database: Database, standbys: str) -> Iterator[None]:
    def change(value: str) -> None:
        database.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{value}'")
        database.execute("SELECT pg_reload_conf()")
        until(lambda: database.execute("SHOW synchronous_standby_names") == [(value,)], 20)

    change(standbys)
    try:
        yield
    finally:
        change("")


@pytest.fixture
def flow(database: Database, tmp_path: Path) -> Iterator[Flow]:
    database.execute(
        "DROP TABLE IF EXISTS items; CREATE TABLE items (id int PRIMARY KEY, name text)"
    )
    database.execute("INSERT INTO items VALUES (1, 'a')")
    slot = f"flow_{tmp_path.name[-8:]}"
    with Flow(database, tmp_path / "target.db", {"items": {"create": True}}, slot=slot) as found:
        found.loaded()
        yield found


def test_a_new_column_is_followed_when_its_commit_is_seen(
    database: Database, flow: Flow, tmp_path: Path
) -> None:
    with altered_unseen(database, 1.5):
        pass
    until(lambda: flow.check() or _rows(tmp_path / "target.db") == [(1, "changed", 7)], 30)
    assert flow.states() == [("live", "")]


def test_a_commit_that_is_not_seen_in_time_leaves_its_column_in_doubt(
    database: Database, flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_UNSEEN", 0.1)
    with altered_unseen(database, 0):
        until(lambda: flow.check() or "size is new, and old rows" in flow.states()[0][1], 30)


def _rows(target: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(target)) as file:
        return file.execute("SELECT * FROM items").fetchall()
