"""Preflight of the destination: what would keep rows out of it, or make them different."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from typing import Any

from psycopg import sql

from penstock.model.errors import PenstockError, SettingsError
from penstock.model.finding import Finding, failed, finding
from penstock.model.position import PartitionId
from penstock.model.table_schema import TableSchema
from penstock.process.postgres_url import server_name
from penstock.sinks.tables.fitness import (
    made_relation,
    narrower,
    taken,
    unfit,
    unset,
    wrong_expressions,
)
from penstock.sinks.tables.settings import MappedTable, TableSinkSettings
from penstock.sinks.tables.source_table import SourceTable, relation_of
from penstock.sinks.tables.table_map import TableMap
from penstock.tables.database import TableDatabase
from penstock.tables.history import StagedHistory
from penstock.tables.lines import NOTHING, SourceRelation
from penstock.tables.staged import META, Destination, StagedRows, mentions


def check(settings: TableSinkSettings) -> Iterator[Finding]:
    """Findings about the destination, without its sources."""
    database = settings.database()
    try:
        with closing(database.connect()) as connection, database.translated("checking"):
            yield finding("ok", f"sink {settings.type}", "the destination answers")
            yield from database.check(connection, None)
            shared = Counter((each.target_schema, each.target) for each in settings.tables())
            for table in settings.tables():
                is_shared = shared[table.target_schema, table.target] > 1
                yield from _check_target(connection, database, table, is_shared=is_shared)
    except PenstockError as error:
        yield failed(f"sink {settings.type}", error)


def check_tables(
    settings: TableSinkSettings, backend: str, schemas: Sequence[TableSchema],
    partitions: Sequence[PartitionId],
) -> Iterator[Finding]:  # fmt: skip
    """Findings about tables of a backend, as its source has them, and their targets."""
    database, table_map = settings.database(), TableMap(settings)
    try:
        with closing(database.connect()) as connection, database.translated("checking"):
            found: dict[Finding, None] = {}  # sources have much in common
            absent = {each.source for each in settings.tables(backend) if each.options.partitions}
            for schema in schemas:
                table = table_map.mapped(backend, schema.schema, schema.table)
                if table is not None:
                    absent.discard(table.source)
                    found |= dict.fromkeys(_check_columns(connection, database, table, schema))
            yield from found
            for name in sorted(absent):
                yield finding(
                    "error", f"table {name} of {backend}", "no table matches `partitions`",
                    "create one, or correct `partitions`", code="tables.table-missing",
                )  # fmt: skip
            ours = {
                (each.sid, each.table) for each in database.ledger(connection.cursor()).tables()
                if each.backend == backend and (each.row.is_ours or each.row.is_live)
            }  # fmt: skip
            for table in settings.tables(backend) if partitions else ():
                for sid in partitions:
                    if table.options.existing == "refuse" and (sid, table.source) not in ours:
                        yield from _check_rows(connection, database, SourceTable(table, sid, 0))
    except PenstockError as error:
        yield failed(f"sink {settings.type}", error)


def left_sources(database: TableDatabase, backend: str) -> Collection[str]:
    """Sources of a backend that have left, and whose slots can be no other source's."""
    with closing(database.connect()) as connection, database.translated("checking"):
        tables = database.ledger(connection.cursor()).tables()
    followed = {(each.backend, each.sid) for each in tables if each.row.is_followed}
    kept = {slot for db, sid in followed for slot in (sid, server_name(db, sid))}
    sids = {each.sid for each in tables if each.backend == backend} - {
        sid for db, sid in followed if db == backend
    }
    return sorted(sid for sid in sids if server_name(backend, sid) not in kept)


def _check_rows(connection: Any, database: TableDatabase, table: SourceTable) -> Iterator[Finding]:
    """Rows that would keep a table from its first load."""
    mapped = table.mapped
    found = database.find(connection, mapped.target_schema, mapped.target)
    if found is not None:
        staged = database.staged(NOTHING, found, mapped.mapping(table.sid, found))
        if staged.has_rows(connection.cursor()):
            yield failed(f"target {table.target}", table.occupied)


def _check_target(
    connection: Any, database: TableDatabase, table: MappedTable, *, is_shared: bool
) -> Iterator[Finding]:
    subject = f"target {table.target_schema}.{table.target}"
    if (found := database.find(connection, table.target_schema, table.target)) is None:
        if not table.options.create:
            yield finding(
                "error", subject, f"it does not exist, and {table.source} goes there",
                "create it, or set `create: true` for the table in the map",
                code="tables.target-missing",
            )  # fmt: skip
        return
    if is_shared and table.mapping("", found).sid is None:
        yield finding(
            "error", subject,
            f"several tables of the map go there, and it has no column {table.sid_column}",
            f"add a column {table.sid_column} to it and to its key, or give each table a target of"
            " its own",
            code="tables.sid-missing",
        )  # fmt: skip
    yield from database.check(connection, found)


