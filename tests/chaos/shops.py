"""Three databases into one by a sink of tables: what is written, and what the target must have."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from tests.chaos.proxy import Proxy
from tests.chaos.world import BACKEND, FLOWING, SERVER, SETTLED, Load, Loads, World
from tests.servers import Database, Postgres

SIDS = ("eu", "us", "ap")
# Transactions from which the changes are sent in pieces, before they are committed; times of
# commits, for histories.
SOURCE = SERVER | {"logical_decoding_work_mem": "64kB", "track_commit_timestamp": True}
KEYED = ("items", "events", "prices")  # a clone, an append, and a history
TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name text, large text);
ALTER TABLE items ALTER large SET STORAGE EXTERNAL;
CREATE TABLE events (LIKE items INCLUDING ALL);
CREATE TABLE prices (LIKE items INCLUDING ALL);
CREATE TABLE notes (note text);
ALTER TABLE notes REPLICA IDENTITY FULL;
INSERT INTO items SELECT n, 'first', repeat('y', n * 10) FROM generate_series(1, 300) n;
INSERT INTO events TABLE items;
INSERT INTO prices TABLE items;
INSERT INTO notes SELECT n % 20 FROM generate_series(1, 100) n;
"""
JOURNAL = """
CREATE TABLE journal (number bigserial PRIMARY KEY, of text, transaction xid8, old int, new int,
                      line text);
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO journal (of, transaction, old, new, line) VALUES (
    TG_TABLE_NAME, pg_current_xact_id(), CASE WHEN TG_OP IN ('UPDATE', 'DELETE') THEN OLD.id END,
    CASE WHEN TG_OP IN ('INSERT', 'UPDATE') THEN NEW.id END,
    CASE WHEN TG_OP IN ('INSERT', 'UPDATE') THEN NEW::text END);
  RETURN NULL; END $$;
"""
_JOURNALED = "".join(
    f"CREATE TRIGGER keep AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW"
    " EXECUTE FUNCTION keep();"
    f"CREATE TRIGGER emptied AFTER TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION keep();"
    for table in ("events", "prices")
)
# The targets are somebody's: a role with limits owns them, and they have what it wanted of them.
TARGETS = """
CREATE TABLE items (
    sid text, id int GENERATED ALWAYS AS IDENTITY, name text, large text,
    doubled int GENERATED ALWAYS AS (id * 2) STORED, mine text DEFAULT 'mine',
    PRIMARY KEY (sid, id),
    EXCLUDE USING btree (id WITH =, sid WITH =) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE events (
    sid text, id int, name text, large text, PRIMARY KEY (sid, id),
    number int GENERATED ALWAYS AS IDENTITY);
CREATE TABLE notes (sid text, note text CHECK (note <> 'no'));
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF NEW.id < -9 THEN RAISE EXCEPTION 'no: %', NEW.id USING ERRCODE = 'AB001'; END IF;
  RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON items
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();
ALTER TABLE items ENABLE ROW LEVEL SECURITY;
CREATE POLICY none ON items USING (false);
CREATE ROLE somebody LOGIN;
GRANT CREATE ON DATABASE {database} TO somebody;
ALTER SCHEMA public OWNER TO somebody;
ALTER TABLE items OWNER TO somebody;
ALTER TABLE events OWNER TO somebody;
ALTER TABLE notes OWNER TO somebody;
"""
LIMITS = {
    "statement_timeout": "2s", "transaction_timeout": "2s", "lock_timeout": "20ms",
    "idle_in_transaction_session_timeout": "1s", "default_transaction_isolation": "serializable",
    "row_security": "on", "synchronous_commit": "off", "search_path": "nowhere",
    "client_encoding": "LATIN1", "DateStyle": "German", "default_transaction_read_only": "on",
}  # fmt: skip
_FIRST, _LAST = datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


