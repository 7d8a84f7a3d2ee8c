"""`filter` and `set` of the map mean in Delta tables what they mean in other tables."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.model.errors import Rejected
from penstock.model.finding import Finding
from penstock.model.position import PartitionId
from penstock.sinks.delta.database import DeltaDatabase
from penstock.sinks.delta.lake import DeltaLayout
from penstock.sinks.tables.fitness import made_relation
from penstock.tables.database import TableDatabase
from penstock.tables.history import HistoryColumns
from penstock.tables.lines import LineChange
from penstock.tables.postgres_database import PostgresDatabase
from penstock.tables.staged import RowMapping, StagedRows
from tests.mongo import Shop
from tests.progress import Noted
from tests.servers import Database
from tests.sinks.delta.lake import Lake, change, ordered, same
from tests.sinks.delta.test_commits import SinkOf, sink_of, states, there
from tests.sinks.delta.test_commits import (
    test_a_commit_that_the_ledger_lacks_counts_for_each_part_of_it as counted_once,
)
from tests.sinks.delta.test_documents import MongoLake
from tests.sinks.delta.test_flow import COLUMNS, ITEMS, TYPES, VALUES
from tests.sinks.delta.test_verify import pipeline, verified
from tests.sinks.postgres.flow import Flow
from tests.sinks.postgres.test_check import NOT_ONE
from tests.sinks.postgres.test_load import Point, load_of, loaded
from tests.sinks.postgres.test_write import rows_of
from tests.tables.test_history import ITEM, transaction, with_meta
from tests.waiting import until

__all__ = ["sink_of", "there"]  # fixtures
SHOP = PartitionId("shop")
PERIODS = HistoryColumns()
NAMES = ["id", "name", "large"]
PLAIN = {"id": "id", "name": "upper(name)", "large": '"large"'}
MAPPINGS: Mapping[str, Mapping[str, Any]] = {
    "filter": {"filter": "name <> 'no'"},
    "filter by what may be unsent": {"filter": "length(large) < 3 AND _operation <> 'no'"},
    "filter by the key": {"filter": "id < 4"},
    "set": {"computed": PLAIN},
    "both": {"computed": PLAIN, "filter": "name <> 'no' AND length(large) < 3"},
    "set by what may be unsent": {"computed": {**PLAIN, "large": "large || name"}},
    "set with the name of its source": {"computed": {**PLAIN, "name": "_sid || name"},
                                        "filter": "_sid = 'eu'"},
}  # fmt: skip

REFUSING = ("filter", "filter by what may be unsent", "both", "set by what may be unsent")


class Side:
    """A table of a database, to which batches are applied."""

    def __init__(self, database: TableDatabase, mapping: RowMapping, *, is_history: bool) -> None:
        self.database, self._mapping = database, mapping
        self._periods = PERIODS if is_history else None
        self._staged: StagedRows | None = None
        with database.transaction("making the table") as cursor:
            database.ledger(cursor).make()
            made = made_relation(cursor, database, ITEM, mapping.computed)
            database.create(
                cursor, made, ("public", "items"), periods=self._periods, sid_column="sid"
            )

    def apply(self, changes: Sequence[LineChange]) -> bool:
        """Whether it took them: all, or none."""
        with suppress(Rejected), self.database.transaction("writing") as cursor:
            found = self.database.find(cursor, "public", "items")
            assert found is not None
            staged = self.database.staged(ITEM, found, self._mapping, periods=self._periods)
            assert not list(staged.problems())
            staged.make(cursor)
            staged.apply(cursor, staged.plan(with_meta([*changes])))
            return True
        return False


def transactions(seed: int) -> Iterator[list[str]]:
    """Of a source that has `large` of two sizes, which a change sends where it is another."""
    chance, rows = Random(seed), dict[int, tuple[str, str]]()
    while True:
        texts = []
        for _ in range(chance.choice([1, 1, 1, 2, 3])):
            id, name = chance.randint(1, 6), chance.choice(["no", "a", "b"])
            large = chance.choice(["x", "yyyy", "-", "-"])
            to = id if chance.random() < 0.8 else chance.randint(1, 6)
            if id not in rows:
                large = large.replace("-", "z")
                rows[id] = name, large
                texts.append(f"INSERT {id} {name} {large}")
            elif chance.random() < 0.2:
                del rows[id]
                texts.append(f"DELETE {id}")
            elif to == id or to not in rows:
                rows[to] = name, rows.pop(id)[1] if large == "-" else large
                texts.append(f"UPDATE {id}>{to} {name} {large}")
        if chance.random() < 0.03:
            rows.clear()
            texts.append("TRUNCATE")
        if texts:
            yield texts


@pytest.mark.parametrize("kind", ["clone", "history"])
@pytest.mark.parametrize("name", MAPPINGS)
def test_rows_are_those_that_postgresql_has(
    database: Database, tmp_path: Path, name: str, kind: str
) -> None:
    mapping = RowMapping(sid="eu", source="eu", backend="shop", **MAPPINGS[name])
    lake, is_history = Lake(tmp_path), kind == "history"
    layout = DeltaLayout(uri=str(tmp_path / "public" / "items"), kind=kind, buckets=2)
    folder = DeltaDatabase(tmp_path / "ledger.db", {("public", "items"): layout})
    sides = [
        Side(PostgresDatabase(database.url), mapping,
             is_history=is_history),
        Side(folder, mapping, is_history=is_history),
    ]  # fmt: skip
    names = [*NAMES, "sid", *(PERIODS.kinds if is_history else ())]
    numbers, outcomes = count(1), set()
    for texts, _ in zip(transactions(len(name)), range(40), strict=False):
        batches = [texts]
        while batches:
            batch, number = batches.pop(0), next(numbers)
            took = {side.apply(transaction(number, number, *batch)) for side in sides}
            assert len(took) == 1, (batch, took)
            outcomes |= took
            if took == {False} and len(batch) > 1:
                batches = [[one] for one in batch]
        want = ordered(database.execute(f"SELECT {', '.join(names)} FROM items"))
        assert lake.rows("items", names) == want, texts
    assert True in outcomes
    assert False in outcomes or name not in REFUSING


QUERIES = {
    "filter": ({"filter": "n >= 20 OR name = 'old'"}, "*", "n >= 20 OR name = 'old'"),
    "set": (
        {"set": {"id": "id", "what": "upper(name)", "big": "large", "two": "n * 2"}},
        "id, upper(name), large, n * 2", "true",
    ),
    "both": (
        {"set": {"key": "id", "of": "_sid", "long": "length(large)"},
         "filter": "length(large) > 9"},
        "id, '{sid}', length(large)", "length(large) > 9",
    ),
}  # fmt: skip


@pytest.mark.parametrize("sink", [{}, {"buckets": 3, "sid_column": "sid"}], ids=str)
@pytest.mark.parametrize("name", QUERIES)
def test_a_table_is_as_a_query_of_its_source_after_random_transactions(
    database: Database, tmp_path: Path, name: str, sink: dict[str, Any]
) -> None:
    options, columns, where = QUERIES[name]
    lake, sid = Lake(tmp_path / "lake"), f"flow_{database.name}"
    query = f"SELECT {columns.format(sid=sid)} FROM items WHERE {where}"
    names = [*options.get("set", ["id", "name", "n", "large"])]
    database.execute(f"{ITEMS}; ALTER TABLE items REPLICA IDENTITY FULL")
    with Flow(database, lake.folder, {"items": options}, sink=sink) as flow:

        def is_same() -> None:
            until(
                lambda: flow.check() or lake.rows("items", names)
                == ordered(database.execute(query)), 60,
                problem=lambda: (lake.rows("items", names), database.execute(query), flow.states()),
            )  # fmt: skip

        change(database, len(name), 30)
        flow.loaded()
        is_same()
        change(database, len(name) + 100, 30)
        is_same()
        flow.reload("items")
        change(database, len(name) + 200, 5)
        is_same()


@pytest.mark.parametrize("is_set", [False, True])
def test_each_type_is_as_without_a_filter(database: Database, tmp_path: Path, is_set: bool) -> None:
    lake = Lake(tmp_path / "lake")
    database.execute(TYPES)
    database.execute("""ALTER TABLE kinds ADD "a B,c" int DEFAULT 1, ADD "q""x" text DEFAULT 'y'""")
    database.execute(VALUES.replace("#", "1"))
    names = database.execute("SELECT quote_ident(attname), attname FROM pg_attribute WHERE"
                             " attrelid = 'kinds'::regclass AND attnum > 0")  # fmt: skip
    options: dict[str, Any] = {"filter": """ints IS NULL OR "a B,c" = 1"""}
    options |= {"set": {name: quoted for quoted, name in names}} if is_set else {}
    with Flow(database, lake.folder, {"kinds": options}) as flow:
        flow.loaded()
        database.execute(VALUES.replace("#", "2"))
        columns = COLUMNS.replace(", boxes::text", "")
        same(flow, database, lake, "kinds", columns)
        database.execute("UPDATE kinds SET i4 = 7, ints = '{4}'")
        same(flow, database, lake, "kinds", columns)
    boxes = {tuple(row[0] or ()) for row in lake.rows("kinds", ["boxes"])}
    assert boxes == {("(1,1),(0,0)", "(3,3),(2,2)"), ()}
    assert {*lake.rows("kinds", ["a B,c", 'q"x'])} == {(1, "y")}


def test_the_initial_load_leaves_rows_out_and_changes_bring_them(
    there: Lake, sink_of: SinkOf
) -> None:
    sink = sink_of({"initial": True, "on_error": "dead-letter"},
                   filter="length(name) < 4 AND _operation <> 'no'")  # fmt: skip
    sink.enter("default", SHOP, initial=True)
    loaded(load_of(sink), Point(), b"1\tin\n2\tlonger\n3\t\\N")  # type: ignore[arg-type]
    assert there.rows("items") == [(1, "in")]
    sink.write([rows_of("UPDATE 3 now", commit=2)], Noted())  # it is held
    load_of(sink).finish([("public", "items")])  # type: ignore[arg-type]
    load_of(sink).settle("stop")  # type: ignore[arg-type]
    assert there.rows("items") == [(1, "in"), (3, "now")]
    sink.write([rows_of("UPDATE 1 longer", "UPDATE 2 in", "INSERT 4 out-of", commit=3)], Noted())
    assert there.rows("items") == [(2, "in"), (3, "now")]
    unsent = rows_of("UPDATE 2 \\U", "UPDATE 1 \\U", unchanged=[["name"]] * 2, commit=4)
    sink.write([unsent], Noted())
    assert there.rows("items") == [(2, "in"), (3, "now")]
    assert [each["reason"] for each in sink.dead_letters()] == ["unsent-value"]


@pytest.mark.parametrize("kind", ["clone", "log"])
def test_a_commit_that_the_ledger_lacks_is_once(there: Lake, sink_of: SinkOf, kind: str) -> None:
    sets = {"id": "id", "name": "name"}
    counted_once(there, partial(sink_of, filter="name <> 'no'", set=sets), kind)


def test_an_append_keeps_rows_that_are_deleted(there: Lake, sink_of: SinkOf) -> None:
    expressions = {"id": "id", "name": "upper(name)", "size": "CASE WHEN id > 9 THEN 1 ELSE 0 END"}
    sink = sink_of(type="append", set=expressions, filter="name <> 'no' AND _sid = 'shop'")
    sink.write([rows_of("INSERT 1 one", "INSERT 2 no", "INSERT 30 x", "DELETE 1")], Noted())
    assert there.rows("items", [*expressions]) == [(1, "ONE", 0), (30, "X", 1)]
    kinds = there.table("items").to_pyarrow_dataset().schema.types
    assert list(map(str, kinds)) == ["int32", "string", "int64"]


def test_a_log_leaves_changes_out(there: Lake, sink_of: SinkOf) -> None:
    sets = {"id": "id", "upper": "upper(name)", "name": "name"}
    sink = sink_of({"on_error": "dead-letter"}, type="log", set=sets, filter="name <> 'no'")
    sink.write([rows_of("INSERT 1 one", "INSERT 2 no", "UPDATE 2 yes", "UPDATE 1 no", "DELETE 1",
                        "TRUNCATE", key=["1", "2", "2", "1", "1", None],
                        before=[*[None] * 4, "1\t\\U", None])], Noted())  # fmt: skip
    columns = ["_sequence", "_operation", "id", "name", "upper"]
    want = [
        ("INSERT", 1, "one", "ONE"), ("UPDATE", 2, "yes", "YES"),
        ("DELETE", 1, None, None), ("TRUNCATE", None, None, None),
    ]  # fmt: skip
    assert [row[1:] for row in there.rows("items", columns)] == want
    sink.write([rows_of("INSERT 3 no", commit=2)], Noted())  # no commit
    unsent = rows_of("UPDATE 1 \\U", unchanged=[["name"]], commit=3)
    sink.write([unsent], Noted())
    assert [row[1:] for row in there.rows("items", columns)] == want
    assert [each["reason"] for each in sink.dead_letters()] == ["unsent-value"]


def test_a_log_may_leave_out_what_a_delete_has(there: Lake, sink_of: SinkOf) -> None:
    for kind, left in (("id <> 1", [2]), ("_operation <> 'DELETE'", [1, 2])):
        sink = sink_of({"location": f"{there.folder}/{left[0]}/{{table}}"}, type="log", filter=kind)
        before = [None, None, "1\t\\U"]
        sink.write([rows_of("INSERT 1 a", "INSERT 2 b", "DELETE 1", before=before)], Noted())
        assert [id for (id,) in Lake(there.folder, str(left[0])).rows("items", ["id"])] == left


def test_a_log_of_loaded_rows_and_of_rows_with_other_keys(
    database: Database, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text, at timestamptz)")
    database.execute("INSERT INTO items VALUES (1, 'one', '9998-01-01Z'), (2, 'no', NULL)")
    options = {"type": "log", "filter": "name <> 'no'",
               "set": {"id": "id", "name": "name", "at": "at", "of": "_committed_at"}}  # fmt: skip
    with Flow(database, lake.folder, {"items": options}) as flow:
        flow.loaded()
        database.execute("UPDATE items SET id = id + 2; UPDATE items SET name = 'yes'")
        columns = ["_sequence", "_operation", "id", "name", "_key_before"]
        until(lambda: flow.check() or len(lake.rows("items", columns)) == 4, 60)
    assert [row[1:] for row in lake.rows("items", columns)] == [
        ("READ", 1, "one", None), ("UPDATE", 3, "one", {"id": 1}),
        ("UPDATE", 3, "yes", None), ("UPDATE", 4, "yes", None),
    ]  # fmt: skip
    found = lake.rows("items", ["_operation", "at", "of", "_committed_at"])
    assert {at.year for _, at, *_ in found if at} == {9998}
    assert all(of == at for _, _, of, at in found)


@pytest.mark.parametrize("expression", ["CAST(name AS int)", "10 / (id - 1)"])
def test_what_fails_in_one_row_is_a_letter_of_it(
    there: Lake, sink_of: SinkOf, expression: str
) -> None:
    sink = sink_of({"on_error": "dead-letter"}, set={"id": "id", "name": expression})
    changes = ["INSERT 1 one", "INSERT 2 2", "INSERT 3 3"]
    sink.write([rows_of(*changes)], Noted())
    assert [id for (id,) in there.rows("items", ["id"])] == [2, 3]
    (letter,) = sink.dead_letters()
    assert letter["reason"] == "refused"
    assert "one" not in letter["error"].removeprefix("`set` or `filter` fails for a row")


def found_by(sink_of: SinkOf, **options: Any) -> list[Finding]:
    return [*sink_of(**options).check_tables("default", [Point().schema])]


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"filter": "nme = 1"}, "`filter` is not SQL over its columns: Schema error: No field"),
        ({"filter": "name = "}, "`filter` is not SQL over its columns: SQL error"),
        ({"filter": "id"}, "`filter` is not SQL over its columns: Error during planning: Cannot"
         " create filter with non-boolean"),
        ({"set": {"id": "id", "name": "upper(nme)"}}, "`set` of name is not SQL over its columns"),
        ({"set": {"id": "id + 1", "name": "name"}}, "`set` must have the key as it is at the"
         " source: id"),
        ({"set": {"key": "id"}, "type": "log"}, "`set` must have the key as it is"),
        ({"set": {"key": "name", "name": "name"}, "type": "log"}, "`set` must have the key as"),
    ],
)  # fmt: skip
def test_check_names_what_is_wrong_with_an_expression(
    there: Lake, sink_of: SinkOf, options: dict[str, Any], what: str, is_there: bool
) -> None:
    if is_there:
        sets = {"id": "id", "name": "name", "key": "id"}
        sink_of(set=sets, type=options.get("type", "clone")).write(
            [rows_of("INSERT 1 one")], Noted()
        )
    (found,) = found_by(sink_of, **options)
    assert (found.level, found.subject) == ("error", "table public.items of default")
    assert what in found.message
    sink = sink_of(**options)
    sink.write([rows_of("INSERT 2 two", commit=2)], Noted())
    assert [*states(sink)] == ["waiting"]
    assert what in states(sink)["waiting"]
    assert there.rows("items", ["id"]) == ([(1,)] if is_there else [])


def test_check_names_columns_that_the_table_lacks_and_values_that_are_not_sent(
    there: Lake, sink_of: SinkOf
) -> None:
    sets = {"id": "id", "name": "name"}
    assert found_by(sink_of, set=sets) == []
    sink_of().write([rows_of("INSERT 1 one")], Noted())
    (found,) = found_by(sink_of, set={**sets, "more": "id"})
    assert found.message == "public.items has no column more"
    sink = sink_of(set={**sets, "more": "id"})
    sink.write([rows_of("INSERT 2 two", commit=2)], Noted())
    assert "public.items has no column more" in states(sink)["waiting"]
    (found,) = found_by(sink_of, set={"id": "id", "name": "upper(name)"})
    assert (found.level, found.code) == ("warning", "tables.value-unsent")
    assert found_by(sink_of, filter="id > 1 AND _operation <> 'READ'") == []
    (found,) = found_by(sink_of, set={"id": "id", "__gone": "name"}, target="other")
    assert "penstock has beside them: __gone" in found.message


def test_check_names_all_that_is_wrong_with_set_and_a_key_that_is_missing_once(
    there: Lake, sink_of: SinkOf
) -> None:
    (found,) = found_by(sink_of, set={"id": "id", "a": "upper(nme)", "b": "no_such(name)"})
    assert "`set` of a is not SQL" in found.message and "`set` of b is not SQL" in found.message
    problems = [each for each in found_by(sink_of, set={"name": "name"}) if each.level == "error"]
    assert [each.code for each in problems] == ["delta.key-computed"]


def test_a_column_beside_those_of_a_source_is_named_where_there_are_expressions(
    there: Lake, sink_of: SinkOf
) -> None:
    columns = Point().schema.columns
    schema = replace(Point().schema, columns=(*columns, {**columns[-1], "name": "__gone"}))
    plain = sink_of({"sid_column": "sid"}, type="log")
    assert [*plain.check_tables("default", [schema])] == []
    (found,) = sink_of(type="log", filter="id > 1").check_tables("default", [schema])
    assert "penstock has beside them: __gone" in found.message


@pytest.mark.parametrize("text", ["id % 2 = 0", "(SELECT true) -- all\n AND true", "'%s;' <> '{}'"])
def test_a_filter_may_be_any_expression(there: Lake, sink_of: SinkOf, text: str) -> None:
    assert found_by(sink_of, filter=text) == []
    sink = sink_of(filter=text)
    sink.write([rows_of("INSERT 2 two")], Noted())
    assert there.rows("items") == [(2, "two")]


@pytest.mark.parametrize("text", NOT_ONE)
def test_an_expression_that_is_not_one_is_not_run(sink_of: SinkOf, text: str) -> None:
    for options in ({"filter": text}, {"set": {"id": "id", "name": text}}):
        (found,) = found_by(sink_of, **options)
        assert "is not SQL over its columns" in found.message


def test_a_preview_shows_what_filter_and_set_do(there: Lake, sink_of: SinkOf) -> None:
    for kind in ("clone", "history", "log"):
        sink = sink_of({"sid_column": "sid"}, type=kind, filter="name <> 'no'",
                       set={"id": "id", "size": "length(name)"})  # fmt: skip
        (table,) = sink.settings.tables()
        with sink.previewing() as preview:
            one, out = preview(table, "shop", Point().schema, ["1\tone", "2\tno"])
        assert (one.before, one.after) == (
            {"id": 1, "name": "one"}, {"sid": "shop", "id": 1, "size": 3}
        )  # fmt: skip
        assert (out.before, out.after, out.problem) == ({"id": 2, "name": "no"}, None, None)
    assert not there.folder.exists()


def test_verify_compares_what_filter_and_set_make(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.feeds.postgres.slot.settle", lambda *_: None)
    sets = {"key": "id", "name": "upper(name)", "n": "n"}
    options = {"set": sets, "filter": "n < 40"}
    lake = Lake(tmp_path / "lake")
    tables = {"items": options, "others": {**options, "type": "history"}}
    database.execute(f"{ITEMS}; CREATE TABLE others (LIKE items INCLUDING ALL)")
    database.execute("INSERT INTO others TABLE items")
    with Flow(database, lake.folder, tables) as flow:
        flow.loaded()
        before = len(lake.rows("others"))
        lake.table("others").delete("key = 5")
        lake.table("others").update({"name": "'other'"}, predicate="key = 6")
        flow.reload("others")
        until(lambda: flow.check() or len(lake.rows("others")) == before + 1, 60)
        flow.loaded()
    file, sid = pipeline(database, lake, tables, {}), f"flow_{database.name}"
    assert verified(file) == (
        0, [f"equal shop/{sid} public.{each} -> public.{each}" for each in tables]
    )  # fmt: skip
    lake.table("items").delete("key = 3")
    lake.table("items").update({"name": "'other'"}, predicate="key = 4")
    code, lines = verified(file, "items")
    assert (code, lines[1:]) == (1, ["missing (3)", "changed (4): name"])
    assert "rows cannot be mended" in " ".join(verified(file, "items", "--repair")[1])


def test_documents_are_filtered_as_text(shop: Shop, tmp_path: Path) -> None:
    there = MongoLake(shop, tmp_path / "lake")
    shop.db["users"].insert_many([{"_id": n, "name": f"n{n % 2}"} for n in range(4)])
    sets = {"_id": "_id", "document": "document", "size": "length(document)"}
    options = {"filter": """document LIKE '%"name":"n1"%'""", "set": sets}
    with there.flow({"users": options}) as flow:
        flow.loaded()
        assert [each["_id"] for each in there.lake.documents("users")] == [1, 3]
        shop.db["users"].update_one({"_id": 0}, {"$set": {"name": "n1"}})
        shop.db["users"].update_one({"_id": 1}, {"$set": {"name": "n2"}})
        until(lambda: flow.check() or [each["_id"] for each in there.lake.documents("users")]
              == [0, 3], 60)  # fmt: skip
    assert {*there.lake.rows("users", ["_id", "size"])} == {("0", 21), ("3", 21)}
