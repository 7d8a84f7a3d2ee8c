"""Captures what real servers send: `python tests/wire/capture.py` rewrites golden/*.

One file per server version and protocol: `.bin` is uint32 length and pgoutput message, repeated;
`.json` says what the server's catalog says of the types and keys, and what the tables hold in
the end. `pg*-frames.bin` are whole CopyData contents: one XLogData and the keepalives.
"""

import json
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[2]))

from penstock.wire.pgoutput.values import SESSION
from tests.servers import Database, Postgres
from tests.wire.kinds import KINDS, SETUP

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = (15, 16, 18)
MARK = b"the end of a capture"
SETTINGS = {
    "fsync": False,
    "logical_decoding_work_mem": "64kB",
    "max_prepared_transactions": 10,
}

TABLES = """
CREATE TABLE by_default (id integer PRIMARY KEY, v text);
CREATE TABLE by_index (a integer NOT NULL, b text NOT NULL, v text);
CREATE UNIQUE INDEX by_index_key ON by_index (a, b);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_key;
CREATE TABLE by_full (id integer PRIMARY KEY, v text);
ALTER TABLE by_full REPLICA IDENTITY FULL;
CREATE TABLE by_full_no_key (v text, n integer);
ALTER TABLE by_full_no_key REPLICA IDENTITY FULL;
CREATE TABLE by_nothing (id integer PRIMARY KEY, v text);
ALTER TABLE by_nothing REPLICA IDENTITY NOTHING;
CREATE TABLE by_two (a text, b integer, v text, PRIMARY KEY (a, b));
CREATE TABLE toasted (id integer PRIMARY KEY, big text, v integer);
ALTER TABLE toasted ALTER COLUMN big SET STORAGE EXTERNAL;
CREATE TABLE toasted_full (id integer PRIMARY KEY, big text, v integer);
ALTER TABLE toasted_full ALTER COLUMN big SET STORAGE EXTERNAL;
ALTER TABLE toasted_full REPLICA IDENTITY FULL;
CREATE TABLE toasted_key (k text PRIMARY KEY, v integer);
ALTER TABLE toasted_key ALTER COLUMN k SET STORAGE EXTERNAL;
CREATE TABLE parted (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (100);
CREATE TABLE changing (id integer PRIMARY KEY, v text);
CREATE TABLE large (id integer PRIMARY KEY, v text);
CREATE TABLE emptied_a (id integer PRIMARY KEY);
CREATE TABLE emptied_b (id integer PRIMARY KEY);
"""

# Each line is one transaction.
WORK = (
    "INSERT INTO by_default VALUES (1, 'one'), (2, NULL)",
    "UPDATE by_default SET v = 'uno' WHERE id = 1",
    "UPDATE by_default SET id = 3 WHERE id = 2",
    "DELETE FROM by_default WHERE id = 3",
    "INSERT INTO by_index VALUES (1, 'x', 'v'), (2, 'y', NULL)",
    "UPDATE by_index SET v = 'w' WHERE a = 1; UPDATE by_index SET b = 'z' WHERE a = 2",
    "DELETE FROM by_index WHERE a = 1",
    "INSERT INTO by_full VALUES (1, 'a'), (2, NULL)",
    "UPDATE by_full SET v = 'b' WHERE id = 1; DELETE FROM by_full WHERE id = 2",
    "INSERT INTO by_full_no_key VALUES ('a', 1), (NULL, NULL)",
    "UPDATE by_full_no_key SET n = 2 WHERE v = 'a'; DELETE FROM by_full_no_key WHERE v IS NULL",
    "INSERT INTO by_nothing VALUES (1, 'a')",
    "INSERT INTO by_two VALUES ('k', 1, 'v')",
    "UPDATE by_two SET v = 'w'; UPDATE by_two SET b = 2; DELETE FROM by_two",
    "INSERT INTO toasted VALUES (1, repeat('x', 9000), 1)",
    "UPDATE toasted SET v = 2",
    "UPDATE toasted SET id = 2",
    "INSERT INTO toasted_full VALUES (1, repeat('y', 9000), 1)",
    "UPDATE toasted_full SET v = 2",
    "UPDATE toasted_full SET id = 2; DELETE FROM toasted_full",
    "INSERT INTO toasted_key SELECT string_agg(md5(i::text), ''), 1 FROM generate_series(1, 75) i",
    "UPDATE toasted_key SET v = 2",
    "DELETE FROM toasted_key",
    "INSERT INTO parted VALUES (1, 'p')",
    "INSERT INTO changing VALUES (1, 'a')",
    "ALTER TABLE changing ADD COLUMN extra integer DEFAULT 5; INSERT INTO changing VALUES (2, 'b')",
    "ALTER TABLE changing RENAME COLUMN v TO w; INSERT INTO changing VALUES (3, 'c', 6)",
    "ALTER TABLE changing DROP COLUMN w; INSERT INTO changing VALUES (4, 7)",
    "ALTER TABLE changing ALTER COLUMN extra TYPE text; INSERT INTO changing VALUES (5, 'text')",
    "SELECT pg_logical_emit_message(true, 'inside', 'text é')",
    "SELECT pg_logical_emit_message(false, 'outside', decode('ff00', 'hex'))",
    "INSERT INTO emptied_a VALUES (1); INSERT INTO emptied_b VALUES (1)",
    "TRUNCATE emptied_a, emptied_b RESTART IDENTITY CASCADE",
    "SELECT pg_logical_emit_message(true, 'penstock.heartbeat', '');"
    " INSERT INTO by_default VALUES (10, 'after a heartbeat')",
    "INSERT INTO large SELECT i, repeat('r', 40) FROM generate_series(1, 100) i",
)

