"""The publication: which tables the server sends. A user's is made only when asked, and never
altered; penstock's own follows the settings, but for tables without a replica identity, whose
UPDATE and DELETE the server would refuse. And its preflight: coverage, keys, replica identity.
"""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple

from psycopg import sql

from penstock.feeds.postgres.connect import Ordinary, rows_of
from penstock.feeds.postgres.failures import translating
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.feeds.postgres.system_catalog import Ask
from penstock.model.errors import PenstockError, SettingsError
from penstock.model.finding import Finding, finding

_PUBLICATION = """
SELECT pubinsert, pubupdate, pubdelete, pubtruncate
FROM pg_catalog.pg_publication WHERE pubname = %s
"""

# Itself and its leaves, on which the server refuses UPDATE and DELETE once they are published: a
# deferrable key is no replica identity, and from PostgreSQL 18 on a column in it that is generated
# must be published.
_UNIDENTIFIED = """
SELECT format('%%I.%%I', s.nspname, o.relname) FROM pg_catalog.pg_class o
JOIN pg_catalog.pg_namespace s ON s.oid = o.relnamespace, LATERAL (SELECT ARRAY(
    SELECT a.attnum FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = o.oid AND NOT a.attisdropped AND a.attgenerated <> ''
      AND current_setting('server_version_num')::int >= 180000
      AND NOT (a.attgenerated = 's' AND coalesce(to_jsonb(p) ->> 'pubgencols' = 's', false))
)) AS unsent (numbers)
WHERE o.oid IN (SELECT c.oid UNION ALL
                SELECT t.relid FROM pg_catalog.pg_partition_tree(c.oid) t WHERE t.isleaf)
  AND CASE WHEN o.relreplident = 'f' THEN unsent.numbers <> '{}' ELSE NOT EXISTS (
      SELECT FROM pg_catalog.pg_index i
      WHERE i.indrelid = o.oid AND i.indisvalid AND i.indimmediate
        AND CASE o.relreplident WHEN 'd' THEN i.indisprimary
                                WHEN 'i' THEN i.indisreplident ELSE false END
        AND NOT i.indkey::int2[] && unsent.numbers) END
ORDER BY 1
"""

_TABLES = f"""
SELECT n.nspname::text, c.relname::text, c.relreplident::text, ARRAY({_UNIDENTIFIED}),
       EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
       has_table_privilege(c.oid, 'SELECT') OR has_any_column_privilege(c.oid, 'SELECT'),
       ARRAY(SELECT t.relid::regclass::text FROM pg_catalog.pg_partition_tree(c.oid) t
             WHERE c.relkind = 'p' AND t.isleaf AND NOT has_table_privilege(t.relid, 'SELECT')
               AND NOT has_any_column_privilege(t.relid, 'SELECT') ORDER BY 1),
       c.relpersistence = 'u'
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_publication p ON p.pubname = %s
WHERE c.oid = ANY (%s) ORDER BY n.nspname, c.relname
"""

# What is published, and what can be.
_PUBLISHED = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text
FROM pg_catalog.pg_publication_tables p
JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = %s
"""

_HAS = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence IN ('p', %s)
  AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
"""

# With what they are partitions of, and their partitions.
_TREES = """
SELECT u.oid::bigint,
       ARRAY(SELECT relid::oid::bigint FROM pg_catalog.pg_partition_ancestors(u.oid)),
       ARRAY(SELECT relid::oid::bigint FROM pg_catalog.pg_partition_tree(u.oid))
FROM unnest(%s::oid[]) AS u (oid)
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
    unidentified: list[str]  # quoted
    primary_key: bool
    readable: bool
    unreadable: list[str]  # partitions, quoted
    is_unlogged: bool

    @property
    def quoted(self) -> str:
        return sql.Identifier(self.schema, self.name).as_string(None)

    @property
    def refusal(self) -> SettingsError | None:
        """What the server would refuse of the source's application; None for nothing."""
        if not self.unidentified:
            return None
        full = " ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL;" for name in self.unidentified)
        return SettingsError(
            "no replica identity that is published: the server refuses UPDATE and DELETE on"
            f" {', '.join(self.unidentified)}",
            code="postgres.identity-missing",
            hint=f"give it a primary key, not deferrable, without generated columns; or {full}",
        )


