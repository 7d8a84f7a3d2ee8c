"""The rows of each published table and of its copy, as text: `t::text` where the copy has the
source's type, else the form that messages have.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from tests.consumer.mirror.recipes import ODD

_SESSION = (
    "SET datestyle = ISO; SET timezone = 'UTC'; SET intervalstyle = postgres; SET lc_monetary = 'C'"
)
# As the publication sends them. PostgreSQL 15 lists generated columns, too, which it does not send.
_PUBLISHED = """
SELECT p.schemaname, p.tablename, coalesce(p.rowfilter, 'true'), json_object_agg(a.attname,
    CASE t.typtype WHEN 'd' THEN format_type(t.typbasetype, -1)
                   WHEN 'e' THEN 'text' ELSE format_type(a.atttypid, -1) END ORDER BY a.attnum)
FROM pg_publication_tables p
JOIN pg_attribute a ON a.attrelid = format('%I.%I', p.schemaname, p.tablename)::regclass
    AND a.attname = ANY (p.attnames) AND NOT a.attisdropped
    AND (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000)
JOIN pg_type t ON t.oid = a.atttypid
WHERE p.pubname = 'p' GROUP BY 1, 2, 3 ORDER BY 1, 2
"""
_COLUMNS = """
SELECT attname, format_type(atttypid, -1) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""
_TYPES = {
    "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
}  # fmt: skip

Rows = Counter[tuple[str | None, ...]]


@dataclass(frozen=True, slots=True)
class Published:
    """A table as consumers see it; `columns` have their types, of domains what is below them."""

    schema: str
    table: str
    filter: str
    columns: Mapping[str, str]

    @property
    def copy(self) -> str:
        return self.table if self.schema == "public" else f"{self.schema}_{self.table}"


def differences(source: str, target: str, table: str = "") -> list[str]:
    """One line for each published table (or this one, by its name in the target) whose copy in the
    target is another; for one that changes meanwhile the line may be wrong."""
    with psycopg.connect(source) as connection, closing(_opened(target)) as copies:
        connection.execute(_SESSION)
        tables = [Published(*row) for row in connection.execute(_PUBLISHED).fetchall()]
        chosen = [each for each in tables if table in ("", each.copy)]
        assert chosen, f"{table} is not published"
        return [line for each in chosen for line in _differences(connection, copies, each)]


def _differences(connection: Any, copies: Any, table: Published) -> Iterator[str]:
    there = _columns(copies, table.copy)
    if not there:
        yield f"{table.copy} is not there"
        return
    # A column comes and goes with the next change of its table, if no row has a value in it.
    missing = [name for name in table.columns if name not in there]
    if filled := [name for name in missing if _has_values(connection, table, name)]:
        yield f"{table.copy}: the copy has {[*there]}, without {filled}"
        return
    common = {name: type_ for name, type_ in table.columns.items() if name in there}
    table = replace(table, columns=common)
    translated = {name for name, type_ in there.items() if type_ in ("", "text")}
    mine = Counter(
        tuple(
            _translated(type_, text) if name in translated else text
            for text, (name, type_) in zip(row, table.columns.items(), strict=True)
        )
        for row in connection.execute(_selected(table, translated)).fetchall()
    )
    theirs = _copied(copies, table, translated)
    lost, wrong = sorted(mine - theirs, key=str), sorted(theirs - mine, key=str)
    if not lost and not wrong:
        return
    yield (
        f"{table.copy}: {mine.total()} rows, the copy {theirs.total()}; missing {lost[:1]},"
        f" too many {wrong[:1]}"
    )[:600]
    for row, other in ((row, other) for row in lost for other in wrong if row[0] == other[0]):
        pairs = zip(table.columns, row, other, strict=True)
        yield f"{table.copy}: {[pair for pair in pairs if pair[1] != pair[2]]}"[:300]


_LISTED = "CASE WHEN {0}::text LIKE '[%' THEN {0}::text ELSE to_json({0}::text[])::text END"


def _selected(table: Published, translated: set[str]) -> sql.Composed:
    """An array as messages have it: as a list, or its text where it has other bounds."""
    columns = [
        sql.SQL(_LISTED if name in translated and "[]" in type_ else "{0}::text").format(
            sql.Identifier(name)
        )
        for name, type_ in table.columns.items()
    ]
    return sql.SQL("SELECT {} FROM {} WHERE ").format(
        sql.SQL(", ").join(columns), sql.Identifier(table.schema, table.table)
    ) + sql.SQL(table.filter)  # type: ignore[arg-type]


def _has_values(connection: Any, table: Published, column: str) -> bool:
    one = _selected(replace(table, columns={column: "text"}), set())
    return any(row != (None,) for row in connection.execute(one))


def _opened(target: str) -> Any:
    if target.startswith("sqlite"):
        return sqlite3.connect(target.removeprefix("sqlite:///"), timeout=30)
    connection = psycopg.connect(target)
    connection.execute(_SESSION)
    return connection


def _columns(copies: Any, table: str) -> dict[str, str]:
    """Their types; "" in SQLite."""
    if isinstance(copies, sqlite3.Connection):
        rows = copies.execute("SELECT name, '' FROM pragma_table_info(?)", [table]).fetchall()
    else:
        rows = copies.execute(_COLUMNS, [sql.Identifier(table).as_string(None)]).fetchall()
    return dict(rows)


def _copied(copies: Any, table: Published, translated: set[str]) -> Rows:
    if not isinstance(copies, sqlite3.Connection):
        whole = Published("public", table.copy, "true", table.columns)
        selected = _selected(whole, set())
        return Counter(
            tuple(
                _plain(type_, text) if name in translated else text
                for text, (name, type_) in zip(row, table.columns.items(), strict=True)
            )
            for row in copies.execute(selected).fetchall()
        )
    names = ", ".join('"' + name.replace('"', '""') + '"' for name in table.columns)
    copy = table.copy.replace('"', '""')
    return Counter(
        tuple(map(_plain, table.columns.values(), row))
        for row in copies.execute(f'SELECT {names} FROM "{copy}"')
    )


def _translated(type_: str, text: str | None) -> str | None:
    """A value of the source, as messages write it, in the form that `_plain` gives."""
    if text is None:
        return None
    match type_:
        case "boolean":
            return str(int(text == "true"))
        case "bytea":
            return text.removeprefix("\\x")
        case "double precision" | "real":
            return repr(float(text)) if text[-1:].isdigit() else text
        case "interval" | "date" | "timestamp without time zone" | "timestamp with time zone":
            short = _TYPES.get(type_, type_)
            return ODD[short].get(text) or text
    return _plain(type_, text)


def _plain(type_: str, value: Any) -> str | None:
    """A value of a file of SQLite, or of a text column."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return repr(value)
    if type_ in ("json", "jsonb"):
        return _json(str(value), "number ")
    if type_.endswith("[]"):
        return _json(str(value), "")
    return str(value)


def _json(text: str, number: str) -> str:
    """With the digits of numbers, apart from strings where `number` is a word."""

    def numbered(digits: str) -> str:
        return number + digits

    try:
        found = json.loads(
            text, parse_int=numbered, parse_float=numbered, parse_constant=numbered,
            object_pairs_hook=list,
        )  # fmt: skip
    except ValueError:
        return f"no JSON: {text}"
    return json.dumps(found)