ORIGIN = (
    "SELECT pg_replication_origin_create('elsewhere_' || current_database())",
    "SELECT pg_replication_origin_session_setup('elsewhere_' || current_database())",
    "INSERT INTO by_default VALUES (20, 'from elsewhere')",
    "SELECT pg_replication_origin_session_reset()",
    "SELECT pg_replication_origin_drop('elsewhere_' || current_database())",
)

# Large enough for 64 kB of logical_decoding_work_mem; %s is a range of ids.
_FILL = "INSERT INTO large SELECT i, repeat('s', 20) FROM generate_series(%d, %d) i"
STREAMED = (
    f"{_FILL % (1001, 1600)}; UPDATE large SET v = 'u' WHERE id = 1001;"
    " DELETE FROM large WHERE id = 1002; SELECT pg_logical_emit_message(true, 'big', 'in it')"
)
# The slot is read between the two halves, so that it streams what is rolled back then.
HALVES = (
    (f"SAVEPOINT s; {_FILL % (3001, 3600)}",
     f"ROLLBACK TO s; {_FILL % (5001, 5600)}; SAVEPOINT t; {_FILL % (6001, 6100)}; RELEASE t;"
     f" {_FILL % (6101, 6110)}; COMMIT"),
    (_FILL % (7001, 7600), "ROLLBACK"),
)  # fmt: skip
PREPARED = (
    ("kept", "INSERT INTO by_default VALUES (30, 'prepared')", "COMMIT PREPARED"),
    ("dropped", "INSERT INTO by_default VALUES (31, 'prepared')", "ROLLBACK PREPARED"),
    ("streamed", _FILL % (8001, 8600), "COMMIT PREPARED"),
)

_CATALOG = """
SELECT t.oid, t.typname,
       CASE WHEN t.typtype = 'b' AND t.typcategory = 'A' THEN 'a' ELSE t.typtype::text END,
       CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END, t.typdelim::text
FROM pg_type t WHERE t.oid >= 16384 AND t.typrelid = 0
   OR t.oid >= 16384 AND t.typname = 'pair'
"""
_KEYS = """
SELECT c.oid, array_agg(a.attname::text ORDER BY k.position)
FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, position)
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
WHERE c.relreplident = 'f' AND c.oid >= 16384 GROUP BY c.oid
"""


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for version in VERSIONS:
        with Postgres(version=version, settings=SETTINGS) as server:
            for name, protocol in (("v1", 1), ("v2", 2), ("two-phase", 3)):
                if name == "two-phase" and version != 16:
                    continue
                with server.database() as database:
                    capture(database, f"pg{version}-{name}", version, protocol)


