"""The destination: connections, what its errors mean, how its tables are made and altered."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
from psycopg import sql

from penstock.model.errors import PenstockError, Rejected, SettingsError, Unavailable
from penstock.model.finding import Finding, failed, finding
from penstock.tables.database import Owner, TableDatabase
from penstock.tables.history import HistoryColumns, StagedHistory
from penstock.tables.ledger import TargetLedger
from penstock.tables.lines import RelationColumn, SourceRelation
from penstock.tables.references import Dangling, References
from penstock.tables.sqlstates import Recurring, meaning
from penstock.tables.staged import MADE, Destination, RowMapping
from penstock.tables.staging import (
    PATIENCE,
    READS,
    SESSION,
    StagedTable,
    check_deferred,
    find_destination,
    set_path,
    set_session,
    state_of,
    type_at,
)
from penstock.tables.values import Encoder, array_of, as_bytes, as_document, as_text, as_time

_PATIENCE = 10  # seconds to connect
_PATIENCE_TO_ALTER = "5s"  # all that comes after us waits as well, and other tables do
_DANGLING = ("23001", "23503")
_CONFLICTS = ("23505", "23P01")  # another row is in the way
_LOCKED = "55P03"  # others wait meanwhile: it is not tried again at once
_TWICE = "21000"  # two rows of one statement have one key
_TOO_LARGE = ("22001", "22003")
_NO_VALUE = "22P02"  # as a label that an enum lacks

_NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
_LEDGER = """
SELECT CASE WHEN to_regnamespace(%s) IS NULL
            THEN has_database_privilege(current_database(), 'CREATE')
            ELSE has_schema_privilege(%s, 'CREATE') OR to_regclass(%s) IS NOT NULL END
"""
_MAY_BE_LARGE = "SELECT typstorage <> 'p' FROM pg_catalog.pg_type WHERE oid = to_regtype(%s)"
_BUILT_IN = """
SELECT t.oid FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
WHERE t.oid = to_regtype(%s)::oid AND n.nspname = 'pg_catalog'
  AND t.typname !~ '^_?(reg|aclitem)'
"""
_LABELS = "SELECT enumlabel FROM pg_catalog.pg_enum WHERE enumtypid = to_regtype(%s)"
_LACKING = """
SELECT p FROM unnest(%s::text[]) p WHERE NOT has_table_privilege(to_regclass(%s), p)
"""
# Foreign keys are triggers of the system's, and so are unique constraints that are deferrable.
_RUNS = """
SELECT coalesce(string_agg(DISTINCT CASE WHEN t.tgisinternal THEN 'a foreign key'
                                         ELSE 'the trigger ' || t.tgname END, ', '), '')
FROM pg_catalog.pg_trigger t
LEFT JOIN pg_catalog.pg_constraint c ON c.oid = t.tgconstraint AND t.tgisinternal
WHERE t.tgrelid = to_regclass(%s) AND t.tgenabled IN ('O', 'A')
  AND (c.contype = 'f' OR NOT t.tgisinternal)
"""
_REFERENCES = """
SELECT cn.nspname || '.' || c.relname, pn.nspname || '.' || p.relname, k.confdeltype = 'c',
    k.condeferred
FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class c ON c.oid = k.conrelid
JOIN pg_catalog.pg_namespace cn ON cn.oid = c.relnamespace
JOIN pg_catalog.pg_class p ON p.oid = k.confrelid
JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
WHERE k.contype = 'f'
"""


_ENCODERS: dict[str, Encoder] = {
    "bytea": as_bytes, "json": as_document, "jsonb": as_document, "date": as_time, "text": as_text,
}  # fmt: skip


class PostgresDatabase(TableDatabase):
    """See `TableDatabase`. `ledger`: the schema of its ledger; a `replica_role` leaves triggers and
    foreign keys of targets out."""

    error, find, type_at = psycopg.Error, staticmethod(find_destination), staticmethod(type_at)
    check_deferred = staticmethod(check_deferred)

    def __init__(self, url: str, *, ledger: str = "penstock", replica_role: bool = False) -> None:
        self._url, self._ledger, self._replica_role = url, ledger, replica_role

    def ledger(self, cursor: Any) -> TargetLedger:
        return TargetLedger(self._ledger, cursor)

    def connect(self, owner: Owner = "sink") -> Any:
        session = {**READS, **SESSION}
        if self._replica_role:
            session["session_replication_role"] = "replica"
        with self.translated("connecting"):
            connection = psycopg.connect(
                self._url, autocommit=True, connect_timeout=_PATIENCE,
                application_name=f"penstock {owner}", keepalives_idle=10, keepalives_interval=5,
                keepalives_count=3, tcp_user_timeout=30_000,
            )  # fmt: skip
            try:
                set_session(connection, session)
                # Of a mirror it says where tables are; and it may be said in the URL.
                if owner == "sink" and "search_path" not in connection.info.options:
                    set_path(connection)
            except psycopg.errors.InsufficientPrivilege as error:
                connection.close()
                other = "leave sink.replica_role out"
                if not self._replica_role:
                    other = "ALTER ROLE <role> RESET session_replication_role;"
                raise SettingsError(
                    "the role may not set session_replication_role at the destination",
                    "postgres.replica-role",
                    hint="GRANT SET ON PARAMETER session_replication_role TO <role>; (PostgreSQL"
                    f" 15 and later), or {other}",
                ) from error
        return connection

    def translation(self, error: Any, doing: str) -> PenstockError:
        state, means = error.sqlstate, meaning(state_of(error))
        said = " ".join(re.findall("[A-Z][a-z]*", type(error).__name__)).lower()
        if means == "refused":
            about = [
                f"{kind} {name}" for kind, name in (
                    ("constraint", error.diag.constraint_name),
                    ("column", error.diag.column_name), ("table", error.diag.table_name),
                ) if name
            ]  # fmt: skip
            return (Dangling if state in _DANGLING else Rejected)(
                f"the destination refuses a row: {', '.join([said, *about])} ({state})",
                "postgres.row-refused",
            )
        if not error.diag.context:  # else a function of the user's may say values of a row
            said = (error.diag.message_primary or str(error)).strip().partition("\n")[0][:300]
        if state == "2BP01":  # what depends on a column that goes
            said = f"{said}: {error.diag.message_detail}"
        message = f"{doing} at the destination: {said} ({state or 'no connection'})"
        if means == "setup":
            return SettingsError(
                message, "postgres", hint="look at the target, its columns and the role's rights"
            )
        if means == "recurs":
            return Recurring(message, "postgres.unavailable")
        return Unavailable(message, "postgres")

    def is_conflict(self, error: Any) -> bool:
        return error.sqlstate in _CONFLICTS

    def folded(self, name: str) -> str:
        return name.encode()[:63].decode(errors="ignore")  # longer ones are cut

    def default_schema(self, cursor: Any) -> str:
        return cursor.execute("SELECT current_schema()").fetchone()[0] or "public"

    def stored_type(self, cursor: Any, kind: str) -> str:
        """The source's own type, if it is built in; domains are the type under them already. All
        else is text: enums, types of extensions, and those whose values name something of the
        database, such as regclass."""
        # Without what it is limited to: varchar(80) is found as varchar.
        if cursor.execute(_BUILT_IN, [kind]).fetchone():
            return kind
        return "text[]" if kind.count("[]") == 1 else "text"

    def encoder(self, kind: str, stored: str) -> Encoder:
        """Values are as PostgreSQL reads them, but for JSON, bytes, arrays and distant years."""
        if stored.endswith("[]"):
            return array_of(stored.removesuffix("[]"))
        if stored == kind == "text":  # and of no type that is text only here
            return None
        return _ENCODERS.get(stored) or (as_time if stored.startswith("timestamp") else None)

    def is_ambiguous(self, error: Any) -> bool:
        return bool(error.sqlstate == _TWICE)

    def is_too_large(self, error: object) -> bool:
        return isinstance(error, psycopg.Error) and error.sqlstate in _TOO_LARGE

    def is_of_type(self, error: object) -> bool:
        is_no_value = isinstance(error, psycopg.Error) and error.sqlstate == _NO_VALUE
        return is_no_value or self.is_too_large(error)

    def staged(
        self, relation: SourceRelation, found: Destination, mapping: RowMapping, number: int = 0,
        periods: HistoryColumns | None = None,
    ) -> StagedTable:  # fmt: skip
        if periods is None:
            return StagedTable(relation, found, mapping, number)
        return StagedHistory(relation, found, mapping, number, periods)

    def create(
        self, cursor: Any, relation: SourceRelation, name: tuple[str, str], *,
        periods: HistoryColumns | None = None, sid_column: str = "",
    ) -> None:  # fmt: skip
        """A comment says later that penstock made it."""
        super().create(cursor, relation, name, periods=periods, sid_column=sid_column)
        comment = sql.SQL("COMMENT ON TABLE {} IS {}")
        cursor.execute(comment.format(sql.Identifier(*name), sql.Literal(MADE)))

    def labels(self, cursor: Any, kind: str) -> Sequence[str]:
        return [label for (label,) in cursor.execute(_LABELS, [kind]).fetchall()]

    def may_be_large(self, cursor: Any, column: RelationColumn) -> bool:
        return bool(cursor.execute(_MAY_BE_LARGE, [type_at(cursor, column)]).fetchone()[0])

    def references(self, cursor: Any) -> References:
        if self._replica_role:
            return References()
        found = cursor.execute(_REFERENCES).fetchall()
        return References(
            frozenset((child, parent) for child, parent, *_ in found),
            frozenset((child, parent) for child, parent, cascades, _ in found if cascades),
            frozenset((child, parent) for child, parent, _, is_deferred in found if is_deferred)
            - {(child, parent) for child, parent, _, is_deferred in found if not is_deferred},
        )

    def execute_one(self, cursor: Any, statement: sql.Composed) -> None:
        cursor.execute(statement, binary=True)  # the extended protocol: it takes one

    def check(self, connection: Any, found: Destination | None) -> Iterator[Finding]:
        if found is None:
            schema = self._ledger
            name = sql.Identifier(schema).as_string(None)
            if not connection.execute(_LEDGER, [name, schema, f"{name}.ledger"]).fetchone()[0]:
                yield finding(
                    "error", f"schema {schema}", "the role may not make the ledger",
                    f"CREATE SCHEMA {name} AUTHORIZATION <role>;", code="postgres.ledger-denied",
                )  # fmt: skip
            if taken := self.ledger(connection).taken():
                yield failed(f"schema {schema}", taken)
            return
        subject = f"target {found.schema}.{found.table}"
        name = sql.Identifier(found.schema, found.table).as_string(None)
        if lacking := [row[0] for row in connection.execute(_LACKING, [list(_NEEDED), name])]:
            remedy = f"GRANT {', '.join(lacking)} ON {name} TO <role>;"
            yield finding(
                "error", subject, f"the role may not {', '.join(lacking)}", remedy,
                code="postgres.target-denied",
            )  # fmt: skip
        runs = connection.execute(_RUNS, [name]).fetchone()[0]
        if runs and not self._replica_role:
            yield finding(
                "warning", subject, f"changes run {runs}",
                "sink.replica_role: true leaves triggers and foreign keys out",
                code="postgres.triggers-run",
            )  # fmt: skip

    def alter(self, cursor: Any, target: str, *commands: sql.Composed, waits: bool = False) -> None:
        cursor.execute(f"SET LOCAL lock_timeout = '{_PATIENCE_TO_ALTER}'")
        for statement in commands:
            try:
                cursor.execute(statement)
            except psycopg.Error as error:
                state = state_of(error)
                if meaning(state) in ("passes", "recurs") and (waits or state != _LOCKED):
                    raise
                raise SettingsError(
                    f"{target} cannot be altered: {self.translation(error, 'altering').message}",
                    "postgres.target-unaltered",
                    hint=f"{statement.as_string(None)}; is tried again, or do it by hand",
                ) from None
        cursor.execute(f"SET LOCAL lock_timeout = '{PATIENCE}'")  # the default is the role's
