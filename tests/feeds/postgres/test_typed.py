"""Typed rows of every kind of value that PostgreSQL has, as a client of it reads them."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.model.change import schema as change_schema
from penstock.model.errors import SettingsError
from penstock.typed.columns import META, schema_of
from penstock.typed.line_rows import LineRows
from penstock.wire.pgoutput.values import SESSION
from tests.feeds.postgres.reading import Reader
from tests.servers import Database
from tests.wire.kinds import KINDS, LIVE, LIVE_SETUP

# As the type's output function writes it; a cast to text may do more.
_TEXT = (
    "SELECT CASE WHEN v IS NOT NULL THEN format('%s', v) END"
    " FROM (SELECT {} v FROM public.t WHERE id = 1) t"
)


def typed_of(reader: Reader, **given: Any) -> LineRows:
    (table,) = [one for one in reader.feed.schemas() if one.table == "t"]
    return LineRows(table="public.t", **{"schema": schema_of(table), **given})


def rows_of(reader: Reader, typed: LineRows) -> pa.Table:
    decoder = reader.feed.decoder("text")
    made = []
    for page in reader.pages:
        batches = decoder.decode(page)
        made += typed.of_page(batches, batches)
    return pa.Table.from_batches(made, typed.schema)


def dicts(table: pa.Table) -> list[dict[str, Any]]:
    return table.to_pylist()


def selected(database: Database, query: str) -> list[Any]:
    """What a client reads: values of Python, or nothing where Python has none."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        for name, value in SESSION.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        return [value for (value,) in connection.execute(query.encode())]


