"""The publication: which tables the server sends. A user's is made only when asked, and never
altered; penstock's own follows the settings. And its preflight: coverage, keys, replica identity.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from psycopg import sql

from penstock.feeds.postgres.connect import Ordinary
from penstock.feeds.postgres.failures import translating
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.model.errors import SettingsError
from penstock.model.finding import Finding, finding

_PUBLICATION = """
SELECT pubinsert, pubupdate, pubdelete, pubtruncate
FROM pg_catalog.pg_publication WHERE pubname = %s
"""

_TABLES = """
SELECT n.nspname, c.relname, c.relreplident::text,
       EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
       EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisreplident),
       has_table_privilege(c.oid, 'SELECT') OR has_any_column_privilege(c.oid, 'SELECT'),
       ARRAY(SELECT t.relid::regclass::text FROM pg_catalog.pg_partition_tree(c.oid) t
             WHERE c.relkind = 'p' AND t.isleaf AND NOT has_table_privilege(t.relid, 'SELECT')
               AND NOT has_any_column_privilege(t.relid, 'SELECT') ORDER BY 1)
FROM pg_catalog.pg_publication_tables p
JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = %s
ORDER BY n.nspname, c.relname
"""

# What can be published, and what is.
_HAS = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
"""

_MEMBERS = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = %s
"""

_KIND = """
SELECT c.relkind::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""


class _Table(NamedTuple):
    schema: str
    name: str
    identity: str
    primary_key: bool
    identity_index: bool
    readable: bool
    unreadable: list[str]  # partitions, quoted

    @property
    def quoted(self) -> str:
        return sql.Identifier(self.schema, self.name).as_string(None)


def create_statement(settings: PostgresSettings) -> str:
    what: sql.Composable = sql.SQL("FOR ALL TABLES")
    if settings.tables:
        what = sql.SQL("FOR TABLE {}").format(_listed(settings.table_names))
    name = sql.Identifier(settings.publication)
    return sql.SQL("CREATE PUBLICATION {} {}").format(name, what).as_string(None)


def _listed(tables: Iterable[tuple[str, str]]) -> sql.Composable:
    return sql.SQL(", ").join(sql.Identifier(*table) for table in sorted(tables))


def publication_exists(connection: Ordinary, name: str) -> bool:
    query = "SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s"
    with translating("reading the publications"):
        return connection.execute(query, (name,)).fetchone() is not None


def ensure_publication(connection: Ordinary, settings: PostgresSettings) -> None:
    """Creates it if it is missing and may be created, and alters penstock's own where its tables
    are not those of the settings; raises SettingsError if it may not."""
    if settings.is_managed and settings.tables:
        _keep(connection, settings)
        return
    if publication_exists(connection, settings.publication):
        return
    statement = create_statement(settings)
    if not settings.create_publication:
        raise SettingsError(
            f"there is no publication {settings.publication!r}",
            code="publication-missing",
            hint=f"as the tables' owner: {statement}; or set `create_publication: true`",
        )
    with translating(f"creating the publication {settings.publication}"):
        connection.execute(statement.encode())


def _keep(connection: Ordinary, settings: PostgresSettings) -> None:
    """Penstock's own publication: of the tables of the settings that the database has."""
    name = sql.Identifier(settings.publication)
    with translating(f"making the publication {settings.publication}"):
        there = [table for table in connection.execute(_HAS) if settings.follows(*table)]
        if not publication_exists(connection, settings.publication):
            what = sql.SQL("FOR TABLE {}").format(_listed(there)) if there else sql.SQL("")
            connection.execute(
                sql.SQL("CREATE PUBLICATION {} {} WITH (publish_via_partition_root = true)").format(
                    name, what
                )
            )
            return
        now = connection.execute(_MEMBERS, (settings.publication,)).fetchall()
        if set(now) == set(there):
            return
        verb, tables = ("SET TABLE", there) if there else ("DROP TABLE", now)
        connection.execute(
            sql.SQL("ALTER PUBLICATION {} {} {}").format(name, sql.SQL(verb), _listed(tables))
        )


def followed_tables(connection: Ordinary, settings: PostgresSettings) -> list[tuple[str, str]]:
    """(schema, table) of all that the publication covers and the settings do not leave out."""
    covered = [(each.schema, each.name) for each in _published(connection, settings.publication)]
    return [table for table in covered if settings.follows(*table)]