def capture(database: Database, name: str, version: int, protocol: int) -> None:
    """One file: tables, slot, work, and what the slot then says."""
    kinds = [kind for kind in KINDS if kind.known_to(version)]
    columns = ", ".join(f"{kind.name} {kind.type}" for kind in kinds)
    database.execute(SETUP)
    database.execute(TABLES)
    database.execute(f"CREATE TABLE kinds (id integer PRIMARY KEY, {columns})")
    database.execute(
        "CREATE PUBLICATION golden FOR ALL TABLES WITH (publish_via_partition_root = true)"
    )
    slot = f"golden_{database.name}"
    database.execute(
        "SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)",
        (slot, protocol == 3),
    )
    values = ", ".join(kind.sql for kind in kinds)
    database.execute(f"INSERT INTO kinds VALUES (1, {values}), (2{', NULL' * len(kinds)})")
    work(database, protocol)
    frames = list(received(database, slot, protocol))
    if protocol == 1:
        first = next(frame for frame in frames if frame[:1] == b"w")
        write(f"pg{version}-frames", [first, *(frame for frame in frames if frame[:1] == b"k")])
    messages = [frame[25:] for frame in frames if frame[:1] == b"w"]
    write(name, [message for message in messages if MARK not in message])
    facts = {"version": version, "protocol": protocol, **catalog(database)}
    text = json.dumps(facts, indent=1, ensure_ascii=False, sort_keys=True)
    (GOLDEN / f"{name}.json").write_text(text + "\n")


def write(name: str, records: list[bytes]) -> None:
    body = b"".join(struct.pack(">I", len(record)) + record for record in records)
    (GOLDEN / f"{name}.bin").write_bytes(body)
    sys.stdout.write(f"{name}: {len(records)} records, {len(body)} bytes\n")


def work(database: Database, protocol: int) -> None:
    for transaction in WORK if protocol < 3 else WORK[:1]:
        database.execute(f"BEGIN; {transaction}; COMMIT")
    with psycopg.connect(database.url, autocommit=True) as connection:
        for statement in ORIGIN:
            connection.execute(statement.encode())
    if protocol == 2:
        database.execute(f"BEGIN; {STREAMED}; COMMIT")
    if protocol == 3:
        for gid, transaction, outcome in PREPARED:
            database.execute(f"BEGIN; {transaction}; PREPARE TRANSACTION '{gid}'")
            database.execute(f"{outcome} '{gid}'")


def received(database: Database, slot: str, protocol: int) -> Iterator[bytes]:
    """What a replication connection receives, as the contents of CopyData messages."""
    options = f"proto_version '{protocol}', publication_names 'golden', messages 'true'"
    if protocol > 1:
        options += ", streaming 'on'"
    session = " ".join(f"-c {name}={value}" for name, value in SESSION.items())
    login = psycopg.connect(database.url, replication="database", autocommit=True, options=session)
    with closing(login) as connection:
        command = f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options})"
        connection.pgconn.exec_(command.encode())
        yield from until_marked(database, connection)
        if protocol != 2:
            return
        # Transactions that are streamed while they are open, one beside the other.
        sessions = [psycopg.connect(database.url, autocommit=True) for _ in HALVES]
        for each, (first, _) in zip(sessions, HALVES, strict=True):
            each.execute(f"BEGIN; {first}".encode())
        yield from until_marked(database, connection)
        for each, (_, second) in zip(sessions, HALVES, strict=True):
            each.execute(second.encode())
            each.close()
        yield from until_marked(database, connection)


def until_marked(database: Database, connection: psycopg.Connection) -> Iterator[bytes]:
    """Everything up to a mark that is written now."""
    database.execute(f"SELECT pg_logical_emit_message(false, '{MARK.decode()}', '')")
    while True:
        size, data = connection.pgconn.get_copy_data(0)
        if size < 0:
            raise SystemExit("the replication connection ended")
        yield bytes(data)
        if MARK in bytes(data):
            return


def catalog(database: Database) -> dict[str, Any]:
    """What the decoder can't know from the messages, and how the tables ended up."""
    types = {
        oid: {"name": name, "kind": kind, "inner": inner, "delimiter": delimiter}
        for oid, name, kind, inner, delimiter in database.execute(_CATALOG)
    }
    keys = dict(database.execute(_KEYS))
    tables = {}
    for (table,) in database.execute(
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        " AND relkind IN ('r', 'p') AND relname NOT IN ('kinds', 'parted_low') ORDER BY 1"
    ):
        (rows,) = database.execute(f"SELECT coalesce(jsonb_agg(t), '[]') FROM {table} t")[0]
        tables[table] = rows if table != "large" else len(rows)
    return {"types": types, "keys": keys, "tables": tables}


if __name__ == "__main__":
    main()