def test_values_are_those_of_a_client_or_are_known_not_to_fit(reader_any: Reader) -> None:
    database = reader_any.database
    ((version,),) = database.execute("SHOW server_version_num")
    kinds = [kind for kind in (*KINDS, *LIVE) if kind.known_to(int(version) // 10_000)]
    columns = ", ".join(f"{kind.name} {kind.type}" for kind in kinds)
    database.execute(LIVE_SETUP)
    database.execute(f"CREATE TABLE t (id integer PRIMARY KEY, {columns})")
    reader_any.prepare()
    database.execute(f"INSERT INTO t VALUES (1, {', '.join(kind.sql for kind in kinds)})")
    database.execute(f"INSERT INTO t VALUES (2{', NULL' * len(kinds)})")
    reader_any.take(2)
    rows = rows_of(reader_any, typed_of(reader_any, on_misfit="PERMISSIVE"))
    first, second = dicts(rows)
    misfits = dict(first["_rest"])
    for kind in kinds:
        assert second[kind.name] is None
        found, typed = first[kind.name], rows.schema.field(kind.name).type
        is_list = pa.types.is_list(typed)
        whole = selected(database, _TEXT.format(kind.name))
        if kind.name in misfits:
            assert found is None
            assert [misfits[kind.name]] == whole
            continue
        values = f"unnest({kind.name})" if is_list else kind.name
        is_text = pa.types.is_string(typed.value_type if is_list else typed)
        query = _TEXT if is_text else "SELECT {} FROM public.t WHERE id = 1"
        wanted = selected(database, query.format(values))
        assert repr(_plain(found if is_list else [found])) == repr(_plain(wanted)), kind.name
    # All that Arrow or Spark has no value for, and nothing else.
    assert {name.partition("_")[0] for name in misfits} == {
        "date", "timestamp", "timestamptz", "domain", "dates", "timestamps", "timestamptzs",
        "numerics", "ints", "texts", "jsonbs", "boxes", "enums", "byteas",
    }  # fmt: skip
    assert second["_rest"] is None


def _plain(value: Any) -> Any:
    """Floats of four bytes are compared as such; times without the name of their zone."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if hasattr(value, "tzinfo") and value.tzinfo is not None:
        return value.isoformat()
    return pa.scalar(value, pa.float32()).as_py() if isinstance(value, float) else value


def test_what_happened_is_beside_the_row(reader_of: Callable[..., Reader]) -> None:
    reader = reader_of()
    execute = reader.database.execute
    execute("CREATE TABLE t (id int PRIMARY KEY, n int, large text)")
    execute("ALTER TABLE t ALTER large SET STORAGE EXTERNAL")
    reader.prepare()
    execute("INSERT INTO t VALUES (1, 1, repeat('x', 5000))")
    execute("UPDATE t SET n = 2")
    execute("UPDATE t SET id = 5")
    execute("DELETE FROM t")
    execute("TRUNCATE t")
    reader.take(5)
    rows = dicts(rows_of(reader, typed_of(reader)))
    found = [
        (row["_operation"], row["id"], row["n"], row["_unsent"], row["_key_before"]) for row in rows
    ]
    assert found == [
        ("INSERT", 1, 1, [], None),
        ("UPDATE", 1, 2, ["large"], None),
        ("UPDATE", 5, 2, ["large"], {"id": 1}),
        ("DELETE", 5, None, ["n", "large"], None),
        ("TRUNCATE", None, None, [], None),
    ]
    assert rows[0]["large"] == "x" * 5000
    sequences = [row["_sequence"] for row in rows]
    assert sequences == sorted(set(sequences))
    assert all(row["_committed_at"] is not None for row in rows)


def test_columns_that_come_and_go_while_it_is_read(reader_of: Callable[..., Reader]) -> None:
    reader = reader_of()
    execute = reader.database.execute
    execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    reader.prepare()
    typed, strict = typed_of(reader), typed_of(reader, on_schema_change="fail")
    execute("INSERT INTO t VALUES (1, 1)")
    execute("ALTER TABLE t ADD fresh date; INSERT INTO t VALUES (2, 2, '2026-01-02')")
    execute("ALTER TABLE t DROP n; INSERT INTO t VALUES (3, NULL)")
    execute("ALTER TABLE t RENAME fresh TO n; INSERT INTO t VALUES (4, NULL)")
    reader.take(4)
    found = [
        (row["id"], row["n"], row["_unsent"], row["_rest"]) for row in dicts(rows_of(reader, typed))
    ]
    assert found == [
        (1, 1, [], None),
        (2, 2, [], [("fresh", "2026-01-02")]),
        (3, None, ["n"], None),
        (4, None, [], None),
    ]
    with pytest.raises(SettingsError, match="new fresh, gone none"):
        rows_of(reader, strict)
    execute("INSERT INTO t VALUES (5, '2026-01-03')")
    reader.take(1)
    with pytest.raises(SettingsError, match="column n that int32 cannot hold"):
        rows_of(reader, typed)
    last = dicts(rows_of(reader, typed_with(typed, on_misfit="PERMISSIVE")))[-1]
    assert (last["n"], last["_rest"]) == (None, [("n", "2026-01-03")])


def typed_with(typed: LineRows, **given: Any) -> LineRows:
    fields = {name: getattr(typed, name) for name in typed.__slots__}
    return LineRows(**(fields | given))


def test_types_and_columns_of_a_schema_of_the_users(reader_of: Callable[..., Reader]) -> None:
    reader = reader_of()
    execute = reader.database.execute
    execute("CREATE TABLE t (id int PRIMARY KEY, price numeric, at timestamptz, flag bool)")
    reader.prepare()
    execute("INSERT INTO t VALUES (1, 1.5, '2026-01-02 03:04:05+00', true), (2, 'NaN', NULL, NULL)")
    reader.take(2)
    schema = pa.schema({"flag": pa.string(), "id": pa.int64(), "price": pa.decimal128(10, 3)})
    with pytest.raises(SettingsError, match=r"price that decimal.* cannot hold"):
        rows_of(reader, typed_of(reader, schema=schema))
    # Without a column `_rest` what does not fit is null.
    rows = rows_of(reader, typed_of(reader, schema=schema, on_misfit="PERMISSIVE"))
    assert json.dumps(rows.to_pylist(), default=str) == json.dumps(
        [{"flag": "t", "id": 1, "price": "1.500"}, {"flag": None, "id": 2, "price": None}]
    )
    assert not {*META} & {*rows.schema.names}


def test_a_whole_row_of_before_has_what_was_not_sent(reader_of: Callable[..., Reader]) -> None:
    reader = reader_of()
    execute = reader.database.execute
    execute("CREATE TABLE t (id int PRIMARY KEY, n int, large text)")
    execute("ALTER TABLE t ALTER large SET STORAGE EXTERNAL; ALTER TABLE t REPLICA IDENTITY FULL")
    reader.prepare()
    execute("INSERT INTO t VALUES (1, 1, repeat('x', 5000)), (2, 2, NULL)")
    execute("UPDATE t SET n = n + 1, id = id + 10")
    reader.take(4)
    found = [
        (row["id"], row["n"], row["large"], row["_unsent"], row["_key_before"])
        for row in dicts(rows_of(reader, typed_of(reader)))[2:]
    ]
    assert found == [(11, 2, "x" * 5000, [], {"id": 1}), (12, 3, None, [], {"id": 2})]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("n", pa.struct([("a", pa.int32())])), ("n", pa.list_(pa.list_(pa.int32()))),
        ("n", pa.duration("us")), ("n", pa.map_(pa.string(), pa.string())),
        ("_operation", pa.int32()), ("_rest", pa.string()), ("_key_before", pa.string()),
    ],
)  # fmt: skip
def test_a_type_that_no_column_has_is_refused(name: str, kind: pa.DataType) -> None:
    with pytest.raises(SettingsError, match=f"column {name} of the schema has the type"):
        LineRows(table="public.t", schema=pa.schema([(name, kind)]))


def test_a_change_that_cannot_be_read_is_a_row_without_values() -> None:
    schema = pa.schema(
        {
            "id": pa.int32(),
            "_operation": pa.string(),
            "_corrupt": pa.string(),
            "_sequence": pa.string(),
        }
    )
    lost = {
        "backend": "b", "partition": "b", "cursor": "7", "ordinal": 1, "event_id": "b:7:1",
        "operation": "ERROR", "relation_id": 5, "after": '{"reason": "broken"}',
    }  # fmt: skip
    relation = {"schema": "public", "table": "t", "relation_id": 5, "version": None, "types": {},
                "columns": [{"name": "id", "type": 23, "modifier": -1, "key": True}]}  # fmt: skip
    row = {**lost, "operation": "INSERT", "ordinal": 0, "key": "1", "after": "1",
           "delta": json.dumps(relation)}  # fmt: skip
    columns = change_schema("text")
    batch = pa.RecordBatch.from_pylist([row, lost], columns)
    typed = LineRows(table="public.t", schema=schema)
    found = [each for made in typed.of_page([batch], [batch]) for each in made.to_pylist()]
    assert found == [
        {"id": 1, "_operation": "INSERT", "_corrupt": None, "_sequence": "7:0000000000"},
        {
            "id": None, "_operation": "ERROR", "_corrupt": '{"reason": "broken"}',
            "_sequence": "7:0000000001",
        },
    ]  # fmt: skip