def _published(connection: Ordinary, name: str) -> list[_Table]:
    return list(map(_Table._make, connection.execute(_TABLES, (name,)).fetchall()))


def check_tables(connection: Ordinary, settings: PostgresSettings) -> Iterator[Finding]:
    """Findings about the publication, and one for each table that is not as it should be."""
    name = settings.publication
    subject = f"publication {name}"
    if not publication_exists(connection, name):
        if settings.create_publication or (settings.is_managed and settings.tables):
            yield finding("ok", subject, "it does not exist yet, and will be made")
            there = set(connection.execute(_HAS))
            for schema, table in sorted(settings.table_names - there):
                yield _uncovered(connection, sql.Identifier(name).as_string(None), schema, table)
        else:
            yield finding(
                "error", subject, "it does not exist", f"{create_statement(settings)};",
                code="publication-missing",
            )  # fmt: skip
        return
    quoted = sql.Identifier(name).as_string(None)
    row = connection.execute(_PUBLICATION, (name,)).fetchone() or ()
    operations = ("insert", "update", "delete", "truncate")
    if silent := [each for each, sent in zip(operations, row, strict=False) if not sent]:
        remedy = f"ALTER PUBLICATION {quoted} SET (publish = '{', '.join(operations)}');"
        yield finding(
            "warning", subject, f"it does not publish: {', '.join(silent)}", remedy,
            code="publication-silent",
        )  # fmt: skip
    tables = _published(connection, name)
    missing = sorted(settings.table_names - {(each.schema, each.name) for each in tables})
    for schema, table in missing:
        yield _uncovered(connection, quoted, schema, table)
    ours = [each for each in tables if settings.follows(each.schema, each.name)]
    troubles = [trouble for each in ours for trouble in _troubles(each)]
    yield from troubles
    if ours and not missing:
        covered = f"it covers {len(ours)} table{'' if len(ours) == 1 else 's'}"
        yield finding("ok", subject, covered + ("" if troubles else ", each with a key"))
    elif not missing:
        remedy = f"ALTER PUBLICATION {quoted} ADD TABLE <table>;"
        yield finding("warning", subject, "it has no tables yet", remedy, code="publication-empty")


def _uncovered(connection: Ordinary, publication: str, schema: str, table: str) -> Finding:
    row = connection.execute(_KIND, (schema, table)).fetchone()
    subject = f"table {schema}.{table}"
    if row is None:
        return finding(
            "error", subject, "it does not exist", "create it, or correct `tables`",
            code="table-missing",
        )  # fmt: skip
    quoted = sql.Identifier(schema, table).as_string(None)
    remedy = f"ALTER PUBLICATION {publication} ADD TABLE {quoted};"
    if row[0] == "p":
        remedy += f" ALTER PUBLICATION {publication} SET (publish_via_partition_root = true);"
    return finding(
        "error", subject, "the publication does not send it (under this name)", remedy,
        code="table-unpublished",
    )  # fmt: skip


def _troubles(table: _Table) -> Iterator[Finding]:
    subject = f"table {table.schema}.{table.name}"
    identified = {"d": table.primary_key, "i": table.identity_index, "f": True}
    if not identified.get(table.identity, False):
        yield finding(
            "warning",
            subject,
            "it has no replica identity: the server refuses UPDATE and DELETE on it",
            f"give it a primary key and ALTER TABLE {table.quoted} REPLICA IDENTITY DEFAULT;"
            f" or ALTER TABLE {table.quoted} REPLICA IDENTITY FULL;",
            code="identity-missing",
        )
    elif table.identity == "f" and not table.primary_key:
        yield finding(
            "warning", subject, "it has no primary key: its changes have no document id",
            f"ALTER TABLE {table.quoted} ADD PRIMARY KEY (<columns>);", code="key-missing",
        )  # fmt: skip
    if not table.readable:
        yield finding(
            "warning", subject, "the role may not read it, which snapshots will need",
            f"as its owner: GRANT SELECT ON {table.quoted} TO <role>;", code="table-denied",
        )  # fmt: skip
    elif table.unreadable and not table.primary_key:
        yield finding(
            "warning",
            subject,
            f"the role may not read {len(table.unreadable)} of its partitions: a snapshot reads"
            " each of them, because it has no primary key",
            f"as their owner: GRANT SELECT ON {', '.join(table.unreadable)} TO <role>;",
            code="partition-denied",
        )
