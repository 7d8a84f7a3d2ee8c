"""What a sink of tables alone does in any database, given batches of lines and rows of a load; what
mirrors do as well, `tests/tables/test_databases.py` has."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model.errors import Rejected, SettingsError
from penstock.model.position import PartitionId
from penstock.model.position import Place as Position
from tests.progress import Noted
from tests.sinks.postgres.test_check import NOT_ONE
from tests.sinks.postgres.test_load import COLUMNS, Point, load_of, loaded
from tests.sinks.postgres.test_write import ITEMS, applied_of, moved_row, never, rows_of
from tests.tables.databases import TARGET, Place, places

SHOP = PartitionId("shop")
WIDE = TARGET.replace("5", "9")
# What is said of a name that is too long.
REFUSED = {
    "postgres": "check violation, constraint items_name_check, table items (23514)",
    "sqlite": "CHECK constraint failed: length(name) <= 5",
}


@pytest.fixture(params=["sqlite", "postgres"])
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from places(request, tmp_path)


def test_tables_that_are_not_in_the_map_advance_the_position(there: Place) -> None:
    there.execute(TARGET)
    noted = Noted()
    there.sink().write([rows_of("INSERT 1 one", collection="other", relation_id=5)], noted)
    assert there.items == []
    assert noted.position == {SHOP: Position("00000000/00000001", 0)}


def test_a_change_that_is_refused_is_set_aside_and_the_rest_lands(there: Place) -> None:
    there.execute(TARGET)
    bad = rows_of("INSERT 1 one", "INSERT 2 too-long", "INSERT 3 three", "UPDATE 3 tree")
    noted, sink = Noted(), there.sink({"on_error": "dead-letter"})
    receipt = sink.write([bad], noted)
    assert there.items == [(1, "one"), (3, "tree")]
    assert (receipt.published, receipt.duplicates) == (3, 0)
    assert applied_of(noted) == {"INSERT": 2, "UPDATE": 1}
    assert noted[-1]["dead_letters"] == {"refused": 1}
    (letter,) = sink.dead_letters()
    assert (letter["table"], letter["operation"], letter["reason"]) == (
        "public.items", "INSERT", "refused",
    )  # fmt: skip
    assert letter["error"] == f"the destination refuses a row: {REFUSED[there.kind]}"
    assert letter["stored_at"].endswith("+00:00")


def test_a_dead_letter_is_applied_once_its_cause_is_gone(there: Place) -> None:
    there.execute(TARGET)
    sink = there.sink({"on_error": "dead-letter"})
    sink.write([rows_of("INSERT 1 one", "INSERT 2 too-long", "UPDATE 1 uno")], Noted())
    (letter,) = sink.dead_letters()
    assert sink.dead_letter("default:00000000/00000001:1")["id"] == letter["id"]
    with pytest.raises(Rejected, match=re.escape(REFUSED[there.kind])):
        sink.replay(str(letter["id"]), never)
    assert list(sink.dead_letters()) == [letter], "it went without being applied"
    there.make_again(WIDE)
    assert sink.replay(str(letter["id"]), never)["target"].endswith(".items")
    assert there.items == [(1, "uno"), (2, "too-long")]
    assert list(sink.dead_letters()) == []
    with pytest.raises(SettingsError, match="no dead letter"):
        sink.replay(str(letter["id"]), never)


@pytest.mark.parametrize(
    ("later", "left"),
    [
        ("UPDATE 2 due", [(1, "one"), (2, "due")]),
        ("DELETE 2", [(1, "one")]),
        ("TRUNCATE", []),
    ],
)
def test_a_dead_letter_does_not_undo_what_came_after_it(
    there: Place, later: str, left: list[tuple[int, str]]
) -> None:
    there.execute(TARGET)
    sink = there.sink({"on_error": "dead-letter"})
    sink.write([rows_of("INSERT 1 one", "INSERT 2 too-long")], Noted())
    key = None if later == "TRUNCATE" else "2"
    sink.write([rows_of(later, commit=2, key=[key])], Noted())
    there.make_again(WIDE)
    (letter,) = sink.dead_letters()
    with pytest.raises(Rejected, match="or had, a later row"):
        sink.replay(str(letter["id"]), never)
    assert there.items == left
    assert list(sink.dead_letters()) == [letter]
    sink.replay(str(letter["id"]), never, force=True)
    assert (2, "too-long") in there.items


def test_dead_letters_of_a_row_are_applied_in_their_order(there: Place) -> None:
    there.execute(TARGET)
    sink = there.sink({"on_error": "dead-letter"})
    sink.write([rows_of("INSERT 2 too-long", "UPDATE 2 too-large")], Noted())
    sink.write([rows_of("INSERT 3 three", commit=2)], Noted())  # of another row
    there.make_again(WIDE)
    first, second = sink.dead_letters()
    sink.replay(str(second["id"]), never)
    with pytest.raises(Rejected, match="or had, a later row"):
        sink.replay(str(first["id"]), never)
    assert (2, "too-large") in there.items


def test_a_dead_letter_keeps_what_was_not_sent(there: Place) -> None:
    there.execute("CREATE TABLE items (id integer PRIMARY KEY CHECK (id < 9), name text)")
    there.execute("INSERT INTO items VALUES (1, 'long ago')")
    sink = there.sink({"on_error": "dead-letter"})
    sink.write([rows_of("UPDATE 10 \\U", before=["1\t\\U"], unchanged=[["name"]])], Noted())
    (letter,) = sink.dead_letters()
    there.make_again("CREATE TABLE items (id integer PRIMARY KEY, name text)")
    sink.replay(str(letter["id"]), never)
    assert there.items == [(10, "long ago")]


def test_a_table_waits_from_a_refused_change_on_until_it_is_resumed(there: Place) -> None:
    there.execute(TARGET)
    sink, noted = there.sink({"on_error": "suspend"}), Noted()
    first = sink.write([rows_of("INSERT 1 one", "INSERT 2 too-long", "UPDATE 1 uno")], noted)
    second = sink.write([rows_of("INSERT 3 tre", commit=2)], noted)
    assert there.items == [(1, "one")]
    assert (first.published, second.published) == (3, 1), "what waits in the ledger is stored"
    assert noted.position == {SHOP: Position("00000000/00000002", 0)}
    assert applied_of(noted) == {"INSERT": 1}
    (table,) = sink.tables()
    assert (table["table"], table["state"], table["held"]) == ("public.items", "suspended", 3)
    assert (table["reason"], table["sid"]) == ("refused", "shop")
    assert table["since"].startswith("20")
    assert REFUSED[there.kind] in table["error"]
    assert list(sink.dead_letters()) == []
    with pytest.raises(SettingsError, match=r"suspended: public\.items"):
        sink.resume_table(None, "public.other")
    there.make_again(WIDE)
    assert sink.resume_table("default", "public.items")["held"] == 3
    assert [(each["state"], each["reason"]) for each in sink.tables()] == [("loading", "")]
    load_of(sink).settle("suspend")
    assert there.items == [(1, "uno"), (2, "too-long"), (3, "tre")]
    assert sink.tables()[0]["state"] == "live"


@pytest.mark.parametrize("alike", [True, False])
def test_a_row_that_moves_between_partitions_is_one_row(there: Place, *, alike: bool) -> None:
    there.sink(partitions="items_.", create=True).write([moved_row(alike=alike)], Noted())
    assert there.execute("SELECT id, name FROM items") == [(1, "one")]


@pytest.mark.slow
def test_a_truncated_partition_is_loaded_anew_with_the_others(there: Place) -> None:
    there.execute(TARGET)
    sink = there.sink(partitions="items(_.*)?")
    truncate = rows_of("INSERT 2 two", "TRUNCATE", commit=2, collection="items_a")
    for each in (rows_of("INSERT 1 one"), truncate):
        sink.write([each], Noted())
    assert sink.tables()[0]["state"] == "loading"
    assert there.items == [(1, "one")], "rows of other partitions went"
    assert sink.tables()[0]["held"] == 2
    load = load_of(sink)
    both = [("public", "items_a"), ("public", "items_b")]
    parts = [Point(3, schema=replace(Point().schema, table=name)) for _, name in both]
    for number, point in enumerate(parts):
        assert load.begin(point) is None
        assert not load.finish(both), "as if the other's rows were there"
        loaded(load, point, b"%d\ta" % (number + 7))
    assert load.finish(both)
    load_of(sink).settle("stop")
    assert there.items == [(7, "a"), (8, "a")]


def test_expressions_that_are_not_one_are_not_run(there: Place) -> None:
    options = [{"filter": text} for text in NOT_ONE]
    options += [{"set": {"id": "id", "name": text}} for text in NOT_ONE]
    tables = {f"t{n}": one for n, one in enumerate(options, 1)}
    changes = []
    for n, name in enumerate(tables, 1):
        there.execute(TARGET.replace("items", name))
        of = {"collection": name, "relation_id": n}
        relation = {**ITEMS, "table": name, "relation_id": n}
        changes.append(rows_of("INSERT 1 one", relation=relation, commit=n, **of))
    sink = there.sink({"map": [{"backend": "default", "tables": tables}]})
    sink.write(changes, Noted())
    found = [(each["state"], "is not SQL over its columns" in each["error"])
             for each in sink.tables()]  # fmt: skip
    assert found == [("waiting", True)] * len(tables)
    assert not [name for name in tables if there.execute(f"SELECT 1 FROM {name}")]
    with pytest.raises(Exception, match="pwned"):
        there.execute("SELECT 1 FROM pwned")


def test_rows_that_are_there_make_a_table_wait_until_they_are_gone(there: Place) -> None:
    there.execute(TARGET)
    there.execute("INSERT INTO items VALUES (7, 'x')")
    sink, point = there.sink({"initial": True}), Point()
    sink.enter("default", SHOP, initial=True)
    (found,) = sink.check_tables("default", [point.schema], [SHOP])
    assert (found.level, found.subject.partition(" ")[0]) == ("error", "target")
    load = load_of(sink)
    with pytest.raises(SettingsError, match="has rows already") as refused:
        load.plan(point, ["a"])
    load.wait(refused.value)
    assert sink.tables()[0]["state"] == "waiting"
    sink.write([rows_of("INSERT 2 b", commit=3)], Noted())
    there.execute("DELETE FROM items")
    again = load_of(sink)
    assert not again.has_rows
    loaded(again, point, b"1\ta")
    assert again.finish([("public", "items")])
    load_of(sink).settle("stop")
    assert there.items == [(1, "a"), (2, "b")]


@pytest.mark.slow
def test_rows_of_a_load_that_are_refused_are_dead_letters_and_the_rest_lands(there: Place) -> None:
    there.execute(TARGET)
    sink, noted = there.sink({"initial": True}), Noted()
    sink.enter("default", SHOP, initial=True)
    rows = b"\n".join(b"%d\t%s" % (n, b"too-long" if n in {3, 40} else b"a") for n in range(50))
    bad = b"50\t\xff\n51\t\\N"
    loaded(load_of(sink), Point(), rows, bad, on_error="dead-letter", noted=noted)
    assert [id for id, _ in there.items] == [n for n in range(52) if n not in {3, 40, 50}]
    assert {"backend": "default", "sid": "shop", "table": "public.items", "letters": 2} in (
        table for told in noted for table in told["tables"]
    )
    letters = list(sink.dead_letters())
    assert [(each["operation"], each["reason"]) for each in letters] == [("READ", "refused")] * 3
    assert REFUSED[there.kind] in letters[0]["error"]
    again = load_of(sink)
    assert again.begin(Point()) == []
    assert again.loaded == 52
    assert again.finish([("public", "items")])
    load_of(sink).settle("stop")
    with pytest.raises(Rejected):
        sink.replay(letters[0]["event_id"], never)
    there.make_again(WIDE)
    sink.replay(letters[0]["event_id"], never)
    assert (3, "too-long") in there.items
    assert len(list(sink.dead_letters())) == 2
    sink.reload("items", None)
    loaded(load_of(sink), Point(), b"1\ta", on_error="dead-letter")
    assert list(sink.dead_letters()) == [], "a letter of the load before is left"


@pytest.mark.slow
def test_rows_are_loaded_and_changes_wait_for_them(there: Place) -> None:
    sink = there.sink({"initial": True}, create=True)
    sink.enter("default", SHOP, initial=True)
    sink.write([rows_of("INSERT 1 old"), rows_of("UPDATE 1 new", "DELETE 2", commit=3)], Noted())
    load, point = load_of(sink), Point(2)
    assert load.begin(point) is None
    loaded(load, point, b"1\told\n2\tb", b"3\ta\\nb\\\\\n4\t\\N")
    again = load_of(sink)
    assert again.begin(point) == [], "a part would be loaded again"
    assert again.finish([("public", "items")])
    load_of(sink).settle("stop")
    assert there.items == [(1, "new"), (3, "a\nb\\"), (4, None)]
    sink.write([rows_of("DELETE 1", commit=1), rows_of("DELETE 4", commit=4)], Noted())
    assert there.items == [(1, "new"), (3, "a\nb\\")], "a change of before the point was applied"
    assert sink.reload("items", "shop") == ["public.items of default/shop"]
    assert sink.tables()[0]["state"] == "loading"
    load = load_of(sink)
    assert load.begin(Point(9)) is None
    loaded(load, Point(9), b"7\tx")
    assert load.finish([("public", "items")])
    load_of(sink).settle("stop")
    assert there.items == [(7, "x")]


@pytest.mark.parametrize("options", [{}, {"filter": "id < 9"}])
def test_a_reload_of_an_append_without_a_key_adds_what_is_missing(
    there: Place, options: dict[str, str]
) -> None:
    there.execute("CREATE TABLE items (sid text, id int, name text)")
    there.execute("INSERT INTO items VALUES ('other', 1, 'a')")
    sink, point = there.sink({"initial": True}, type="append", **options), Point()
    sink.enter("default", SHOP, initial=True)
    columns = tuple({**column, "key": False} for column in COLUMNS)
    point.schema = replace(point.schema, columns=columns)
    loaded(load_of(sink), point, b"1\ta\n1\ta\n2\tb\n3\t\\N\n9\tx")
    load_of(sink).finish([("public", "items")])
    load_of(sink).settle("stop")
    sink.reload("items", None)
    loaded(load_of(sink), point, b"1\ta\n1\ta\n1\ta\n3\t\\N\n4\td")
    found = there.execute(
        "SELECT sid, id, name, count(*) FROM items WHERE id < 9 GROUP BY 1, 2, 3 ORDER BY 1, 2"
    )
    assert found == [
        ("other", 1, "a", 1), ("shop", 1, "a", 3), ("shop", 2, "b", 1), ("shop", 3, None, 1),
        ("shop", 4, "d", 1),
    ]  # fmt: skip
    assert there.execute("SELECT count(*) FROM items WHERE id = 9") == [(0 if options else 1,)]


def test_each_source_has_its_rows_where_there_is_a_column_for_its_name(there: Place) -> None:
    there.execute("CREATE TABLE items (sid text, id int, name text, PRIMARY KEY (sid, id))")
    sink = there.sink()
    sink.write([rows_of("INSERT 1 a", "INSERT 2 b", partition="it's")], Noted())
    sink.write([rows_of("INSERT 1 c", partition="us")], Noted())
    sink.write([rows_of("UPDATE 1 d", "DELETE 2", partition="it's", commit=2)], Noted())
    assert there.items == [("it's", 1, "d"), ("us", 1, "c")]
    moved = {"before": ["1\t\\U"], "unchanged": [["name"]]}
    sink.write([rows_of("UPDATE 9 \\U", partition="it's", commit=3, **moved)], Noted())
    assert there.items == [("it's", 9, "d"), ("us", 1, "c")]
    sink.write([rows_of("TRUNCATE", key=[None], partition="it's", commit=4)], Noted())
    assert there.items == [("us", 1, "c")]
