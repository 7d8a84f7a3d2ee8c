"""The map of tables is edited while `penstock run` follows it, on real servers."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.config.map_store import MapStore
from tests.pipeline.running import Run, eventually, running
from tests.servers import Database, Postgres
from tests.slots import drop_slots

TOKEN = "a token of tests"


class World:
    """A destination, a map, and two sources; a phase begins with an empty map and new sources."""

    one: Database
    two: Database

    def __init__(self, folder: Path, postgres: Postgres, stack: ExitStack) -> None:
        self.folder, self._postgres, self._stack = folder, postgres, stack
        self.store = MapStore(folder / "map.db")
        self.target = stack.enter_context(postgres.database())
        for table in ("items", "more"):
            self.target.execute(
                f"CREATE TABLE {table} (sid text, id int, note text, PRIMARY KEY (sid, id))"
            )
        self.target.execute("CREATE TABLE spare (sid text, id int, PRIMARY KEY (sid, id))")
        self.target.execute("CREATE TABLE log (sid text, note text)")

    def begin(self, run: Run | None = None) -> None:
        """Ends the phase before, if `run` had one."""
        for kind in ("tbl", "url", "db"):
            for row in self.store.rows(kind):
                self.store.remove(kind, row["id"])
        if run is not None:
            eventually(lambda: run.status()["backends"] == [], run=run)
        self.target.execute("TRUNCATE items, more, log")
        self.one, self.two = self._source(), self._source()
        # Slots are of the whole server.
        self.shop, self.mall = f"a-{self.one.name}", f"b_{self.two.name}"

    def _source(self) -> Database:
        source = self._stack.enter_context(self._postgres.database())
        source.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
        source.execute("CREATE TABLE more (id int PRIMARY KEY, note text)")
        source.execute("INSERT INTO items VALUES (1, 'before')")
        source.execute("INSERT INTO more VALUES (1, 'before')")
        source.execute("CREATE TABLE log (note text); ALTER TABLE log REPLICA IDENTITY FULL")
        self._stack.callback(drop_slots, source)
        return source

    @property
    def pipeline(self) -> dict[str, Any]:
        return {
            "sink": {
                "type": "postgres", "connection": self.target.url,
                "map": f"sqlite:///{self.store.path}",
            },
            "ops": {"port": 0, "token": TOKEN},
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
        if self.target.execute("SELECT to_regclass('penstock.ledger')") == [(None,)]:
            return {}
        found = self.target.execute(
            'SELECT sid, "table", state FROM penstock.ledger WHERE backend = ANY(%s)',
            ([self.shop, self.mall],),
        )
        return {(sid, table): state for sid, table, state in found}


@pytest.fixture
def world(postgres: Postgres, tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, postgres, stack)


def _backend(run: Run, name: str) -> Any:
    (found,) = (each for each in run.status()["backends"] if each["name"] == name)
    return found


def _reader(run: Run, backend: str) -> Any:
    """The process at the source's server that serves its query."""
    return _backend(run, backend)["reader"]


@pytest.mark.timeout(900)  # three starts of Spark
def test_a_map_is_edited_while_it_is_followed(world: World) -> None:
    world.begin()
    with ExitStack() as stack:
        run = stack.enter_context(running(world.folder, world.pipeline))
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        assert run.status()["backends"] == []
        _backends_sources_and_tables_come_and_go(run, world)
        world.begin(run)
        _tables_are_cloned_by_rest(run, world)
        world.begin(run)
        _edits_that_are_wrong_stop_no_other_and_none_loses_or_doubles_a_change(run, world)
        world.begin(run)
        run = _kills_between_an_edit_and_its_effect(run, world, stack, is_noticed=True)
        assert run.stop() == 0


def _backends_sources_and_tables_come_and_go(run: Run, world: World) -> None:
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
    assert _backend(run, world.shop)["restarts"] == 0
    assert _backend(run, world.mall)["restarts"] == 1

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
    eventually(lambda: "left the map" in run.log, run=run)
    drop_slots(world.one)
    world.one.execute("DELETE FROM items WHERE id = 1")
    world.add(world.shop, "eu", world.one, "items")
    eventually(lambda: world.rows()[0] == ("eu", 2, "after"), run=run)
    world.one.execute("DELETE FROM items")
    eventually(lambda: world.rows()[0][0] == "us", run=run)
    assert "Traceback" not in run.log
    assert world.one.url not in run.log


