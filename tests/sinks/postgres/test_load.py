"""The load of a table into its target, part by part, on a real server; without Spark."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest

from penstock.model.change import OnError
from penstock.model.errors import Rejected, SettingsError, Unavailable
from penstock.model.position import PartitionId
from penstock.model.table_schema import TableSchema
from penstock.sinks import Progress, ignore
from penstock.sinks.loading import TableLoad
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres.settings import PostgresSinkSettings
from tests.progress import Noted
from tests.servers import Database
from tests.sinks.postgres.test_refusals import raising
from tests.sinks.postgres.test_write import TARGET, items, rows_of

COLUMNS: Sequence[Mapping[str, Any]] = (
    {"name": "id", "data_type": "integer", "key": True},
    {"name": "name", "data_type": "text", "key": False},
)


@dataclass
class Point:
    """Is a `RowsPoint`, at the transaction with this number."""

    number: int = 1
    schema: TableSchema = field(
        default_factory=lambda: TableSchema(
            schema="public", table="items", name=("items",), version="1", columns=tuple(COLUMNS)
        )
    )
    identity: str = "one"
    is_by_key: bool = True

    @property
    def cursor(self) -> str:
        return f"00000000/{self.number:08X}"

    def continues(self, identity: str) -> bool:
        return identity == self.identity


SinkOf = Callable[..., PostgresSink]


@pytest.fixture
def sink_of(database: Database) -> SinkOf:
    """`sink_of(**options of the table items)`, whose tables are loaded."""

    def make(**options: Any) -> PostgresSink:
        entries = [{"backend": "default", "tables": {"items": options}}]
        sink = PostgresSink(PostgresSinkSettings(
            connection=database.url, map=entries, commit={"wait": "20ms"}, initial=True,
        ))  # fmt: skip
        sink.enter("default", PartitionId("shop"), initial=True)
        return sink

    return make


def load_of(sink: PostgresSink) -> TableLoad:
    (load,) = sink.unfinished()
    return load


def loaded(
    load: TableLoad,
    point: Point,
    *parts: bytes,
    on_error: OnError = "stop",
    noted: Progress = ignore,
) -> None:
    """Plans as many parts, and loads them."""
    planned = load.plan(point, list(range(len(parts))))
    with load.writer(point, on_error, noted) as writer:
        for part, lines in zip(planned, parts, strict=True):
            writer.write(part, [writer.prefix + line + b"\n" for line in lines.splitlines()])


def state(database: Database) -> tuple[str, str]:
    (found,) = database.execute("SELECT state, detail FROM penstock.ledger")
    return found[0], found[1]


def test_a_load_goes_on_with_the_parts_that_are_left(database: Database, sink_of: SinkOf) -> None:
    database.execute(TARGET)
    sink = sink_of()
    load, point = load_of(sink), Point(2)
    first, second = load.plan(point, ["a", "b"])
    with load.writer(point) as writer:
        writer.write(first, [b"1\ta\n"])
        with pytest.raises(Unavailable):  # another instance has loaded it
            writer.write(first, [b"1\ta\n"])
    later = Point(5)
    again = load_of(sink)
    assert again.begin(later) == [(1, ["b"])] == [second]
    with again.writer(later) as writer:
        writer.write(second, [b"2\tb\n"])
    sink.write([rows_of("DELETE 1", "INSERT 3 c", commit=3)], Noted())
    assert again.finish([("public", "items")])
    load_of(sink).settle("stop")
    assert items(database) == [(2, "b"), (3, "c")]


def test_between_two_points_a_key_change_that_lacks_values_begins_the_load_anew(
    database: Database, sink_of: SinkOf
) -> None:
    database.execute(TARGET)
    sink = sink_of()
    load, point = load_of(sink), Point(2)
    first, second = load.plan(point, ["a", "b"])
    with load.writer(point) as writer:
        writer.write(first, [b"1\ta\n"])
    later, again = Point(5), load_of(sink)
    again.begin(later)
    with again.writer(later) as writer:
        writer.write(second, [b"9\ta\n"])
    moved = rows_of("UPDATE 9 \\U", commit=3, before=["1\ta"], unchanged=[["name"]])
    sink.write([moved], Noted())
    assert again.finish([("public", "items")])
    database.execute("UPDATE penstock.held SET before = '1' || chr(9) || '\\U'")
    with pytest.raises(Unavailable, match="anew"):
        load_of(sink).settle("stop")
    assert state(database) == ("loading", "")
    fresh = load_of(sink)
    assert fresh.begin(later) is None
    loaded(fresh, later, b"9\ta")
    assert items(database) == [(9, "a")]


@pytest.mark.parametrize(
    ("existing", "rows"), [("keep", [(1, "a"), (7, "x")]), ("replace", [(1, "a")])]
)
def test_rows_that_are_there_are_kept_or_replaced(
    database: Database, sink_of: SinkOf, existing: str, rows: list[Any]
) -> None:
    database.execute(TARGET)
    database.execute("INSERT INTO items VALUES (1, 'x'), (7, 'x')")
    load = load_of(sink_of(existing=existing))
    loaded(load, Point(), b"1\ta")
    assert items(database) == rows


def test_a_live_table_whose_target_is_gone_waits_and_goes_on(
    database: Database, sink_of: SinkOf
) -> None:
    sink = sink_of(create=True)
    loaded(load_of(sink), Point(), b"1\ta")
    load_of(sink).finish([("public", "items")])
    load_of(sink).settle("stop")
    stopped = sink_of()
    database.execute("ALTER TABLE items RENAME TO gone")
    stopped.write([rows_of("INSERT 2 b", commit=3)], Noted())
    assert state(database)[0] == "waiting"
    stopped.write([rows_of("INSERT 3 c", commit=4)], Noted())
    load = load_of(stopped)
    assert load.has_rows
    with pytest.raises(SettingsError):
        load.settle("stop")
    database.execute("ALTER TABLE gone RENAME TO items")
    load.settle("stop")
    assert items(database) == [(1, "a"), (2, "b"), (3, "c")]
    assert state(database) == ("live", "")


def test_a_reload_replaces_the_rows_of_one_source(database: Database, sink_of: SinkOf) -> None:
    database.execute("CREATE TABLE items (sid text, id int, name text, PRIMARY KEY (sid, id))")
    database.execute("INSERT INTO items VALUES ('other', 1, 'x')")
    sink = sink_of()
    loaded(load_of(sink), Point(), b"1\ta\n2\tb")
    load_of(sink).finish([("public", "items")])
    load_of(sink).settle("stop")
    with pytest.raises(SettingsError, match="no table"):
        sink.reload("items", "elsewhere")
    assert sink.reload("items", "shop") == ["public.items of default/shop"]
    loaded(load_of(sink), Point(), b"1\tnew")
    found = database.execute("SELECT sid, id, name FROM items ORDER BY sid, id")
    assert found == [("other", 1, "x"), ("shop", 1, "new")]


def test_a_reload_of_a_history_ends_what_is_gone_and_adds_what_differs(
    database: Database, sink_of: SinkOf
) -> None:
    sink = sink_of(type="history", create=True, filter="id < 9")
    loaded(load_of(sink), Point(), b"1\ta\n2\tb\n3\tc\n4\t\\N")
    load_of(sink).finish([("public", "items")])
    load_of(sink).settle("stop", ignore)
    sink.reload("items", None)
    loaded(load_of(sink), Point(), b"1\ta\n2\tnew\n4\t\\N\n5\te\n9\tout")
    rows = database.execute(
        "SELECT id, name, kvsz_start < '1901-01-01', kvsz_end = '9999-01-01Z', kvsz_deleted"
        " FROM items ORDER BY id, kvsz_start"
    )
    assert rows == [
        (1, "a", True, True, False), (2, "b", True, False, False), (2, "new", False, True, False),
        (3, "c", True, False, True), (4, None, True, True, False), (5, "e", True, True, False),
    ]  # fmt: skip


def test_a_reload_of_a_history_without_rows_ends_all_versions(
    database: Database, sink_of: SinkOf
) -> None:
    sink = sink_of(type="history", create=True)
    for lines in (b"1\ta\n2\tb", b"", b"2\tb"):
        loaded(load_of(sink), Point(), lines)
        load_of(sink).finish([("public", "items")])
        load_of(sink).settle("stop", ignore)
        sink.reload("items", None)
    rows = database.execute("SELECT id, kvsz_deleted FROM items ORDER BY id, kvsz_start")
    assert rows == [(1, True), (2, True), (2, False)]


def test_a_reload_of_an_append_keeps_what_is_gone(database: Database, sink_of: SinkOf) -> None:
    database.execute(TARGET)
    sink = sink_of(type="append")
    loaded(load_of(sink), Point(), b"1\ta\n2\tb")
    load_of(sink).finish([("public", "items")])
    load_of(sink).settle("stop", ignore)
    sink.reload("items", None)
    loaded(load_of(sink), Point(), b"2\tnew\n3\tc")
    assert items(database) == [(1, "a"), (2, "new"), (3, "c")]


def test_tables_are_loaded_once_after_what_was_lost(database: Database, sink_of: SinkOf) -> None:
    database.execute(TARGET)
    sink, shop = sink_of(), PartitionId("shop")
    loaded(load_of(sink), Point(), b"1\ta")
    load_of(sink).finish([("public", "items")])
    load_of(sink).settle("stop", ignore)
    assert sink.load_after("default", PartitionId("other"), "one") is False
    assert state(database)[0] == "live"
    assert sink.load_after("default", shop, "one") is False
    first, _ = load_of(sink).plan(Point(2), ["a", "b"])
    with load_of(sink).writer(Point(2)) as writer:
        writer.write(first, [b"1\tb\n"])
    assert sink.load_after("default", shop, "one") is False
    assert load_of(sink).begin(Point(2)) == [(1, ["b"])], "it was begun anew"
    assert sink.load_after("default", shop, "two") is False
    assert load_of(sink).begin(Point(2)) is None
    loaded(load_of(sink), Point(2), b"1\tb")
    load_of(sink).finish([("public", "items")])
    load_of(sink).settle("stop", ignore)
    assert sink.load_after("default", shop, "two") is True


def test_expressions_make_the_rows_of_a_load(database: Database, sink_of: SinkOf) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text, kind text)")
    sets = {"id": "id", "name": "upper(name)", "kind": "_sid || ' ' || _operation"}
    sink = sink_of(set=sets, filter="id > 1 AND _sid = 'shop'")
    loaded(load_of(sink), Point(), b"1\ta\n2\tb")
    assert items(database) == [(2, "B", "shop READ")]
    load_of(sink).finish([("public", "items")])
    load_of(sink).settle("stop")
    sink.write([rows_of("INSERT 3 c", "UPDATE 2 b2", commit=3)], Noted())
    assert items(database) == [(2, "B2", "shop UPDATE"), (3, "C", "shop INSERT")]


def test_a_row_of_a_load_that_is_refused_at_commit_is_a_dead_letter(
    database: Database, sink_of: SinkOf
) -> None:
    database.execute(TARGET)
    database.execute("CREATE TABLE parents (id int PRIMARY KEY)")
    database.execute("INSERT INTO parents SELECT g FROM generate_series(0, 9) g WHERE g <> 4")
    tie = "ADD FOREIGN KEY (id) REFERENCES parents DEFERRABLE INITIALLY DEFERRED"
    database.execute(f"ALTER TABLE items {tie}")
    sink = sink_of()
    rows = b"\n".join(b"%d\ta" % n for n in range(10))
    loaded(load_of(sink), Point(), rows, on_error="dead-letter")
    assert [id for id, _ in items(database)] == [n for n in range(10) if n != 4]
    (letter,) = sink.dead_letters()
    assert "items_id_fkey" in letter["error"]


@pytest.mark.parametrize("on_error", ["stop", "dead-letter"])
def test_of_rows_of_a_load_that_have_one_key_there_the_later_wins(
    database: Database, sink_of: SinkOf, on_error: OnError
) -> None:
    database.execute("CREATE TABLE items (id numeric(9, 1) PRIMARY KEY, name text)")
    database.execute("INSERT INTO items VALUES (1.1, 'mine'), (9, 'mine')")
    schema = Point().schema
    columns = {**COLUMNS[0], "data_type": "numeric"}, COLUMNS[1]
    point = Point(schema=replace(schema, columns=columns))
    sink = sink_of(existing="keep", set={"id": "id", "name": "name"})
    loaded(load_of(sink), point, b"1.11\ta\n2\tb\n1.12\tc", on_error=on_error)
    assert items(database) == [(Decimal("1.1"), "c"), (2, "b"), (9, "mine")]
    assert list(sink.dead_letters()) == []


def test_a_row_that_an_expression_refuses_is_a_dead_letter_with_its_types(
    database: Database, sink_of: SinkOf
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    sets = {"id": "id", "name": "(10 / (id - 2))::text || name"}
    sink = sink_of(set=sets)
    loaded(load_of(sink), Point(), b"1\ta\n2\tb\n3\tc", on_error="dead-letter")
    assert items(database) == [(1, "-10a"), (3, "10c")]
    (letter,) = sink.dead_letters()
    assert load_of(sink).finish([("public", "items")])
    load_of(sink).settle("stop")
    fixed = sink_of(set={"id": "id", "name": "length(name) + id"})
    fixed.replay(letter["event_id"], lambda page: [])
    assert items(database)[1] == (2, "3")


def test_a_table_that_waits_in_its_load_is_resumed_there(
    database: Database, sink_of: SinkOf
) -> None:
    database.execute(TARGET)
    sink = sink_of()
    with pytest.raises(Rejected) as refused:
        loaded(load_of(sink), Point(), b"1\ttoo-long", on_error="suspend")
    load_of(sink).wait(refused.value)
    assert load_of(sink).described["state"] == "suspended"
    assert sink.resume_table(None, "public.items")["state"] == "resuming"
    assert (state(database), load_of(sink).has_rows) == (("loading", ""), False)


def test_a_row_that_is_refused_ends_the_load(database: Database, sink_of: SinkOf) -> None:
    database.execute(TARGET)
    load = load_of(sink_of())
    with pytest.raises(Rejected, match="truncation"):
        loaded(load, Point(), b"1\ttoo-long")
    assert items(database) == []


def test_a_held_change_at_which_the_server_fails_again_and_again_is_a_dead_letter(
    database: Database, sink_of: SinkOf
) -> None:
    database.execute(TARGET)
    for statement in raising("XX000"):
        database.execute(statement)
    sink = sink_of()
    sink.write([rows_of("INSERT 2 b", "INSERT 3 bad", "INSERT 4 d", commit=3)], Noted())
    loaded(load_of(sink), Point(2), b"1\ta")
    assert load_of(sink).finish([("public", "items")])
    load = load_of(sink)
    with pytest.raises(Unavailable, match="XX000"):
        load.settle("dead-letter")
    load.recurs = True
    load.settle("dead-letter")
    assert items(database) == [(1, "a"), (2, "b"), (4, "d")]
    (letter,) = sink.dead_letters()
    assert "XX000" in letter["error"]
