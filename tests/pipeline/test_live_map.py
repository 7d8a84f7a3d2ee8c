"""The map of tables is edited while `penstock run` follows it, on real servers."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.sinks.postgres.map_store import MapStore
from tests.pipeline.running import CLASSES, Run, eventually, running
from tests.servers import Database, Postgres

pytestmark = pytest.mark.live

_ITEMS = "SELECT sid, id, note FROM items ORDER BY 1, 2"


class World:
    """Two sources and a destination, and a map that begins empty."""

    def __init__(self, folder: Path, one: Database, two: Database, target: Database) -> None:
        self.folder, self.one, self.two, self.target = folder, one, two, target
        # Slots are of the whole server.
        self.shop, self.mall = f"a-{one.name}", f"b_{two.name}"
        self.store = MapStore(folder / "map.db")
        for source in (one, two):
            source.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
            source.execute("CREATE TABLE more (id int PRIMARY KEY, note text)")
            source.execute("INSERT INTO items VALUES (1, 'before')")
            source.execute("INSERT INTO more VALUES (1, 'before')")
        for table in ("items", "more"):
            target.execute(
                f"CREATE TABLE {table} (sid text, id int, note text, PRIMARY KEY (sid, id))"
            )

    @property
    def pipeline(self) -> dict[str, Any]:
        return {
            "name": "test",
            "sink": {
                "type": "postgres", "connection": self.target.url,
                "map": f"sqlite:///{self.store.path}",
            },
            "state": str(self.folder / "state"),
            "ops": {"port": 0},
            **({"spark": {"class_archive": str(CLASSES)}} if CLASSES.exists() else {}),
        }  # fmt: skip

    def add(self, name: str, sid: str, source: Database, *tables: str) -> int:
        """A backend with a source; returns its id."""
        db = int(self.store.add("db", {"name": name})["id"])
        self.store.add("url", {"db_id": db, "sid": sid, "url": source.url})
        for table in tables:
            self.store.add("tbl", {"db_id": db, "name": table})
        return db

    def rows(self, table: str = "items") -> list[Any]:
        return self.target.execute(f"SELECT sid, id, note FROM {table} ORDER BY 1, 2")

    def states(self) -> dict[tuple[str, str], str]:
        found = self.target.execute('SELECT sid, "table", state FROM penstock.ledger')
        return {(sid, table): state for sid, table, state in found}


@pytest.fixture
def world(postgres: Postgres, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        one, two, target = (stack.enter_context(postgres.database()) for _ in range(3))
        yield World(tmp_path, one, two, target)
        for source in (one, two):
            source.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                           " WHERE database = current_database()")  # fmt: skip


def _reader(run: Run, backend: str) -> Any:
    (found,) = (each for each in run.status()["backends"] if each["name"] == backend)
    return found["details"]["reader"], found["restarts"]


def test_backends_sources_and_tables_come_and_go(world: World) -> None:
    with running(world.folder, world.pipeline) as run:
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        assert run.status()["backends"] == []

        shop = world.add(world.shop, "eu", world.one, "items")
        eventually(lambda: world.rows() == [("eu", 1, "before")], run=run)
        world.one.execute("INSERT INTO items VALUES (2, 'after')")
        eventually(lambda: world.rows() == [("eu", 1, "before"), ("eu", 2, "after")], run=run)

        mall = world.add(world.mall, "us", world.two, "items")
        eventually(lambda: world.rows()[2:] == [("us", 1, "before")], run=run)
        eventually(lambda: set(world.states().values()) == {"live"}, run=run)
        before = eventually(lambda: _reader(run, world.shop), run=run)

        # Only the table that is new is loaded.
        world.target.execute("UPDATE items SET note = 'not loaded again'")
        world.store.add("tbl", {"db_id": mall, "name": "more"})
        eventually(lambda: world.rows("more") == [("us", 1, "before")], run=run)
        world.two.execute("INSERT INTO more VALUES (2, 'after'); INSERT INTO items VALUES (2, 'x')")
        eventually(lambda: world.rows("more")[1:] == [("us", 2, "after")], run=run)
        eventually(lambda: world.rows()[-1] == ("us", 2, "x"), run=run)
        assert {note for _, _, note in world.rows()[:-1]} == {"not loaded again"}
        assert _reader(run, world.shop) == before
        assert _reader(run, world.mall)[1] == 1

        # One that leaves changes no more, and is loaded anew where it comes back.
        (table,) = (each["id"] for each in world.store.rows("tbl") if each["name"] == "more")
        world.store.remove("tbl", table)
        eventually(lambda: world.states()["us", "more"] == "left", run=run)
        world.two.execute("DELETE FROM more WHERE id = 1")
        world.two.execute("INSERT INTO items VALUES (3, 'y')")
        eventually(lambda: world.rows()[-1] == ("us", 3, "y"), run=run)
        assert world.rows("more") == [("us", 1, "before"), ("us", 2, "after")]
        world.store.add("tbl", {"db_id": mall, "name": "more"})
        eventually(lambda: world.rows("more") == [("us", 2, "after")], run=run)

        for kind in ("tbl", "url", "db"):
            for row in world.store.rows(kind):
                if shop in (row["id"] if kind == "db" else row["db_id"],):
                    world.store.remove(kind, row["id"])
        eventually(lambda: len(run.status()["backends"]) == 1, run=run)
        eventually(lambda: "pg_drop_replication_slot" in run.log, run=run)
        assert "Traceback" not in run.log
        assert world.one.url not in run.log
    assert run.process.returncode == 0