def _edits_that_are_wrong_stop_no_other_and_none_loses_or_doubles_a_change(
    run: Run, world: World
) -> None:
    shop = world.add(world.shop, "eu", world.one, "items")
    eventually(lambda: world.rows() == [("eu", 1, "before")], run=run)

    # A table that the source does not have, and backends whose source does not answer, or is no
    # source.
    world.store.add("tbl", {"db_id": shop, "name": "missing", "target": "more"})
    away = world.store.add("db", {"name": "away"})["id"]
    url = "postgresql://nobody:s3cret@127.0.0.1:1/gone"
    world.store.add("url", {"db_id": away, "sid": "away", "url": url})
    world.store.add("tbl", {"db_id": away, "name": "items"})
    eventually(lambda: len(run.status()["backends"]) == 2, run=run)
    world.one.execute("INSERT INTO items VALUES (2, 'after')")
    eventually(lambda: world.rows()[1:] == [("eu", 2, "after")], run=run)
    eventually(lambda: _table(run, world.shop, "public.missing")["state"] == "waiting", run=run)
    assert "the source does not send it" in _table(run, world.shop, "public.missing")["error"]
    eventually(lambda: _table(run, world.shop, "public.items")["state"] == "live", run=run)

    # It is made, and the backend begins anew with the next edit.
    world.one.execute("CREATE TABLE missing (id int PRIMARY KEY, note text)")
    world.one.execute("INSERT INTO missing VALUES (9, 'late')")
    for row in world.store.rows("tbl"):
        if row["name"] == "missing":
            world.store.change("tbl", row["id"], {"filter": "id > 1"})
    eventually(lambda: world.rows("more") == [("eu", 9, "late")], run=run)

    # A source that joins, leaves, and comes back.
    source = {"db_id": shop, "sid": "us", "url": world.two.url}
    added = world.store.add("url", source)["id"]
    eventually(lambda: world.rows()[2:] == [("us", 1, "before")], run=run)
    world.store.remove("url", added)
    eventually(lambda: world.states()["us", "items"] == "left", run=run)
    drop_slots(world.two)
    world.two.execute("UPDATE items SET note = 'meanwhile'")
    world.store.add("url", source)
    eventually(lambda: world.rows()[2:] == [("us", 1, "meanwhile")], run=run)
    world.two.execute("UPDATE items SET note = 'later'")
    eventually(lambda: world.rows()[2:] == [("us", 1, "later")], run=run)
    _lose_and_double_nothing(run, world, shop)

    # A source that does not answer stops none of the others.
    gone = {"db_id": shop, "sid": "gone", "url": "postgresql://127.0.0.1:1/gone"}
    world.store.add("url", gone)
    eventually(lambda: "source gone" in str(run.status()), run=run)
    world.one.execute("UPDATE items SET id = 3 WHERE id = 2")
    rows = [("eu", 1, "before"), ("eu", 3, "after"), ("us", 1, "later")]
    eventually(lambda: world.rows() == rows, run=run)
    world.one.execute("TRUNCATE items")
    eventually(lambda: world.rows() == rows[2:], run=run)
    assert "s3cret" not in run.log + str(run.status())
    assert "Traceback" not in run.log


def _lose_and_double_nothing(run: Run, world: World, shop: int) -> None:
    for source in (world.one, world.two):
        source.execute("CREATE TABLE spare (id int PRIMARY KEY)")
    world.store.add("tbl", {"db_id": shop, "name": "log"})
    logs = {("eu", "log"): "live", ("us", "log"): "live"}
    eventually(lambda: logs.items() <= world.states().items(), run=run)
    number = 0
    for edit in range(2):
        # The edit comes in the middle of changes, and takes effect while they go on.
        restarts = _backend(run, world.shop)["restarts"]
        for each in range(40):
            number += 1
            for source in (world.one, world.two):
                source.execute(
                    f"INSERT INTO log SELECT '{number} ' || n FROM generate_series(1, 50) n"
                )
            if each == 10 and edit % 2:
                world.store.remove("tbl", world.store.rows("tbl")[-1]["id"])
            elif each == 10:
                world.store.add("tbl", {"db_id": shop, "name": "spare"})
        eventually(lambda: _backend(run, world.shop)["restarts"] > restarts, run=run)  # noqa: B023
    notes = "SELECT note, count(*) FROM log {} GROUP BY 1 ORDER BY 1"
    expected = world.one.execute(notes.format(""))
    assert len(expected) == number * 50
    for sid in ("eu", "us"):
        found = notes.format(f"WHERE sid = '{sid}'")
        eventually(lambda: world.target.execute(found) == expected, run=run)  # noqa: B023


