"""Cutting a table into ranges, and the query that reads one. Pure: SQL goes out, rows come in.

A table with a primary key is cut by it: rows do not move between ranges. One without is cut by the
numbers of its pages (before PostgreSQL 14 not at all), and a partitioned one leaf by leaf.
Keys are compared by the server only, by the operators of the key's index under the collation of
their columns, and travel as text. No name in these statements, but those in a request's `where`,
depends on the search_path: an operator that is found by name may have another order.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

from psycopg import sql

from penstock.feeds.postgres.failures import is_wrong_statement
from penstock.model.errors import PenstockError, SettingsError

_BLOCK = 8192  # what servers are built with, unless told otherwise; ranges need not be exact
_PAGES_FOR_A_BOUND = 20  # that are sampled
_SIGNS = "<", "<=", "=", ">=", ">"
_LEAST_ROWS = 100  # of a range: a statement for each row would cost more than it saves

_PIECE = re.compile(r"""'[^']*'|"[^"]*"|--|/\*|[^'"]""")
# A backslash may escape a quote; `$` begins a quoted text, outside of one.
_REFUSED = {"--": "comments", "/*": "comments", ";": "semicolons", "$": "dollar signs"}
_HINT = "correct `where`: an SQL condition over the columns of this table"


class TableRange(TypedDict, total=False):
    """A part of a table, as JSON. By key: the rows `after` one key and up to and including `to`
    another, `since`: only those that this transaction id or later ones wrote. By pages: those of
    `leaf` (`schema.table`, quoted) from `first` to before `stop`. What is left out is open. `most`:
    the first rows by the key, so many, or any where there is none."""

    after: list[str]
    to: list[str]
    since: str
    leaf: str
    first: int
    stop: int
    most: int


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the primary key: `kind` is its type, `operators` are `<`, `<=`, `=`, `>=`, `>` of
    its index. Both with their schemas, as SQL."""

    name: str
    kind: str
    operators: tuple[str, str, str, str, str]

    @property
    def quoted(self) -> sql.Identifier:
        return sql.Identifier(self.name)

    def compared(self, sign: str, value: sql.Composable) -> sql.Composed:
        """With a value, by the operator that is usually called so."""
        operator = sql.SQL(self.operators[_SIGNS.index(sign)])
        return sql.SQL("{} {} {}").format(self.quoted, operator, value)

    def value(self, text: str) -> sql.Composed:
        return sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(self.kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A table as its publication sends it. `key`: the primary key, where rows can be sorted by it.
    `filter` (the publication's) and `where` (the request's): SQL expressions, or ""."""

    schema: str
    table: str
    columns: tuple[str, ...]
    key: tuple[KeyColumn, ...]
    filter: str
    is_partitioned: bool
    where: str = ""

    @property
    def quoted(self) -> sql.Composed:
        """What to select from: without tables that inherit, which are tables of their own."""
        only = sql.SQL("") if self.is_partitioned else sql.SQL("ONLY ")
        return only + sql.Identifier(self.schema, self.table)


