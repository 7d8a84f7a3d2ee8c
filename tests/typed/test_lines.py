"""Lines of COPY as typed columns, against what psycopg reads of the same rows."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from penstock.feeds import SnapshotWait
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.model.errors import SettingsError
from penstock.model.table_schema import TableSchema
from penstock.typed.lines import TableColumns, arrow_type, misfit_error, read_lines
from penstock.wire.pgoutput.values import SESSION
from tests.servers import Database
from tests.wire.kinds import KINDS, LIVE, LIVE_SETUP, Kind

ALL = [each for each in (*KINDS, *LIVE) if each.known_to(16)]
# Values of types that have a place for others only: dates and times without an end, of before the
# year 1 or after 9999, NaN among decimals, and arrays that are no lists.
MISFITS = {
    "date_bc", "date_1bc", "date_far", "date_inf", "date_1_bc", "date_10000", "date_minus_inf",
    "dates", "timestamp_bc", "timestamp_inf", "timestamp_1_bc", "timestamp_far",
    "timestamptz_bc", "timestamptz_far", "timestamptz_inf", "timestamptzs", "timestamps",
    "domain_time", "numerics", "ints_2d", "ints_3d", "ints_bounds", "ints_bounds_2d", "texts_2d",
    "boxes_bounds", "texts_bounds", "enums_bounds", "byteas_bounds", "jsonbs_2d",
}  # fmt: skip


@dataclass
class Server:
    database: Database
    schema: TableSchema

    def lines(self, *names: str) -> bytes:
        columns = ", ".join(names)
        with psycopg.connect(self.database.url, autocommit=True) as connection:
            for name, value in SESSION.items():
                connection.execute("SELECT set_config(%s, %s, false)", [name, value])
            query = f"COPY (SELECT {columns} FROM public.kinds ORDER BY id) TO STDOUT"
            with connection.cursor().copy(query) as copy:
                return b"".join(bytes(data) for data in copy)

    def texts(self, name: str) -> list[str | None]:
        with psycopg.connect(self.database.url, autocommit=True) as connection:
            for setting, value in SESSION.items():
                connection.execute("SELECT set_config(%s, %s, false)", [setting, value])
            found = connection.execute(f"SELECT format('%s', {name}), {name} IS NULL"
                                       " FROM public.kinds ORDER BY id")  # fmt: skip
            return [None if is_null else text for text, is_null in found]

    def values(self, name: str) -> list[Any]:
        statement = f"SELECT {name} FROM public.kinds ORDER BY id"
        return [value for (value,) in self.database.execute(statement)]


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    postgres = request.getfixturevalue("postgres")
    with postgres.database() as database:
        database.execute(LIVE_SETUP)
        columns = ", ".join(f"{each.name} {each.type}" for each in ALL)
        database.execute(f"CREATE TABLE kinds (id int PRIMARY KEY, {columns})")
        values = ", ".join(f"({each.sql})::{each.type}" for each in ALL)
        database.execute(f"INSERT INTO kinds SELECT 1, {values}; INSERT INTO kinds VALUES (2)")
        feed = PostgresFeed(PostgresSettings(connection=database.url))
        with feed.snapshot("public", "kinds", None, SnapshotWait(patience=10)) as taken:
            schema = taken.schema
        yield Server(database, schema)


def columns_of(server: Server, *names: str, **types: pa.DataType) -> TableColumns:
    whole = TableColumns.of(server.schema)
    fields = [(each, types.get(each, whole.schema.field(each).type)) for each in names]
    return TableColumns.of(server.schema, pa.schema(fields))


def read(columns: TableColumns, lines: bytes) -> list[Any]:
    """The columns of whole lines; what does not fit is raised."""
    found, misfits = read_lines(lines, columns.schema.names, columns.schema, columns.boxes)
    if misfits:
        raise misfit_error("public.kinds", columns.schema, misfits[0])
    return found


@pytest.mark.parametrize(
    "kind", [each for each in ALL if each.name not in MISFITS], ids=lambda each: each.name
)
def test_values_are_those_that_the_server_has(server: Server, kind: Kind) -> None:
    columns = columns_of(server, kind.name)
    (found,) = read(columns, server.lines(kind.name))
    assert found.type == columns.schema.types[0]
    value, nothing = found.to_pylist()
    assert nothing is None
    if pa.types.is_string(found.type):
        assert value == server.texts(kind.name)[0]
    elif pa.types.is_list(found.type) and pa.types.is_string(found.type.value_type):
        assert value == elements(server, kind.name)
    else:
        wanted = server.values(kind.name)
        if pa.types.is_list(found.type):
            of = f"SELECT e FROM public.kinds, unnest({kind.name}) AS e WHERE id = 1"
            wanted = [[each for (each,) in server.database.execute(of)]]
        assert str(pa.array([value], found.type)) == str(pa.array(wanted[:1], found.type))


def elements(server: Server, name: str) -> list[str | None]:
    """The elements as the server writes each."""
    with psycopg.connect(server.database.url, autocommit=True) as connection:
        for setting, value in SESSION.items():
            connection.execute("SELECT set_config(%s, %s, false)", [setting, value])
        found = connection.execute(
            f"SELECT format('%s', e), e IS NULL FROM public.kinds, unnest({name}) AS e WHERE id = 1"
        )
        return [None if is_null else text for text, is_null in found]


@pytest.mark.parametrize("name", sorted(MISFITS))
def test_what_does_not_fit_is_an_error_that_names_the_column_and_not_the_value(
    server: Server, name: str
) -> None:
    with pytest.raises(SettingsError, match=rf"public\.kinds.*{name} ") as caught:
        read(columns_of(server, "id", name), server.lines("id", name))
    assert caught.value.code == "typed.misfit"
    columns = columns_of(server, name, **{name: pa.string()})
    assert read(columns, server.lines(name))[0].to_pylist() == server.texts(name)


def test_all_columns_of_a_table_at_once(server: Server) -> None:
    names = [each.name for each in ALL if each.name not in MISFITS]
    columns = columns_of(server, *names)
    found = read(columns, server.lines(*names))
    assert [each.type for each in found] == columns.schema.types
    assert {len(each) for each in found} == {2}
    one = [read(columns_of(server, each), server.lines(each))[0] for each in names]
    assert [*map(str, found)] == [*map(str, one)]


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (b"\n\\N\n\\\\N\n", ["", None, "\\N"]),
        (b"\xef\xbb\xbfa\nb\n", ["\ufeffa", "b"]),
        (b'"a""\n\'b\n', ['"a""', "'b"]),
        (b"a\\tb\\nc\\rd\\\\e\\be\n", ["a\tb\nc\rd\\e\be"]),
        (b"NULL\nnull\nNaN\n#\n", ["NULL", "null", "NaN", "#"]),
        (b" a \n\xe2\x80\xa8\n", [" a ", "\u2028"]),
    ],
)
def test_text_comes_as_it_is(lines: bytes, wanted: list[str | None]) -> None:
    columns = TableColumns(pa.schema([("v", pa.string())]))
    assert read(columns, lines)[0].to_pylist() == wanted


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("numeric", pa.string()),
        ("numeric(38,38)", pa.decimal128(38, 38)),
        ("numeric(39,2)", pa.string()),
        ("numeric(3,-2)", pa.string()),
        ("numeric(2,5)", pa.string()),
        ("timestamp(3) with time zone", pa.timestamp("us", "UTC")),
        ("timestamp(0) without time zone[]", pa.list_(pa.timestamp("us"))),
        ("character varying(9)", pa.string()),
        ("numeric(5,2)[]", pa.list_(pa.decimal128(5, 2))),
        ("public.mood[]", pa.list_(pa.string())),
    ],
)
def test_types(name: str, wanted: pa.DataType) -> None:
    assert arrow_type(name) == wanted


def test_a_users_types_lose_nothing(server: Server) -> None:
    names = {
        "int4": pa.int64(), "numeric_scale": pa.decimal128(12, 2), "float4_minus_inf": pa.float64()
    }  # fmt: skip
    columns = columns_of(server, *names, **names)
    int4, numeric, real = (each.to_pylist()[0] for each in read(columns, server.lines(*names)))
    assert (int4, str(numeric), real) == (2147483647, "12.50", -math.inf)
    for name, wanted in [("int8", pa.int32()), ("timestamptz", pa.date32()), ("int4", pa.bool_()),
                         ("numeric_scale", pa.decimal128(12, 0))]:  # fmt: skip
        with pytest.raises(SettingsError, match=name):
            read(columns_of(server, name, **{name: wanted}), server.lines(name))


def test_a_column_that_the_table_has_not_is_named(server: Server) -> None:
    with pytest.raises(SettingsError, match="no column nothing"):
        TableColumns.of(server.schema, pa.schema([("nothing", pa.string())]))