def _table(run: Run, backend: str, name: str) -> Any:
    rows = run.status()["tables"]
    found = [row for row in rows if (row["backend"], row["table"]) == (backend, name)]
    return found[0]


# Table, its DDL, what is cloned, the row that comes after the clone, and the target.
CLONES = [
    ("u0", "CREATE TABLE u0 (id serial PRIMARY KEY, name text)", "", "u0"),
    ("u1", "CREATE TABLE u1 (id int PRIMARY KEY, name text)", "", "u1"),
    ("u2", "CREATE TABLE u2 (id int PRIMARY KEY, name text);"
           "INSERT INTO u2 SELECT g, 'before' FROM generate_series(1, 4) g", "", "u2"),
    ("u3", "CREATE TABLE u3 (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);"
           "CREATE TABLE u3_0 PARTITION OF u3 FOR VALUES FROM (0) TO (9);"
           "CREATE TABLE u3_1 PARTITION OF u3 FOR VALUES FROM (10) TO (19)",
     "?partitions_regex=u3_.*", "u3"),
    ("u4", "CREATE TABLE u4 (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);"
           "CREATE TABLE u4_0 PARTITION OF u4 FOR VALUES FROM (0) TO (9);"
           "CREATE TABLE u4_1 PARTITION OF u4 FOR VALUES FROM (10) TO (19)",
     "?partitions_regex=u4_.*&target=u4p", "u4p"),
    ("u5", "CREATE TABLE u5 (id int PRIMARY KEY, name text)", "?target=u5p&type=append", "u5p"),
]  # fmt: skip


