"""Preflight of the destination: what would keep rows out of it, or make them different."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg
from psycopg import sql

from penstock.model.errors import PenstockError
from penstock.model.finding import Finding, failed, finding
from penstock.model.position import PartitionId
from penstock.model.table_schema import TableSchema
from penstock.sinks.postgres.database import PostgresDatabase
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.sinks.tables.database import TableDatabase
from penstock.sinks.tables.settings import MappedTable
from penstock.sinks.tables.source_table import SourceTable, unfit
from penstock.sinks.tables.table_map import TableMap
from penstock.tables.history import StagedHistory
from penstock.tables.lines import RelationColumn, SourceRelation
from penstock.tables.staged import META, OWN_SID, SID, Destination, mentions
from penstock.tables.staging import StagedTable, find_destination, type_at

_NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
_LEDGER = """
SELECT CASE WHEN to_regnamespace(%s) IS NULL
            THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(%s, 'CREATE') OR to_regclass(%s) IS NOT NULL END
"""
_MAY_BE_LARGE = "SELECT typstorage <> 'p' FROM pg_catalog.pg_type WHERE oid = to_regtype(%s)"
_LACKING = """
SELECT p FROM unnest(%s::text[]) p WHERE NOT has_table_privilege(to_regclass(%s), p)
"""
# Foreign keys are triggers of the system's.
_RUNS = """
SELECT coalesce(string_agg(DISTINCT CASE WHEN t.tgisinternal THEN 'a foreign key'
                                         ELSE 'the trigger ' || t.tgname END, ', '), '')
