"""What keeps rows of a source's table out of its target, or would make them others there: each is
the error that the table waits with, and that `check` finds before."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from psycopg import sql

from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.table_schema import TableSchema
from penstock.sinks.tables.settings import MappedTable
from penstock.tables.database import TableDatabase
from penstock.tables.drift import rounds, widens
from penstock.tables.history import OWN_NAMES as OF_VERSIONS
from penstock.tables.history import StagedHistory
from penstock.tables.lines import (
    NULL,
    UNSENT,
    LineChange,
    RelationColumn,
    SourceRelation,
    own_type,
)
from penstock.tables.staged import META, OWN_SID, Destination, StagedRows
from penstock.tables.staged import OWN_NAMES as OF_EXPRESSIONS

_ELEMENTS = "SELECT e FROM unnest(%s::text[]) v, unnest(v::text[]) e WHERE e IS NOT NULL"


def unfit(staged: StagedRows) -> Iterator[SettingsError]:
    """What is wrong with the target's key, and a history's columns."""
    found, key = staged.destination, staged.unique
    target = f"{found.schema}.{found.table}"
    problems = [*staged.problems()]
    yield from problems
    problem = staged.lacks if isinstance(staged, StagedHistory) else ""
    if problem:
        yield SettingsError(f"{target}: {problem}", "tables", hint="see docs/how-to/history.md")
    missing = [name for name in key if name not in found.columns]
    if not staged.written and (
        staged.relation.columns or found.columns.keys() - staged.mapping.own
    ):
        yield SettingsError(
            f"{target} has none of its columns",
            "tables",
            hint="add them to the target, or write `set` in the map",
        )
    elif missing and not (problem or problems):
        yield SettingsError(
            f"{target} has no column {', '.join(missing)}, which is in the key",
            "tables",
            hint="add it to the target, or map the table with `set`",
        )
    if missing or not staged.written or not staged.key or frozenset(key) in found.keys:
        return
    names = ", ".join(key)
    if frozenset(key) in found.deferrable:
        yield SettingsError(
            f"the key ({names}) of {target} is DEFERRABLE, and ON CONFLICT cannot use it",
            "tables.key-deferrable",
            hint=f"ALTER TABLE {target} DROP CONSTRAINT <its name>, ADD PRIMARY KEY ({names});",
        )
    else:
        yield SettingsError(
            f"no unique index of {target} has exactly ({names})",
            "tables.no-unique-index",
            hint=staged.add_key.format(target=target, table=found.table, names=names),
        )


def taken(
    table: MappedTable, relation: SourceRelation, there: Collection[str]
) -> Iterator[SettingsError]:
    """Names that are penstock's, and a source's columns as well: one of the two would be lost.
    `there`: the columns of its target, now or soon."""
    options, names, sid = table.options, {*relation.names}, table.sid_column
    written = {*options.set} or names & {*(names if options.columns is None else options.columns)}
    history = table.periods.kinds.keys() if table.periods is not None else set[str]()
    if not options.set and sid in written and sid in there:
        yield SettingsError(
            f"the source's own column {sid} would be lost: that of {table.full_target} has the"
            " source's name",
            "tables.name-taken",
            hint="set `sink.sid_column` to a name that no table has, and call the target's column"
            " so where several sources flow there; or leave the source's out by `columns`, or say"
            " by `set` what becomes of it",
        )
    if clash := sorted(written & history):
        yield SettingsError(
            f"{', '.join(clash)} would be lost: columns of the history {table.full_target} are"
            " called so",
            "tables.name-taken",
            hint="give the history's columns other names: `sink.history`; or leave the source's out"
            " by `columns`",
        )
    own = (OF_EXPRESSIONS if options.set or options.filter else set()) | (
        OF_VERSIONS if history else set()
    )
    if clash := sorted(names & own):
        yield SettingsError(
            f"the source's columns {', '.join(clash)} have names of values that penstock adds"
            " (for `set` and `filter`, or to make versions)",
            "tables.name-taken",
            hint="rename them at the source, or leave them out of its publication",
        )


def narrower(
    cursor: Any, database: TableDatabase, staged: StagedRows, schema: TableSchema
) -> Iterator[SettingsError]:
    """Columns of a target that would not hold what their source has: digits would be lost in
    silence, or labels of an enum refused. What is only too large is refused as well, but each value
    may fit; `set` says itself what becomes of its values."""
    found, columns = staged.destination, staged.relation.columns
    target = sql.Identifier(found.schema, found.table).as_string(None)
    state = schema.state or {}
    shapes, types = state.get("shapes") or {}, state.get("types") or {}
    pairs = zip(columns[len(columns) - len(schema.columns) :], schema.columns, strict=True)
    for column, own in () if staged.mapping.computed else pairs:
        if column.name not in staged.written:
            continue
        kind, wide = found.columns[column.name], database.type_at(cursor, column)
        if rounds(wide, kind):
            name = sql.Identifier(column.name).as_string(None)
            yield SettingsError(
                f"{found.schema}.{found.table} would round {column.name}: it is {kind} there, and"
                f" {wide} at the source",
                "tables.target-rounds",
                hint=f"ALTER TABLE {target} ALTER COLUMN {name} TYPE {wide}; or `set` in the map",
            )
        oid, kind = own.get("type"), kind.removesuffix("[]")
        while inner := (types.get(str(oid)) or {}).get("inner"):  # of an array, or a domain
            oid = inner
        labels = (shapes.get(str(oid)) or {}).get("labels") or {}
        if labels and (known := database.labels(cursor, kind)):
            yield from _unknown(found, column.name, kind, {*labels.values()} - {*known})


def outgrown(
    cursor: Any, database: TableDatabase, staged: StagedRows, changes: Sequence[LineChange], *,
    narrow: Collection[str], causes: Collection[object],
) -> Iterator[SettingsError]:  # fmt: skip
    """What is wrong with columns whose source has got other values, where changes among these were
    refused by errors: new labels, and what is too large for those that are `narrow` since."""
    found, kinds = staged.destination, staged.kinds(cursor)
    target = sql.Identifier(found.schema, found.table).as_string(None)
    are_large = any(map(database.is_too_large, causes))
    for number, column in enumerate(reversed(staged.relation.columns), 1):
        name, kind = column.name, kinds[column.name]
        own = kind.removesuffix("[]")
        if own_type(column.oid) and (known := database.labels(cursor, own)):
            cells = {one.after.split("\t")[-number] for one in changes if one.after is not None}
            labels = {cell.replace("\\\\", "\\") for cell in cells - {NULL, UNSENT}}
            if own != kind:
                labels = {label for (label,) in cursor.execute(_ELEMENTS, [[*labels]])}
            yield from _unknown(found, name, own, labels - {*known})
        if not are_large or name not in narrow:
            continue
        kind, wide = found.columns.get(name, kind), database.type_at(cursor, column)
        if not widens(wide, kind):
            alter = sql.SQL("ALTER COLUMN {} TYPE {}").format(sql.Identifier(name), sql.SQL(wide))
            yield SettingsError(
                f"{found.schema}.{found.table} has no room for {name}: it is {kind} there, and"
                f" {wide} at the source now",
                "tables.target-narrow",
                hint=f"ALTER TABLE {target} {alter.as_string(None)};",
            )


def _unknown(
    found: Destination, column: str, kind: str, missing: Collection[str]
) -> Iterator[SettingsError]:
    labels = sorted(missing)
    if labels:
        yield SettingsError(
            f"{found.schema}.{found.table} does not know {', '.join(labels)} of {column}",
            "tables.label-missing",
            hint=" ".join(
                f"ALTER TYPE {kind} ADD VALUE {sql.Literal(each).as_string(None)};"
                for each in labels
            ),
        )


# An expression is one, and no part of another statement, if its server says so: it stands between
# parentheses and, in a statement of its own, between two words. What closes the one does not close
# the other.
_ONE = "SELECT CASE WHEN true THEN {0} END FROM {2} LIMIT 0"
_FORMS = ("SELECT CAST(({0}) AS {1}) FROM {2} LIMIT 0", _ONE)
_OF_FILTER = ("SELECT 1 FROM {2} WHERE ({0}) LIMIT 0", _ONE)


def wrong_expressions(
    cursor: Any, database: TableDatabase, staged: StagedRows
) -> Iterator[SettingsError]:
    """What is wrong with those that are not SQL over the source's columns; runs none of them.
    Raises Unavailable."""
    mapping, kinds = staged.mapping, staged.destination.columns
    source = _source(cursor, database, staged.relation)
    wanted = [
        (f"`set` of {name}", text, kinds.get(name, "text"))
        for name, text in mapping.computed.items()
    ]
    for what, text, kind in [*wanted, ("`filter`", mapping.filter, "boolean")]:
        try:
            for form in (_FORMS if what != "`filter`" else _OF_FILTER) if text else ():
                database.execute_one(
                    cursor, sql.SQL(form).format(sql.SQL(text), sql.SQL(kind), source)
                )
        except SettingsError as error:
            yield _no_sql(what, error)
        except database.error as error:
            found = database.translation(error, "reading")
            if isinstance(found, Unavailable):
                raise found from error
            yield _no_sql(what, found)


def _source(cursor: Any, database: TableDatabase, relation: SourceRelation) -> sql.Composed:
    """A row of the columns that expressions may use, for FROM."""
    columns = sql.SQL(", ").join(
        sql.SQL("CAST(NULL AS {}) AS {}").format(
            sql.SQL(database.type_at(cursor, each)), sql.Identifier(each.name)
        )
        for each in dict.fromkeys((OWN_SID, *META, *relation.columns))
    )
    return sql.SQL("(SELECT {}) AS source").format(columns)


def _no_sql(what: str, error: PenstockError) -> SettingsError:
    return SettingsError(
        f"{what} is not SQL over its columns: {error.message}", code="tables.expression",
        hint="correct it in the map",
    )  # fmt: skip


def made_relation(
    cursor: Any, database: TableDatabase, relation: SourceRelation, computed: Mapping[str, str]
) -> SourceRelation:
    """The columns that a target gets that penstock makes. Raises SettingsError for an expression
    that is not SQL over the source's columns."""
    if not (computed and database.makes_computed):
        return relation
    own = {each.name: each for each in relation.columns}
    source, columns = _source(cursor, database, relation), []
    wrong: list[SettingsError] = []
    for name, text in computed.items():
        column = own.get(text.strip().strip('"'))
        try:
            query = sql.SQL(_ONE).format(sql.SQL(text), None, source)
            kind = "" if column is not None else database.kind_computed(cursor, query)
        except SettingsError as error:
            wrong.append(_no_sql(f"`set` of {name}", error))
        else:
            columns.append((column or RelationColumn("", kind))._replace(name=name))
    if wrong:
        messages = "; ".join(each.message for each in wrong)
        raise SettingsError(messages, "tables.expression", hint=wrong[0].hint)
    return replace(relation, columns=tuple(columns))


def unset(table: MappedTable, found: Destination) -> Iterator[SettingsError]:
    """Columns of `set` that the target does not have."""
    if unknown := sorted({*table.options.set} - found.columns.keys()):
        yield SettingsError(
            f"{table.full_target} has no column {', '.join(unknown)}", "tables.column-missing",
            hint="correct `set`",
        )  # fmt: skip