def create_statement(settings: PostgresSettings) -> str:
    what: sql.Composable = sql.SQL("FOR ALL TABLES")
    if settings.tables:
        what = sql.SQL("FOR TABLE {}").format(_listed(settings.table_names))
    name = sql.Identifier(settings.publication)
    return sql.SQL("CREATE PUBLICATION {} {}").format(name, what).as_string(None)


def missing_remedy(connection: Ordinary, settings: PostgresSettings) -> str:
    """What to do where the publication is not there: those that are, then how to make it."""
    with translating("reading the publications"):
        found = connection.execute("SELECT pubname FROM pg_catalog.pg_publication ORDER BY 1")
        there = [str(name) for (name,) in found.fetchall()]
    near = get_close_matches(settings.publication, there, n=1)
    first = f"did you mean {near[0]}? " if near else ""
    if there and not near:
        first = f"there are: {', '.join(there)}. "
    statement = create_statement(settings)
    if not settings.tables:
        statement = statement.replace("FOR ALL TABLES", "FOR TABLE ...")
    return f"{first}As the tables' owner: {statement};"


def _listed(tables: Iterable[tuple[str, str]]) -> sql.Composable:
    """Without tables that inherit from them; partitions come with their root all the same."""
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*table))
                              for table in sorted(tables))  # fmt: skip


def publication_exists(connection: Ordinary, name: str) -> bool:
    query = "SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s"
    with translating("reading the publications"):
        return connection.execute(query, (name,)).fetchone() is not None


def ensure_publication(connection: Ordinary, settings: PostgresSettings) -> None:
    """Creates it if it is missing and may be created, and alters penstock's own where its tables
    are not those of the settings; raises SettingsError if it may not."""
    if publication_exists(connection, settings.publication):
        with translating(f"altering the publication {settings.publication}"):
            keep_publication(partial(rows_of, connection), settings)
        return
    statement = create_statement(settings)
    if not settings.keeps_publication and not settings.create_publication:
        raise SettingsError(
            f"there is no publication {settings.publication!r}",
            "postgres.publication-missing",
            hint=f"{missing_remedy(connection, settings)} or set `create_publication: true`",
        )
    with translating(f"creating the publication {settings.publication}"):
        there = _followable(partial(rows_of, connection), settings) if settings.tables else ()
        if settings.keeps_publication:
            named = [(each.schema, each.name) for each in there if not each.unidentified]
            statement = (
                sql.SQL("CREATE PUBLICATION {} {} {} WITH (publish_via_partition_root = true)")
                .format(
                    sql.Identifier(settings.publication), sql.SQL("FOR TABLE" if named else ""),
                    _listed(named),
                ).as_string(connection)
            )  # fmt: skip
        elif refusals := [refusal for each in there if (refusal := each.refusal)]:
            raise refusals[0]  # it is never altered: what is left out would not come later
        connection.execute(statement.encode())