FROM pg_catalog.pg_trigger t
WHERE t.tgrelid = to_regclass(%s) AND t.tgenabled IN ('O', 'A')
"""


def check(settings: PostgresSinkSettings) -> Iterator[Finding]:
    """Findings about the destination, without its sources."""
    database = PostgresDatabase(settings)
    try:
        with closing(database.connect()) as connection, database.translated("checking"):
            yield finding("ok", "sink postgres", "the destination answers")
            yield from _check_ledger(connection, settings)
            shared = Counter((each.target_schema, each.target) for each in settings.tables())
            for table in settings.tables():
                is_shared = shared[table.target_schema, table.target] > 1
                yield from _check_target(connection, settings, table, is_shared=is_shared)
    except PenstockError as error:
        yield failed("sink postgres", error)


def check_tables(
    settings: PostgresSinkSettings,
    backend: str,
    schemas: Sequence[TableSchema],
    partitions: Sequence[PartitionId],
) -> Iterator[Finding]:
    """Findings about tables of a backend, as its source has them, and their targets."""
    database = PostgresDatabase(settings)
    table_map = TableMap(settings, database)
    try:
        with closing(database.connect()) as connection, database.translated("checking"):
            for schema in schemas:
                table = table_map.mapped(backend, schema.schema, schema.table)
                if table is not None:
                    yield from _check_columns(connection, database, table, schema)
            ours = database.ledger.begun_tables(connection.cursor(), backend)
            for table in settings.tables(backend) if partitions else ():
                for sid in partitions:
                    if table.options.existing == "refuse" and (sid, table.source) not in ours:
                        yield from _check_rows(connection, database, SourceTable(table, sid, 0))
    except PenstockError as error:
        yield failed("sink postgres", error)


def _check_rows(connection: Any, database: TableDatabase, table: SourceTable) -> Iterator[Finding]:
    """Rows that would keep a table from its first load."""
    mapped, nothing = table.mapped, SourceRelation(schema="", table="", columns=())
    found = find_destination(connection, mapped.target_schema, mapped.target)
    if found is not None:
        staged = database.staged(mapped, table.sid, nothing, found)
        if staged.has_rows(connection.cursor()):
            problem = table.occupied
            yield failed(f"target {table.target}", problem)


def _check_ledger(connection: Any, settings: PostgresSinkSettings) -> Iterator[Finding]:
    name = sql.Identifier(settings.ledger).as_string(None)
    table = sql.Identifier(settings.ledger, "ledger").as_string(None)
    if not connection.execute(_LEDGER, [name, settings.ledger, table]).fetchone()[0]:
        yield finding(
            "error", f"schema {settings.ledger}", "the role may not make the ledger",
            f"CREATE SCHEMA {name} AUTHORIZATION <role>;",
        )  # fmt: skip


def _check_target(
    connection: Any, settings: PostgresSinkSettings, table: MappedTable, *, is_shared: bool
) -> Iterator[Finding]:
    subject = f"target {table.target_schema}.{table.target}"
    name = sql.Identifier(table.target_schema, table.target).as_string(None)
    found = find_destination(connection, table.target_schema, table.target)
    if found is None:
        if not table.options.create:
            yield finding(
                "error", subject, f"it does not exist, and {table.source} goes there",
                "create it, or set `create: true` for the table in the map",
            )  # fmt: skip
        return
    if lacking := [row[0] for row in connection.execute(_LACKING, [list(_NEEDED), name])]:
        remedy = f"GRANT {', '.join(lacking)} ON {name} TO <role>;"
        yield finding("error", subject, f"the role may not {', '.join(lacking)}", remedy)
    if is_shared and SID not in found.columns:
        yield finding(
            "error", subject, "several tables of the map go there, and it has no column sid",
            "add a column sid to it and to its key, or give each table a target of its own",
        )  # fmt: skip
    runs = connection.execute(_RUNS, [name]).fetchone()[0]
    if runs and not settings.replica_role:
        yield finding(
            "warning", subject, f"changes run {runs}",
            "sink.replica_role: true leaves triggers and foreign keys out",
        )  # fmt: skip


def _check_columns(
    connection: Any, database: PostgresDatabase, table: MappedTable, schema: TableSchema
) -> Iterator[Finding]:
    options, source = table.options, f"table {table.source} of {table.backend}"
    found = find_destination(connection, table.target_schema, table.target)
    if found is None:
        return
    relation = SourceRelation(
        schema=schema.schema, table=schema.table,
        columns=tuple(
            RelationColumn(each["name"], each["data_type"], bool(each["key"]))
            for each in schema.columns
        ),
    )  # fmt: skip
    if unknown := sorted({*(options.columns or ())} - {*relation.names}):
        yield finding("error", source, f"it has no column {unknown[0]}", "correct `columns`")
    if unknown := sorted({*options.set} - found.columns.keys()):
        name = f"{found.schema}.{found.table}"
        yield finding("error", source, f"{name} has no column {unknown[0]}", "correct `set`")
        return
    staged = database.staged(table, "", relation, found)
    if problem := unfit(staged):
        yield failed(source, problem)
    elif not relation.key:
        yield finding(
            "warning", source, "it has no key: each batch reads its whole target once",
            "give it a primary key",
        )  # fmt: skip
    elif isinstance(staged, StagedHistory) and not staged.has_open_index(connection):
        yield finding(
            "warning", source, f"{found.schema}.{found.table} has no index of its open versions:"
            " TRUNCATE, and reading what is current, take as long as there are old ones",
            f"{staged.open_index.as_string(connection)};",
        )  # fmt: skip
    if problem is None:
        yield from _check_left_out(connection, database, table, relation, found)
    wrong = list(_check_expressions(connection, database, source, relation, staged))
    yield from wrong
    if unsent := [] if wrong or schema.sends_all else _may_be_unsent(connection, staged):
        yield finding(
            "warning", source, f"`set` or `filter` needs {', '.join(unsent)}: a change without a"
            " large value that stayed as it was becomes a dead letter (unsent-value)",
            f"ALTER TABLE {schema.schema}.{schema.table} REPLICA IDENTITY FULL;",
        )  # fmt: skip


def _may_be_unsent(connection: Any, staged: StagedTable) -> list[str]:
    """The columns whose values expressions need, and neither each change nor the target may have:
    one that the target keeps is lacking where a row comes into the filter."""
    mapping, cursor, names = staged.mapping, connection.cursor(), staged.relation.names
    texts = [each for each in mapping.computed.values() if each.strip().strip('"') not in names]
    return [
        each.name for each in staged.relation.columns
        if not each.is_key and (mapping.filter or each.name not in staged.kept)
        and any(mentions(text, each.name) for text in (*texts, mapping.filter))
        and cursor.execute(_MAY_BE_LARGE, [type_at(cursor, each)]).fetchone()[0]
    ]  # fmt: skip


def _check_left_out(
    connection: Any, database: PostgresDatabase, table: MappedTable, relation: SourceRelation,
    found: Destination,
) -> Iterator[Finding]:  # fmt: skip
    """Columns that the target lacks."""
    options, cursor = table.options, connection.cursor()
    wanted = [
        each for each in relation.columns
        if each.name not in found.columns and (options.columns or [each.name]).count(each.name)
    ]  # fmt: skip
    policy = options.schema_changes
    if options.set or policy == "add" or (policy is None and found.is_made) or not wanted:
        return
    ledger = database.ledger
    if policy is None and ledger.is_there(cursor) and ledger.is_made(cursor, table.full_target):
        return
    names = ", ".join(each.name for each in wanted)
    adds = sql.SQL(", ").join(
        sql.SQL("ADD COLUMN {} {}").format(
            sql.Identifier(each.name), sql.SQL(type_at(cursor, each))
        )
        for each in wanted
    )
    statement = sql.SQL("ALTER TABLE {} {};").format(
        sql.Identifier(found.schema, found.table), adds
    )
    waits = "it waits for" if policy == "ask" else "left out are"
    yield finding(
        "warning", f"table {table.source} of {table.backend}",
        f"{found.schema}.{found.table} lacks columns, and {waits} {names}",
        f"{statement.as_string(connection)} or `schema_changes: add`",
    )  # fmt: skip


def _check_expressions(
    connection: Any,
    database: PostgresDatabase,
    source: str,
    relation: SourceRelation,
    staged: StagedTable,
) -> Iterator[Finding]:
    """`set` and `filter` are SQL over a row of the source."""
    cursor, mapping = connection.cursor(), staged.mapping
    columns = sql.SQL(", ").join(
        sql.SQL("NULL::{} AS {}").format(
            sql.SQL(type_at(cursor, each)), sql.Identifier(each.name)
        )
        for each in (OWN_SID, *META, *relation.columns)
    )  # fmt: skip
    for name, expression in [*mapping.computed.items(), ("filter", mapping.filter)]:
        if not expression:
            continue
        kind = staged.destination.columns[name] if name in mapping.computed else "boolean"
        try:
            connection.execute(
                sql.SQL("SELECT ({})::{} FROM (SELECT {}) AS source LIMIT 0").format(
                    sql.SQL(expression), sql.SQL(kind), columns
                )
            )
        except psycopg.Error as error:
            what = "`filter`" if name == "filter" else f"`set` of {name}"
            said = database.translation(error, "reading").message
            yield finding("error", source, f"{what} is not SQL over its columns: {said}")