def _edit(run: Run, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(run.url + path, method=method)
    request.add_header("Authorization", f"Bearer {TOKEN}")
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(request, data, timeout=60) as answer:
        return json.loads(answer.read())


def _in_map(run: Run, name: str) -> Any:
    code, body = run.get("/api/map")
    assert code == 200, body
    (found,) = (each for each in json.loads(body) if each["name"] == name)
    return found


def _tables_are_cloned_by_rest(run: Run, world: World) -> None:
    """kuvasz-streamer's cases."""
    source, target = world.one, world.target
    target.execute("CREATE TABLE u1 (id int PRIMARY KEY, name text)")
    assert json.loads(run.get("/api/map")[1]) == []
    assert run.get("/api/db", "POST", token="")[0] == 401

    db = _edit(run, "POST", "/api/db", {"name": world.shop})["id"]
    _edit(run, "POST", "/api/url", {"db_id": db, "sid": "eu", "url": source.url})
    # One while nothing is followed, and the others while that one is.
    for clones in (CLONES[:1], CLONES[1:]):
        for _, ddl, _, _ in clones:
            source.execute(ddl)
        _edit(run, "POST", "/api/map/refresh")
        for each, _, query, _ in clones:
            found = _edit(run, "POST", f"/api/map/{_in_map(run, each)['id']}/clone{query}")
            assert (found["replicated"], found["present"]) == (True, True)
        _edit(run, "POST", "/api/url/restart")
        for each, _, _, _ in clones:
            eventually(lambda each=each: _in_map(run, each)["state"] == "live", run=run)
            source.execute(f"INSERT INTO {each} (id, name) VALUES (8, 'after')")
        for _, _, _, written in clones:
            after = f"SELECT name FROM {written} WHERE id = 8"
            eventually(lambda after=after: target.execute(after), run=run)
    assert target.execute("SELECT count(*) FROM u2 WHERE name = 'before'") == [(4,)]

    def source_is() -> tuple[bool, str, str]:
        (url,) = json.loads(run.get("/api/url")[1])
        return url["up"], url["status"], url["error"]

    eventually(lambda: source_is() == (True, "reading", ""), run=run)

    target.execute("DELETE FROM u2")
    _edit(run, "POST", f"/api/map/{_in_map(run, 'u2')['id']}/reload")
    eventually(lambda: target.execute("SELECT count(*) FROM u2") == [(5,)], run=run)

    row = json.loads(run.get(f"/api/tbl/{_in_map(run, 'u1')['tbl_id']}")[1])
    before = run.log.count("the map has changed")
    _edit(run, "PUT", f"/api/tbl/{row['id']}", {**row, "filter": "id < 100"})
    eventually(lambda: run.log.count("the map has changed") > before, run=run)
    _edit(run, "DELETE", f"/api/tbl/{_in_map(run, 'u0')['tbl_id']}")
    eventually(lambda: _in_map(run, "u0")["state"] is None, run=run)
    source.execute("INSERT INTO u1 VALUES (99, 'in'), (100, 'out')")
    eventually(lambda: target.execute("SELECT id FROM u1 WHERE id = 99"), run=run)
    assert not target.execute("SELECT id FROM u1 WHERE id = 100")
    assert source.url not in run.log
    assert TOKEN not in run.log


@pytest.mark.thorough  # once the service has noticed the edit, above
@pytest.mark.timeout(900)  # five starts of Spark
def test_a_kill_at_once_after_an_edit_neither_loses_nor_repeats_it(world: World) -> None:
    world.begin()
    with ExitStack() as stack:
        run = stack.enter_context(running(world.folder, world.pipeline))
        _kills_between_an_edit_and_its_effect(run, world, stack, is_noticed=False)


def _kills_between_an_edit_and_its_effect(
    run: Run, world: World, stack: ExitStack, *, is_noticed: bool
) -> Run:
    """Neither lose nor repeat it; where it is noticed, the first two. Returns the last run."""
    shop, number = world.add(world.shop, "eu", world.one, "items"), 0
    us = {"db_id": shop, "sid": "us", "url": world.two.url}

    def write() -> None:
        nonlocal number
        number += 1
        for source in (world.one, world.two):
            source.execute(f"INSERT INTO log SELECT '{number} ' || n FROM generate_series(1, 9) n")

    def is_equal(*sids: str) -> bool:
        log = "SELECT note, count(*) FROM log {} GROUP BY 1 ORDER BY 1"
        expected = world.one.execute(log.format(""))
        return all(
            world.target.execute(log.format(f"WHERE sid = '{sid}'")) == expected for sid in sids
        )

    def remove() -> None:
        world.store.remove("tbl", world.store.rows("tbl")[-1]["id"])

    def add() -> None:
        world.store.add("tbl", {"db_id": shop, "name": "log"})

    # Each edit, and what shows that it is in effect.
    edits: list[tuple[Callable[[], object], Callable[[], bool]]] = [
        (add, lambda: is_equal("eu")),
        (lambda: world.store.add("url", us), lambda: is_equal("eu", "us")),
        (remove, lambda: {world.states()[sid, "log"] for sid in ("eu", "us")} == {"left"}),
        (add, lambda: is_equal("eu", "us")),
    ]
    is_in_effect: Callable[[], bool] = lambda: world.rows() == [("eu", 1, "before")]  # noqa: E731
    for edit, then in edits[:2] if is_noticed else edits:
        eventually(lambda: run.url, run=run)  # noqa: B023  # it has read the map before the edit
        eventually(is_in_effect, run=run)
        write()
        noticed = run.log.count("the map has changed")
        edit()
        if is_noticed:
            eventually(lambda: run.log.count("the map has changed") > noticed, run=run)  # noqa: B023
        write()
        run.kill_and_wait()
        assert "Traceback" not in run.log
        write()
        run = stack.enter_context(running(world.folder, world.pipeline))
        is_in_effect = then
    eventually(is_in_effect, run=run)
    write()
    eventually(lambda: is_equal("eu", "us"), run=run)
    eventually(lambda: set(world.states().values()) == {"live"}, run=run)
    return run