def rows_in_range(rows: int, size: int, *, count: int, weight: int) -> int:
    """How many rows a range shall have: at most `rows`, and about `size` bytes, of a table of
    `count` rows that takes `weight` bytes with its TOAST."""
    each = max(1, weight // max(1, count))
    return max(min(rows, size // each), min(rows, _LEAST_ROWS))


def count_query(table: Published) -> sql.Composed:
    return sql.SQL("SELECT pg_catalog.count(*) FROM {}{}").format(table.quoted, _where([], table))


def probe_query(table: Published) -> sql.Composed:
    """Fails where the conditions cannot be understood."""
    return sql.SQL("SELECT FROM {}{} LIMIT 0").format(table.quoted, _where([], table))


def bounds_query(table: Published, rows: int) -> sql.Composed:
    """The key of every `rows`-th row, as texts, in the order of the key."""
    return sql.SQL(
        "SELECT {texts} FROM (SELECT {key}, pg_catalog.row_number() OVER (ORDER BY {order})"
        " AS penstock_number FROM {table}{where}) numbered"
        " WHERE pg_catalog.mod(penstock_number, {rows}::pg_catalog.int8) OPERATOR(pg_catalog.=)"
        " 0::pg_catalog.int8 ORDER BY penstock_number"
    ).format(
        texts=_texts(table), key=_key(table), order=_order(table), table=table.quoted,
        where=_where([], table), rows=sql.Literal(rows),
    )  # fmt: skip


def sample_query(table: Published, percent: float) -> sql.Composed:
    """The keys of the rows in so many of a hundred pages, as texts, in the order of the key."""
    return sql.SQL(
        "SELECT {texts} FROM (SELECT {key} FROM {table} TABLESAMPLE pg_catalog.system({percent})"
        "{where}) sampled ORDER BY {order}"
    ).format(
        # Without the name of what is selected from, the texts would be sorted.
        order=_order(table, "sampled"), texts=_texts(table), key=_key(table), table=table.quoted,
        where=_where([], table), percent=sql.Literal(percent),
    )  # fmt: skip


def _key(table: Published) -> sql.Composed:
    return sql.SQL(", ").join(column.quoted for column in table.key)


def _texts(table: Published) -> sql.Composed:
    """As the types' input reads them: a cast to text may be a function of its own."""
    text = sql.SQL("pg_catalog.format('%s', {})")
    return sql.SQL(", ").join(text.format(column.quoted) for column in table.key)


def _order(table: Published, *source: str) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.SQL("{} USING {}").format(
            sql.Identifier(*source, column.name), sql.SQL(column.operators[0])
        )
        for column in table.key
    )


def sample_percent(size: int, *, heap: int, weight: int) -> float:
    """How much of a table of `heap` bytes, `weight` with TOAST, gives ranges of `size` bytes."""
    pages = max(1, heap // _BLOCK)
    return min(100.0, 100.0 * _PAGES_FOR_A_BOUND * (1 + weight // size) / pages)


def sampled_bounds(
    keys: Sequence[Sequence[str]], percent: float, *, rows: int, size: int, weight: int
) -> list[Sequence[str]]:
    """Of the sampled keys, those between ranges of about `rows` rows or `size` bytes."""
    count = round(len(keys) * 100 / percent)
    ranges = max(1, count // rows_in_range(rows, size, count=count, weight=weight))
    return [keys[number * len(keys) // ranges] for number in range(1, ranges) if keys]


def key_ranges(bounds: Sequence[Sequence[str]]) -> list[TableRange]:
    """The ranges between the bounds; what comes after the last one is a range, too."""
    found: list[TableRange] = []
    for number, bound in enumerate([*bounds, None]):
        one: TableRange = {"after": list(bounds[number - 1])} if number else {}
        if bound is not None:
            one["to"] = list(bound)
        found.append(one)
    return found


def written_since(ranges: Sequence[TableRange], xid: int) -> list[TableRange]:
    """Of these ranges, in the order of the key and joined, the rows written by `xid` or later."""
    found: list[TableRange] = []
    for one in ranges:
        if found and "to" in found[-1] and one.get("after") == found[-1]["to"]:
            del found[-1]["to"]
            if "to" in one:
                found[-1]["to"] = one["to"]
        else:
            found.append({**one, "since": str(xid % 2**32)})
    return found


def page_ranges(leaves: Sequence[tuple[str, int, int]], size: int) -> Iterator[TableRange]:
    """Of leaves (name, bytes of the heap, bytes with TOAST): about `size` bytes each. The last one
    of a leaf is open: pages may have come since."""
    for leaf, heap, weight in leaves:
        pages = heap // _BLOCK
        step = max(1, size * heap // max(1, weight) // _BLOCK)
        for first in range(0, pages, step):
            one: TableRange = {"leaf": leaf, "first": first}
            if first + step < pages:
                one["stop"] = first + step
            yield one


def range_query(table: Published, part: TableRange) -> sql.Composed:
    """The rows of a range, with the columns that the publication sends, in their order."""
    columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
    if "leaf" in part:
        source: Any = sql.SQL("ONLY ") + sql.SQL(part["leaf"])  # quoted by the server
        conditions = [
            sql.SQL("ctid OPERATOR(pg_catalog.{}) {}::pg_catalog.tid").format(
                sql.SQL(sign), sql.Literal(f"({page},0)")
            )
            for sign, page in ((">=", part.get("first")), ("<", part.get("stop")))
            if page is not None
        ]
        return sql.SQL("SELECT {} FROM {}{}").format(columns, source, _where(conditions, table))
    compared = [
        _compared(table.key, sign, key)
        for sign, key in ((">", part.get("after")), ("<=", part.get("to")))
        if key is not None
    ]
    if "since" in part:
        age = sql.SQL(
            "pg_catalog.age(xmin) OPERATOR(pg_catalog.<=) pg_catalog.age({}::pg_catalog.xid)"
        )
        compared.append(age.format(sql.Literal(part["since"])))
    where = _where(compared, table)
    if "most" in part:
        if table.key:
            where += sql.SQL(" ORDER BY ") + _order(table)
        where += sql.SQL(" LIMIT {}").format(sql.Literal(part["most"]))
    return sql.SQL("SELECT {} FROM {}{}").format(columns, table.quoted, where)


def _compared(columns: Sequence[KeyColumn], sign: str, key: Sequence[str]) -> sql.Composable:
    values = [column.value(text) for column, text in zip(columns, key, strict=True)]
    if len({column.operators for column in columns}) == 1:
        # Row-wise, which an index answers.
        names = sql.SQL(", ").join(column.quoted for column in columns)
        operator = sql.SQL(columns[0].operators[_SIGNS.index(sign)])
        return sql.SQL("({}) {} ({})").format(names, operator, sql.SQL(", ").join(values))
    # A comparison of rows has one operator. Of this an index answers the first condition.
    bound = sql.SQL("{} AND ({})")
    first = columns[0].compared(sign[0] + "=", values[0])
    return bound.format(first, _spelled_out(columns, sign, values))


def _spelled_out(
    columns: Sequence[KeyColumn], sign: str, values: Sequence[sql.Composable]
) -> sql.Composable:
    column, value = columns[0], values[0]
    if len(columns) == 1:
        return column.compared(sign, value)
    return sql.SQL("{} OR {} AND ({})").format(
        column.compared(sign[0], value),
        column.compared("=", value),
        _spelled_out(columns[1:], sign, values[1:]),
    )


def _where(conditions: Sequence[sql.Composable], table: Published) -> sql.Composable:
    filters = [sql.SQL("(" + text + ")") for text in (table.filter, table.where) if text]
    every = [*conditions, *filters]
    return sql.SQL(" WHERE ") + sql.SQL(" AND ").join(every) if every else sql.SQL("")


def checked_condition(where: str) -> str:
    """The condition itself, which is SQL that is written into our statements. The server judges
    what it means; here it is only made sure that it is one expression: that it can neither close
    the parentheses around it nor begin another statement. Raises SettingsError."""
    depth = end = 0
    for piece in _PIECE.finditer(where):
        if piece.start() != end:
            break  # at a quote that is not closed
        end = piece.end()
        if refused := _REFUSED.get(piece[0]):
            raise _refused(f"{refused} outside of quotes")
        if "\\" in piece[0] or "\0" in piece[0]:
            raise _refused("backslashes")
        depth += (piece[0] == "(") - (piece[0] == ")")
        if depth < 0:
            break
    if end != len(where) or depth:
        raise SettingsError(
            "the condition of the request has a quote or a parenthesis without its other one",
            "postgres",
            hint=_HINT,
        )
    return where


@contextmanager
def blaming(where: str) -> Iterator[None]:
    """Blames the condition for what the server finds wrong with a statement: ours are right."""
    try:
        yield
    except PenstockError as error:
        writes = "in a read-only transaction" in error.message
        if not where or not (writes or is_wrong_statement(error)):
            raise
        raise SettingsError(error.message, error.code, hint=_HINT) from error


def _refused(what: str) -> SettingsError:
    return SettingsError(f"the condition of the request has {what}", "postgres", hint=_HINT)