def _check_columns(
    connection: Any, database: TableDatabase, table: MappedTable, schema: TableSchema
) -> Iterator[Finding]:
    options, source = table.options, f"table {table.source} of {table.backend}"
    relation, cursor = relation_of(schema), connection.cursor()
    target = database.find(connection, table.target_schema, table.target)
    try:
        found = target or to_be_made(cursor, database, table, relation)
    except SettingsError as problem:
        yield failed(source, problem)
        return
    if unknown := sorted({*(options.columns or ())} - {*relation.names}):
        yield finding(
            "error", source, f"it has no column {', '.join(unknown)}", "correct `columns`",
            code="tables.column-missing",
        )  # fmt: skip
    if target or options.create:
        yield from (failed(source, problem) for problem in unset(table, found))
    staged = database.staged(relation, found, table.mapping("", found), periods=table.periods)
    adds = table.follows_columns(is_made=_is_made(database, cursor, table, found))
    there = [*found.columns, *(relation.names if adds else ())] if target or options.create else ()
    problems = [*taken(table, relation, there), *unfit(staged)]
    yield from (failed(source, problem) for problem in problems)
    if not problems and not relation.key and staged.finds_rows:
        yield finding(
            "warning", source, "it has no key: each batch reads its whole target once",
            "give it a primary key", code="tables.key-missing",
        )  # fmt: skip
    is_sound = target is not None and not problems
    if is_sound and isinstance(staged, StagedHistory) and not staged.has_open_index(connection):
        yield finding(
            "warning", source, f"{found.schema}.{found.table} has no index of its open versions:"
            " TRUNCATE, and reading what is current, take as long as there are old ones",
            f"{staged.open_index.as_string(None)};", code="tables.index-missing",
        )  # fmt: skip
    if is_sound:
        yield from _check_left_out(connection, database, table, relation, found)
        narrow = narrower(cursor, database, staged, schema)
        yield from (failed(source, problem) for problem in narrow)
    yield from _check_generated(source, table, schema, found)
    if table.options.type == "clone" and not schema.sends_deletes:
        yield finding(
            "warning", source, f"its changes have no deletes: {table.full_target} keeps rows that"
            " are gone at the source",
            "follow it in the mode all_versions_and_deletes; or write `type: append`, which says"
            " so; `penstock reload` leaves out what is gone by then",
            code="tables.deletes-unsent",
        )  # fmt: skip
    wrong = [*wrong_expressions(cursor, database, staged)]
    yield from (failed(source, problem) for problem in wrong)
    if unsent := [] if wrong or schema.sends_all else _may_be_unsent(connection, database, staged):
        yield finding(
            "warning", source, f"`set` or `filter` needs {', '.join(unsent)}: a change without a"
            " large value that stayed as it was becomes a dead letter (unsent-value)",
            f"ALTER TABLE {schema.schema}.{schema.table} REPLICA IDENTITY FULL;",
            code="tables.value-unsent",
        )  # fmt: skip


def _is_made(database: TableDatabase, cursor: Any, table: MappedTable, found: Destination) -> bool:
    ledger = database.ledger(cursor)
    return found.is_made or (ledger.is_there() and ledger.is_made(table.full_target))


def to_be_made(
    cursor: Any, database: TableDatabase, table: MappedTable, relation: SourceRelation
) -> Destination:
    """The target that is missing, as `create` would make it. Raises SettingsError."""
    relation = made_relation(cursor, database, relation, table.options.set)
    kinds, key = database.shape(cursor, relation, periods=table.periods, sid_column=table.made_sid)
    return Destination(
        schema=table.target_schema, table=table.target, columns=kinds, primary=frozenset(key),
        keys=frozenset([frozenset(key)]), is_made=True,
    )  # fmt: skip


def _check_generated(
    source: str, table: MappedTable, schema: TableSchema, found: Destination
) -> Iterator[Finding]:
    """Columns that changes lack, and that the target does not compute."""
    options, plain = table.options, found.columns.keys() - found.generated
    lacking = [
        name for name in schema.unsent
        if name in plain and (options.columns or [name]).count(name) and not options.set
    ]  # fmt: skip
    if lacking:
        yield finding(
            "warning", source, f"the source computes {', '.join(lacking)}, and does not send it:"
            f" it stays null in {table.full_target}",
            "make it GENERATED there, or name the others in `columns`; or, from PostgreSQL 18"
            " on, ALTER PUBLICATION <its name> SET (publish_generated_columns = stored);",
            code="tables.column-generated",
        )  # fmt: skip


def _may_be_unsent(connection: Any, database: TableDatabase, staged: StagedRows) -> list[str]:
    """The columns whose values expressions need, and neither each change nor the target may have:
    one that the target keeps is lacking where a row comes into the filter."""
    mapping, cursor, names = staged.mapping, connection.cursor(), staged.relation.names
    texts = [each for each in mapping.computed.values() if each.strip().strip('"') not in names]
    return [
        each.name for each in staged.relation.columns[len(META) :]  # after those
        if not each.is_key and (mapping.filter or each.name not in staged.kept)
        and any(mentions(text, each.name) for text in (*texts, mapping.filter))
        and database.may_be_large(cursor, each)
    ]  # fmt: skip


def _check_left_out(
    connection: Any, database: TableDatabase, table: MappedTable, relation: SourceRelation,
    found: Destination,
) -> Iterator[Finding]:  # fmt: skip
    """Columns that the target lacks."""
    options, cursor = table.options, connection.cursor()
    wanted = [
        each for each in relation.columns
        if each.name not in found.columns and (options.columns or [each.name]).count(each.name)
    ]  # fmt: skip
    is_made = _is_made(database, cursor, table, found)
    if options.set or table.follows_columns(is_made=is_made) or not wanted:
        return
    names = ", ".join(each.name for each in wanted)
    adds = sql.SQL(", ").join(
        sql.SQL("ADD COLUMN {} {}").format(
            sql.Identifier(each.name), sql.SQL(database.type_at(cursor, each))
        )
        for each in wanted
    )
    statement = sql.SQL("ALTER TABLE {} {};").format(
        sql.Identifier(found.schema, found.table), adds
    )
    waits = "it waits for" if options.schema_changes == "ask" else "left out are"
    yield finding(
        "warning", f"table {table.source} of {table.backend}",
        f"{found.schema}.{found.table} lacks columns, and {waits} {names}",
        f"{statement.as_string(None)} or `schema_changes: add`", code="tables.columns-left-out",
    )  # fmt: skip