def keep_publication(
    ask: Ask, settings: PostgresSettings
) -> Mapping[tuple[str, str], PenstockError]:
    """Has penstock's own publication, if it is there, send the tables of the settings that the
    database has; returns what is wrong with those that are left out. Raises the driver's errors."""
    if not settings.keeps_publication:
        return {}
    there = {(each.schema, each.name): each.refusal for each in _followable(ask, settings)}
    left: dict[tuple[str, str], PenstockError] = {
        name: refusal for name, refusal in there.items() if refusal is not None
    }
    tables = there.keys() - left.keys()
    now = {(schema, name) for schema, name in ask(_MEMBERS, settings.publication)}
    is_there = bool(ask(_PUBLICATION, settings.publication))
    for table in sorted(now ^ tables) if is_there else ():
        # Each by itself: the lock of one is never waited for with that of another, and what the
        # server refuses of one holds up no other.
        statement = sql.SQL("ALTER PUBLICATION {} {} TABLE {}").format(
            sql.Identifier(settings.publication), sql.SQL("ADD" if table in tables else "DROP"),
            _listed([table]),
        )  # fmt: skip
        try:
            with translating("altering the publication"):
                ask(statement.as_string(None))
        except PenstockError as error:
            left[table] = error
    return left


def left_out(ask: Ask, settings: PostgresSettings) -> Mapping[tuple[str, str], SettingsError]:
    """What is wrong with the tables of the settings that are there and not sent."""
    found = map(_Table._make, ask(_TABLES, settings.publication, not_sent(ask, settings)))
    return {(each.schema, each.name): _not_sent(each, settings) for each in found}


def _not_sent(table: _Table, settings: PostgresSettings) -> SettingsError:
    refusal, name = table.refusal, sql.Identifier(settings.publication).as_string(None)
    if refusal is not None and settings.keeps_publication:
        return refusal
    return SettingsError(
        f"the publication {settings.publication} does not send {table.schema}.{table.name}",
        code="postgres.table-unpublished",
        hint=(f"{refusal.hint} Then " if refusal else "")
        + (f"ALTER TABLE {table.quoted} SET LOGGED; " if table.is_unlogged else "")
        + f"ALTER PUBLICATION {name} ADD TABLE ONLY {table.quoted};",
    )


def followed_tables(ask: Ask, settings: PostgresSettings) -> list[tuple[str, str]]:
    """(schema, table) of all that the publication covers and the settings do not leave out."""
    covered = [(schema, name) for _, schema, name in ask(_PUBLISHED, settings.publication)]
    return sorted(table for table in covered if settings.follows(*table))


def _followable(
    ask: Ask, settings: PostgresSettings, *, is_published: bool = False
) -> list[_Table]:
    """The tables of the settings that can be published, or are."""
    found = ask(_PUBLISHED, settings.publication) if is_published else ask(_HAS, "p")
    oids = _oids(found, settings)
    return list(map(_Table._make, ask(_TABLES, settings.publication, oids)))


def to_be_published(ask: Ask, settings: PostgresSettings) -> list[int]:
    """The tables (oid) that a publication will have which is made, or altered, at the start."""
    is_made = settings.keeps_publication or (
        settings.create_publication and not ask(_PUBLICATION, settings.publication)
    )
    return _oids(ask(_HAS, "p"), settings) if is_made else []


def not_sent(ask: Ask, settings: PostgresSettings) -> list[int]:
    """The tables (oid) of the settings that the database has and the publication does not send,
    neither as they are nor with what they are a partition of, under a name of the settings."""
    sent = {*_oids(ask(_PUBLISHED, settings.publication), settings)}
    loose = {
        oid: {*above} - {oid} for oid, above, below in ask(_TREES, _oids(ask(_HAS, "u"), settings))
        if not sent & {oid, *above, *below}
    }  # fmt: skip
    return [oid for oid, above in loose.items() if not loose.keys() & above]


def _oids(found: Iterable[tuple[Any, ...]], settings: PostgresSettings) -> list[int]:
    return [oid for oid, *table in found if settings.follows(*table)]