class ShopLoad(Load):
    """Writes transactions of all kinds into one database; after so many, a large one.

    `is_loaded`: rows of tables whose history counts are not changed before they were loaded.
    """

    def __init__(self, database: Database, seed: int, large: int) -> None:
        self.is_loaded = False
        self._large, self._number = large, 0
        super().__init__(database, seed)

    def _transaction(self, connection: psycopg.Connection[Any]) -> None:
        chance = self._chance
        self._number += 1
        with suppress(psycopg.errors.UniqueViolation), connection.transaction() as whole:
            if self._number % (self._large // 40) == 60:
                self._write_much(connection)
            for _ in range(chance.choice((1, 1, 2, 5))):
                connection.execute(self._statement().encode())
            if chance.random() < 0.2:
                with connection.transaction() as part:
                    connection.execute(self._statement().encode())
                    if chance.random() < 0.5:
                        raise psycopg.Rollback(part)
                connection.execute(self._statement().encode())
            if chance.random() < 0.1:
                raise psycopg.Rollback(whole)

    def _write_much(self, connection: psycopg.Connection[Any]) -> None:
        """In turns it inserts rows and deletes them."""
        gone = connection.execute("DELETE FROM items WHERE id > 100000").rowcount
        if not gone:
            connection.execute(
                "INSERT INTO items SELECT 100000 + n, 'much', n::text"
                f" FROM generate_series(1, {self._large}) n".encode()
            )

    def _statement(self) -> str:
        chance = self._chance
        table = chance.choice((*KEYED, "notes") if self.is_loaded else ("items", "notes"))
        key, count = chance.randint(1, 400), chance.choice((1, 1, 1, 10, 40))
        if table == "notes":
            one = f"(SELECT ctid FROM notes WHERE note = '{key % 20}' LIMIT {count % 3 + 1})"
            return chance.choice((
                f"INSERT INTO notes SELECT {key % 20} FROM generate_series(1, {count})",
                f"UPDATE notes SET note = {(key + 1) % 20} WHERE ctid = ANY(ARRAY{one})",
                f"DELETE FROM notes WHERE ctid = ANY(ARRAY{one})",
            ))  # fmt: skip
        these = f"id BETWEEN {key} AND {key + count - 1}"
        insert = (
            f"INSERT INTO {table} SELECT n, 'n{chance.random()}',"
            f" repeat('z', {chance.choice((3, 3000))}) FROM generate_series({key}, {key + count}) n"
            " ON CONFLICT DO NOTHING"
        )
        # It waits for the load, whose new slot waits for its transaction: a minute.
        if self.is_loaded and chance.random() < 0.01:
            return f"TRUNCATE {table}"
        return chance.choice((
            insert,
            insert,
            f"UPDATE {table} SET name = 'u{chance.random()}' WHERE {these}",
            f"UPDATE {table} SET large = repeat('w', {chance.randint(0, 4000)}) WHERE {these}",
            f"DELETE FROM {table} WHERE {these}",
            f"UPDATE {table} SET id = {key + 1} WHERE id = {key}",  # may be refused
            f"UPDATE {table} SET id = -1 WHERE id = {key};"
            f"UPDATE {table} SET id = {key} WHERE id = {key + 1};"
            f"UPDATE {table} SET id = {key + 1}, name = 'swapped' WHERE id = -1",
        ))  # fmt: skip


class Entry(NamedTuple):
    """A row's change as a trigger saw it; neither key: a TRUNCATE."""

    old: int | None
    new: int | None
    line: str | None


class Version(NamedTuple):
    """As a history has it."""

    id: int
    line: str
    start: datetime
    end: datetime
    deleted: bool


def appended(rows: dict[int, str], entries: Sequence[Entry]) -> dict[int, str]:
    """What an append has of the rows at first, and of what was done since."""
    rows = dict(rows)
    for old, new, line in entries:
        if new is not None:
            if old not in (None, new):
                rows.pop(old, None)  # type: ignore[arg-type]
            rows[new] = str(line)
    return rows


def versions(
    rows: dict[int, str], transactions: Sequence[tuple[datetime, Sequence[Entry]]]
) -> list[Version]:
    """What a history has, of the rows at first and of the transactions since."""
    found: list[Version] = []
    opened = {id: (line, _FIRST) for id, line in rows.items()}
    last = dict.fromkeys(rows, _FIRST)
    for at, entries in transactions:
        left: dict[int, str | None] = {}
        for old, new, line in entries:
            if old is None and new is None:
                left = dict.fromkeys({**opened, **left})
            if old is not None:
                left[old] = None
            if new is not None:
                left[new] = line
        for id, line in left.items():
            now = max(at, last[id] + _TICK) if id in opened else max(at, last.get(id, _FIRST))
            if id in opened:
                found.append(Version(id, *opened.pop(id), now, line is None))
                last[id] = now
            if line is not None:
                last[id] = now if id in last else _FIRST
                opened[id] = line, last[id]
    return found + [Version(id, *one, _LAST, False) for id, one in opened.items()]


@dataclass
class Shop:
    """A source; `first`: its rows of each table before anything was written."""

    sid: str
    database: Database
    first: dict[str, dict[int, str]]

    def wanted(self) -> dict[str, Counter[Any]]:
        """What the targets must have of it."""
        found: dict[str, Counter[Any]] = {
            table: Counter(self.database.execute(f"SELECT t::text FROM {table} t"))
            for table in ("items", "notes")
        }
        rows = self.database.execute(
            "SELECT of, transaction::text, pg_xact_commit_timestamp(transaction::xid), old, new,"
            " line FROM journal ORDER BY number"
        )
        entries = [Entry(*row[3:]) for row in rows if row[0] == "events"]
        found["events"] = Counter(appended(self.first["events"], entries).values())
        transactions = [
            (at, [Entry(*row[3:]) for row in same])
            for (_, at), same in groupby(
                (row for row in rows if row[0] == "prices"), key=lambda row: row[1:3]
            )
        ]
        found["prices"] = Counter(versions(self.first["prices"], transactions))
        return found

    def found(self, target: Database) -> dict[str, Counter[Any]]:
        """What they have."""

        def rows(columns: str, table: str) -> list[tuple[Any, ...]]:
            return target.execute(f"SELECT {columns} FROM {table} WHERE sid = %s", (self.sid,))

        whole = "ROW(id, name, large)::text"
        periods = f"id, {whole}, kvsz_start, kvsz_end, kvsz_deleted"
        return {
            "items": Counter(rows(whole, "items")),
            "notes": Counter(rows("ROW(note)::text", "notes")),
            "events": Counter(line for (line,) in rows(whole, "events")),
            "prices": Counter(Version(*row) for row in rows(periods, "prices")),
        }


def shown(rows: Counter[Any]) -> str:
    """Some of them, without most of their large values."""
    return ", ".join(re.sub("(.)\\1{9,}", "\\1...", str(row)) for row in [*rows][:3])


class TableAudit:
    """Compares the targets with the sources."""

    def __init__(self, here: World, target: Database, sources: Sequence[Shop]) -> None:
        self._here, self._target, self._sources = here, target, sources
        self._written = 0

    def wait_for_flow(self) -> None:
        """Until something new is stored."""
        before = self._places()
        self._here.until(lambda: self._places() != before, FLOWING, "nothing flows")

    def compare(self) -> int:
        """Waits until the targets have all that they must have, and nothing else; how many changes
        there were of tables whose history counts."""
        wanted = [shop.wanted() for shop in self._sources]

        def differing() -> str:
            letters = self._target.execute("SELECT left(letter, 3000) FROM penstock.dead_letter")
            assert not letters, self._here.problem(f"letters: {letters[:2]}")
            for shop, tables in zip(self._sources, wanted, strict=True):
                found = shop.found(self._target)
                for table, rows in tables.items():
                    if rows != found[table]:
                        lacks, has = rows - found[table], found[table] - rows
                        return (
                            f"{table} of {shop.sid} lacks {lacks.total()}: {shown(lacks)}"
                            f"\nand has {has.total()} others: {shown(has)}"
                        )
            return ""

        problem = differing()

        def are_equal() -> bool:
            nonlocal problem
            with suppress(psycopg.OperationalError):
                problem = differing()
            return not problem

        if problem:
            try:
                self._here.until(are_equal, SETTLED, "not equal")
            except AssertionError as error:
                raise AssertionError(f"{problem}\n{error}") from None
        before, self._written = self._written, sum(
            shop.database.execute("SELECT count(*) FROM journal")[0][0] for shop in self._sources
        )  # fmt: skip
        return self._written - before

    def _places(self) -> list[Any]:
        with suppress(psycopg.OperationalError):
            return self._target.execute("SELECT id, place FROM penstock.ledger ORDER BY id")
        return []


@contextmanager
def shops(folder: Path, seed: int, large: int) -> Iterator[tuple[World, TableAudit]]:
    """A world with its pipeline started, and its tables loaded; `large`: rows of transactions that
    are."""
    with ExitStack() as stack:
        server = stack.enter_context(Postgres(settings=SOURCE))
        target_server = stack.enter_context(Postgres(settings=SERVER))
        target = stack.enter_context(target_server.database())
        target.execute(TARGETS.format(database=target.name))
        for name, value in LIMITS.items():
            with suppress(psycopg.errors.UndefinedObject):  # of later versions
                target.execute(f"ALTER ROLE somebody SET {name} = '{value}'")
        links = {
            "postgres": Proxy(server.host, server.port),
            "target": Proxy(target_server.host, target_server.port),
        }
        sources, loads = [], []
        for number, sid in enumerate(SIDS):
            database = stack.enter_context(server.database(f"shop_{sid}"))
            database.execute(TABLES)
            first = {
                table: dict(database.execute(f"SELECT id, t::text FROM {table} t"))
                for table in KEYED
            }
            database.execute(JOURNAL + _JOURNALED)
            sources.append(Shop(sid, database, first))
            loads.append(ShopLoad(database, seed + number, large))
            stack.callback(loads[-1].stop)
        for proxy in links.values():
            stack.callback(proxy.close)

        def behind(name: str, url: str, port: int) -> str:
            return url.replace(f":{port}/", f":{links[name].port}/")

        pipeline = {
            "name": "chaos",
            "backends": [{
                "name": "shops", "type": "postgres", **BACKEND, "connect_timeout": "10s",
                "sources": [
                    {
                        "sid": shop.sid,
                        "connection": behind("postgres", shop.database.url, server.port),
                    }
                    for shop in sources
                ],
            }],
            "sink": {
                "type": "postgres",
                "connection": behind(
                    "target", target.url.replace("postgres@", "somebody@"), target_server.port
                ),
                "commit": {"rows": 2000, "wait": "50ms"},
                "map": [{"backend": "shops", "tables": {
                    "items": None, "notes": None, "events": {"type": "append"},
                    "prices": {"type": "history", "create": True},
                }}],
            },
        }  # fmt: skip
        servers = {"postgres": server, "target": target_server}
        made = World(folder, servers, links, Loads(loads), pipeline)
        stack.callback(made.close)
        made.run = made.start()

        def is_loaded() -> bool:
            with suppress(psycopg.errors.UndefinedTable):
                live = "SELECT count(*) FROM penstock.ledger WHERE state = 'live'"
                return target.execute(live) == [(len(SIDS) * 4,)]
            return False

        made.until(is_loaded, FLOWING, "the tables are not loaded")
        for load in loads:
            load.is_loaded = True
        yield made, TableAudit(made, target, sources)