def check_tables(connection: Ordinary, settings: PostgresSettings) -> Iterator[Finding]:
    """Findings about the publication, and one for each table that is not as it should be."""
    name, ask = settings.publication, partial(rows_of, connection)
    subject, quoted = f"publication {name}", sql.Identifier(name).as_string(None)
    is_there, is_kept = publication_exists(connection, name), settings.keeps_publication
    if is_there:
        yield from _silent(ask, settings, subject, quoted)
    elif settings.create_publication or is_kept:
        yield finding("ok", subject, "it does not exist yet, and will be made")
    else:
        yield finding(
            "error", subject, "it does not exist", missing_remedy(connection, settings),
            code="postgres.publication-missing",
        )  # fmt: skip
        return
    tables = _followable(ask, settings, is_published=is_there and not is_kept)
    missing = sorted(settings.table_names - {(each.schema, each.name) for each in tables})
    for schema, table in missing:
        yield _uncovered(connection, quoted, schema, table)
    is_published = is_there and not is_kept
    troubles = [
        trouble for each in tables
        for trouble in _troubles(each, is_kept=is_kept, is_published=is_published)
    ]  # fmt: skip
    yield from troubles
    if not is_there or missing:
        return
    if tables:
        covered = f"it covers {len(tables)} table{'' if len(tables) == 1 else 's'}"
        yield finding("ok", subject, covered + ("" if troubles else ", each with a key"))
    else:
        remedy = f"ALTER PUBLICATION {quoted} ADD TABLE <table>;"
        yield finding(
            "warning", subject, "it has no tables yet", remedy, code="postgres.publication-empty"
        )


def _silent(ask: Ask, settings: PostgresSettings, subject: str, quoted: str) -> Iterator[Finding]:
    (row,) = ask(_PUBLICATION, settings.publication)
    operations = ("insert", "update", "delete", "truncate")
    if silent := [each for each, sent in zip(operations, row, strict=False) if not sent]:
        remedy = f"ALTER PUBLICATION {quoted} SET (publish = '{', '.join(operations)}');"
        yield finding(
            "warning", subject, f"it does not publish: {', '.join(silent)}", remedy,
            code="postgres.publication-silent",
        )  # fmt: skip


def _uncovered(connection: Ordinary, publication: str, schema: str, table: str) -> Finding:
    row = connection.execute(_KIND, (schema, table)).fetchone()
    subject = f"table {schema}.{table}"
    if row is None:
        return finding(
            "error", subject, "it does not exist", "create it, or correct `tables`",
            code="postgres.table-missing",
        )  # fmt: skip
    quoted = sql.Identifier(schema, table).as_string(None)
    remedy = f"ALTER PUBLICATION {publication} ADD TABLE ONLY {quoted};"
    if row[0] == "p":
        remedy += f" ALTER PUBLICATION {publication} SET (publish_via_partition_root = true);"
    return finding(
        "error", subject, "the publication does not send it (under this name)", remedy,
        code="postgres.table-unpublished",
    )  # fmt: skip


def _troubles(table: _Table, *, is_kept: bool, is_published: bool) -> Iterator[Finding]:
    subject = f"table {table.schema}.{table.name}"
    if refusal := table.refusal:
        then = ": it is left out, and waits" if is_kept else ""
        yield finding(
            "warning" if is_published else "error", subject, refusal.message + then, refusal.hint,
            code="postgres.identity-missing",
        )  # fmt: skip
    elif table.identity == "f" and not table.primary_key:
        yield finding(
            "warning", subject, "it has no primary key: its changes have no document id",
            f"ALTER TABLE {table.quoted} ADD PRIMARY KEY (<columns>);", code="postgres.key-missing",
        )  # fmt: skip
    if not table.readable:
        yield finding(
            "warning", subject, "the role may not read it, and snapshots need this",
            f"as its owner: GRANT SELECT ON {table.quoted} TO <role>;",
            code="postgres.table-denied",
        )  # fmt: skip
    elif table.unreadable and not table.primary_key:
        yield finding(
            "warning",
            subject,
            f"the role may not read {len(table.unreadable)} of its partitions: a snapshot reads"
            " each of them, because it has no primary key",
            f"as their owner: GRANT SELECT ON {', '.join(table.unreadable)} TO <role>;",
            code="postgres.partition-denied",
        )
