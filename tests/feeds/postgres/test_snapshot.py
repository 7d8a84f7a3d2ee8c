"""Rows of a table at one point of the log, on real servers."""

import os
import pickle
import re
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from penstock.feeds import SnapshotWait, TableSnapshot
from penstock.feeds.postgres import PostgresFeed
from penstock.feeds.postgres.connect import connect_reading
from penstock.feeds.postgres.rows import _through_libpq, copied
from penstock.feeds.postgres.snapshot import PostgresSnapshot
from penstock.model.errors import SettingsError, Unavailable
from penstock.model.position import Bookmark
from tests.feeds.postgres.reading import Reader, Row
from tests.servers import Postgres
from tests.waiting import until

PATIENCE = 60.0  # a slot waits for all transactions of the server, and other tests have some


# A slot that is being made waits for the transactions that run.
_HELD_UP = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND backend_xmin IS NULL"


@contextmanager
def snapshot_of(
    reader: Reader, table: str, patience: float = PATIENCE
) -> Iterator[PostgresSnapshot]:
    schema, _, name = table.rpartition(".")
    with reader.feed.snapshot(
        schema or "public", name, {}, SnapshotWait(patience=patience)
    ) as found:
        yield found


def rows_of(
    reader: Reader, snapshot: TableSnapshot, rows: int = 10_000, size: int = 2**19
) -> list[list[Row]]:
    """The rows of each range."""
    source = pickle.loads(pickle.dumps(snapshot.source))
    with source.opened() as pages:
        return [reader.decode(list(pages(part, rows, size))) for part in snapshot.plan(rows, size)]


def flat(ranges: list[list[Row]]) -> list[Any]:
    return [row["after"] for rows in ranges for row in rows]


TYPES = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);"
    "CREATE TABLE t (id int PRIMARY KEY, b bool, n numeric, f float8, r real, s text, c char(3),"
    " y bytea, d date, ts timestamp, tz timestamptz, i interval, j json, jb jsonb, u uuid,"
    " a int[], ta text[], m mood, p positive, ip inet, rg int4range, pt point)"
)
VALUES = (
    "(1, true, 12345678901234567890.123, 0.1, 3.14, E'tab\\t nl\\n back\\\\ cr\\r b\\b', 'a',"
    " '\\x00ff5c', '2026-01-02', '2026-01-02 03:04:05.000006', '2026-01-02 03:04:05+02', '1 day',"
    " '{\"a\": 1.10}', '{\"b\": [1, null]}', '00000000-0000-0000-0000-000000000001',"
    " '{1,NULL,3}', E'{\"a b\",\"c\\\\\"d\",NULL}', 'ok', 7, '10.0.0.1', '[1,5)', '(1,2)')",
    "(2, NULL, 'NaN', 'Infinity', NULL, '\\N', NULL, NULL, 'infinity', '-infinity', NULL, NULL,"
    " NULL, NULL, NULL, '{}', '{}', NULL, NULL, NULL, 'empty', NULL)",
    "(3, false, 0, '-0', 0, '', '', '', NULL, NULL, NULL, '-1.5 s', 'null', '\"x\"', NULL, NULL,"
    " NULL, 'sad', 1, '::1/64', NULL, NULL)",
)


@pytest.mark.parametrize("way", ["socket", "libpq", "python"])
def test_rows_are_typed_as_changes_are(
    way: str, reader_any: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read from the socket, through libpq (as with TLS), and without the native library."""
    if way == "libpq":
        monkeypatch.setattr("penstock.feeds.postgres.rows._from_socket", _through_libpq)
    if way == "python":
        monkeypatch.setattr("penstock.feeds.postgres.rows.library", lambda: None)
    reader_any.database.execute(TYPES)
    reader_any.prepare()
    for values in VALUES:
        reader_any.database.execute(f"INSERT INTO t VALUES {values}")
    changes = reader_any.take(3)
    with snapshot_of(reader_any, "t") as snapshot:
        rows = [row for part in rows_of(reader_any, snapshot) for row in part]
    assert [row["after"] for row in rows] == [change["after"] for change in changes]
    for name in ("key", "document_id", "schema_version", "relation_id", "namespace", "collection"):
        assert [row[name] for row in rows] == [change[name] for change in changes]
    assert snapshot.schema.version == changes[0]["schema_version"]


def test_rows_come_over_any_of_many_connections(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a descriptor above those that `select` takes."""
    monkeypatch.setattr("penstock.feeds.postgres.rows._from_socket", _through_libpq)
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1024):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        with snapshot_of(reader, "t") as snapshot:
            assert len(flat(rows_of(reader, snapshot))) == 1


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_ranges_are_together_the_table(rows: int, reader: Reader) -> None:
    reader.prepare(
        "CREATE TABLE t (a text, b int, v text, PRIMARY KEY (a, b));"
        # Many rows with equal leading values: ranges end inside them.
        "INSERT INTO t SELECT 'k' || (n % 3), n, repeat('x', 40) FROM generate_series(1, 500) n"
    )
    with snapshot_of(reader, "t") as snapshot:
        found = rows_of(reader, snapshot, rows=rows)
    assert sorted(row["b"] for row in flat(found)) == list(range(1, 501))
    # A statement for fewer rows than 100 is not worth it, unless fewer are asked for.
    assert max(len(part) for part in found) == min(rows, 500)


def test_a_large_table_is_cut_by_a_sample(
    reader_any: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.feeds.postgres.snapshot._EXACT", 0)
    reader_any.prepare(
        "CREATE TABLE t (a text, b int, v text, PRIMARY KEY (a, b)) PARTITION BY HASH (b);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0);"
        "CREATE TABLE t2 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1);"
        "INSERT INTO t SELECT 'k' || (n % 3), n, repeat('x', 200) FROM generate_series(1, 9000) n;"
        "CREATE TABLE u (a int PRIMARY KEY); CREATE TABLE w (a int PRIMARY KEY);"
        "INSERT INTO w VALUES (1);"
        "CREATE PUBLICATION p FOR TABLE t, u, w WITH (publish_via_partition_root = true)"
    )
    with snapshot_of(reader_any, "t") as snapshot:
        found = rows_of(reader_any, snapshot, rows=900)
    assert sorted(row["b"] for row in flat(found)) == list(range(1, 9001))
    assert len(found) >= 5 and max(map(len, found)) < 4000
    for table, expected in (("u", []), ("w", [{"a": 1}])):
        with snapshot_of(reader_any, table) as snapshot:
            assert flat(rows_of(reader_any, snapshot)) == expected


def test_keys_are_compared_under_the_collation_of_their_column(reader_any: Reader) -> None:
    known = "SELECT collname FROM pg_collation WHERE collname IN ('C', 'en-x-icu', 'default')"
    collations = [name for (name,) in reader_any.database.execute(known)]
    keys = [f"{letter}{n}{end}" for letter in "aAäÄzZ-_'" for n in range(40) for end in ("", " x")]
    for number, collation in enumerate(collations):
        table = f'CREATE TABLE t{number} (k text COLLATE "{collation}" PRIMARY KEY)'
        reader_any.database.execute(table)
        with psycopg.connect(reader_any.database.url) as connection:
            insert = f"INSERT INTO t{number} VALUES (%s)".encode()
            connection.cursor().executemany(insert, [(key,) for key in keys])
    reader_any.prepare()
    for number in range(len(collations)):
        with snapshot_of(reader_any, f"t{number}") as snapshot:
            found = rows_of(reader_any, snapshot, rows=11)
        assert sorted(row["k"] for row in flat(found)) == sorted(keys)
        assert len(found) > 60


# A type whose order is another one than that of the operators a search_path finds: without this
# schema, those of composite types; `ci` sorts as citext does.
_ORDERED = (
    """
CREATE SCHEMA elsewhere; CREATE TYPE elsewhere.ci AS (v text);
CREATE FUNCTION elsewhere.cmp(elsewhere.ci, elsewhere.ci) RETURNS int IMMUTABLE LANGUAGE sql AS
    $$SELECT CASE WHEN lower($1.v) < lower($2.v) COLLATE "C" THEN -1
                  WHEN lower($1.v) = lower($2.v) COLLATE "C" THEN 0 ELSE 1 END$$;
"""
    + "".join(
        f"CREATE FUNCTION elsewhere.f{n}(elsewhere.ci, elsewhere.ci) RETURNS bool IMMUTABLE"
        f" LANGUAGE sql AS 'SELECT elsewhere.cmp($1, $2) {sign} 0';"
        f"CREATE OPERATOR elsewhere.{sign} (FUNCTION = elsewhere.f{n}, LEFTARG = elsewhere.ci,"
        " RIGHTARG = elsewhere.ci);"
        for n, sign in enumerate(("<", "<=", "=", ">=", ">"))
    )
    + "CREATE OPERATOR CLASS elsewhere.ci_ops DEFAULT FOR TYPE elsewhere.ci USING btree AS "
    + (
        ", ".join(
            f"OPERATOR {n} elsewhere.{sign}"
            for n, sign in enumerate(("<", "<=", "=", ">=", ">"), 1)
        )
        + ", FUNCTION 1 elsewhere.cmp(elsewhere.ci, elsewhere.ci);"
        "CREATE DOMAIN elsewhere.dom AS elsewhere.ci;"
    )
)
_WORD = "chr(CASE n % 2 WHEN 0 THEN 65 ELSE 97 END + n % 26) || n"
_CI = f"ROW({_WORD})::elsewhere.ci"
# (columns of the key, their values for a number n)
KEYS = {
    "of its own order": (("elsewhere.ci",), (_CI,)),
    "a domain": (("elsewhere.dom",), (_CI,)),
    "an array": (("elsewhere.ci[]",), (f"ARRAY[{_CI}]",)),
    "operators of two schemas": (("int", "elsewhere.ci", "text"), ("n % 3", _CI, _WORD)),
    "a composite": (("others.pair",), (f"ROW(n % 5, {_WORD})::others.pair",)),
    "char": (("char(9)", '"char"'), (_WORD, "(n % 10)::text")),
    "citext": (("elsewhere.citext",), (_WORD,)),
    "ltree": (("elsewhere.ltree", "elsewhere.citext"), ("('a.b' || n)::elsewhere.ltree", _WORD)),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_keys_are_compared_by_the_operators_of_their_index(
    kind: str, reader_any: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, (types, values) = reader_any.database, KEYS[kind]
    database.execute(f"{_ORDERED} CREATE SCHEMA others;")
    for extension in ("citext", "ltree"):
        if any(extension in each for each in types):
            try:
                database.execute(f"CREATE EXTENSION {extension} SCHEMA elsewhere")
            except psycopg.errors.FeatureNotSupported as error:
                pytest.skip(str(error))
    names = [f"k{n}" for n in range(len(types))]
    database.execute(
        "CREATE TYPE others.pair AS (a int, b text); CREATE TABLE t (n int, "
        + ", ".join(f"{name} {each}" for name, each in zip(names, types, strict=True))
        + f", filler text, PRIMARY KEY ({', '.join(names)}));"
        f"INSERT INTO t SELECT n, {', '.join(values)}, repeat('x', 400)"
        " FROM generate_series(1, 600) n; ANALYZE t"
    )
    reader_any.prepare()
    with snapshot_of(reader_any, "t") as snapshot:
        assert snapshot.mark
        for exact in (2**30, 0):
            monkeypatch.setattr("penstock.feeds.postgres.snapshot._EXACT", exact)
            found = rows_of(reader_any, snapshot, rows=11, size=8192)
            assert sorted(row["n"] for row in flat(found)) == list(range(1, 601))
            assert len(found) > 20


def test_nothing_of_ours_is_found_through_a_search_path(reader_any: Reader) -> None:
    """Whatever a role's path has before pg_catalog: the same rows, the same documents."""
    database = reader_any.database
    database.execute(
        "CREATE TABLE keyed (id text PRIMARY KEY, c regclass, v int DEFAULT 7);"
        "CREATE TABLE paged (id text, v int);"
        "INSERT INTO keyed SELECT 'k' || n, 'paged', n FROM generate_series(1, 500) n;"
        "INSERT INTO paged SELECT id, v FROM keyed"
    )
    database.execute("CREATE PUBLICATION p FOR TABLE keyed, paged")
    reader_any.prepare()
    database.execute("INSERT INTO keyed VALUES ('k501', 'paged')")
    (change,) = reader_any.take(1)
    assert change["after"]["c"] == "public.paged"
    before, expected = reader_any.feed.schemas(), {}
    for table in ("keyed", "paged"):
        with snapshot_of(reader_any, table) as snapshot:
            rows = flat(rows_of(reader_any, snapshot))
        assert table == "paged" or change["after"] in rows
        expected[table] = sorted(row["id"] for row in rows)
    assert [len(found) for found in expected.values()] == [501, 500]
    signs = ["<", "<=", "=", ">=", ">", "<>"]
    database.execute(
        "CREATE SCHEMA hostile;"
        "CREATE FUNCTION hostile.no(text, text) RETURNS bool LANGUAGE sql AS 'SELECT false';"
        "CREATE FUNCTION hostile.no(name, text) RETURNS bool LANGUAGE sql AS 'SELECT false';"
        "CREATE FUNCTION hostile.no(tid, tid) RETURNS bool LANGUAGE sql AS 'SELECT false';"
        "CREATE FUNCTION hostile.mod(int8, int8) RETURNS int8 LANGUAGE sql AS 'SELECT 0::int8';"
        "CREATE FUNCTION hostile.format(text, text) RETURNS text LANGUAGE sql AS 'SELECT $1';"
        "CREATE FUNCTION hostile.format_type(oid, int) RETURNS text LANGUAGE sql AS 'SELECT $1';"
        + "".join(
            f"CREATE OPERATOR hostile.{sign} (FUNCTION = hostile.no, LEFTARG = {left},"
            f" RIGHTARG = {right});"
            for sign in signs
            for left, right in (("text", "text"), ("name", "text"), ("tid", "tid"))
        )
        + f"ALTER DATABASE {database.name} SET search_path = hostile, pg_catalog"
    )  # fmt: skip
    for table, ids in expected.items():
        with snapshot_of(reader_any, table) as snapshot:
            found = rows_of(reader_any, snapshot, rows=50, size=8192)
        assert len(found) > 1
        assert sorted(row["id"] for row in flat(found)) == ids
    assert [*reader_any.feed.schemas()] == [*before]


def test_a_table_without_a_key_is_cut_by_its_pages(reader_any: Reader) -> None:
    reader_any.prepare(
        "CREATE TABLE t (v int, s text);"
        "INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 2000) n"
    )
    with snapshot_of(reader_any, "t") as snapshot:
        reader_any.database.execute("INSERT INTO t SELECT n, 'late' FROM generate_series(1, 99) n")
        found = rows_of(reader_any, snapshot, size=16384)
    assert sorted(row["v"] for row in flat(found)) == list(range(1, 2001))
    assert len(found) > 3


def test_a_partitioned_table_is_read_by_its_root(reader_any: Reader) -> None:
    reader_any.database.execute(
        "CREATE TABLE t (id int, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE t2 (v text, id int NOT NULL);"  # other order of columns
        "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (100) TO (1000);"
        "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 300) n;"
        "CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root = true)"
    )
    reader_any.prepare()
    with snapshot_of(reader_any, "t") as snapshot:
        keyless = rows_of(reader_any, snapshot)
    reader_any.database.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    with snapshot_of(reader_any, "t") as snapshot:
        keyed = rows_of(reader_any, snapshot, rows=70)
    for found in (keyless, keyed):
        rows = sorted(flat(found), key=lambda row: row["id"])
        assert rows == [{"id": n, "v": f"v{n}"} for n in range(1, 301)]


def test_a_table_that_inherits_is_another_table(reader: Reader) -> None:
    reader.prepare(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE child () INHERITS (t);"
        "INSERT INTO t VALUES (1); INSERT INTO child VALUES (2)"
    )
    with snapshot_of(reader, "t") as snapshot:
        assert flat(rows_of(reader, snapshot)) == [{"id": 1}]


def test_an_empty_table_has_no_rows(reader: Reader) -> None:
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (v int)")
    for table in ("t", "u"):
        with snapshot_of(reader, table) as snapshot:
            assert flat(rows_of(reader, snapshot)) == []


def test_what_the_publication_leaves_out_is_left_out(reader_any: Reader) -> None:
    reader_any.prepare(
        "CREATE TABLE t (id int PRIMARY KEY, secret text, v int);"
        "INSERT INTO t SELECT n, 's', n % 10 FROM generate_series(1, 100) n;"
        "CREATE PUBLICATION p FOR TABLE t (id, v) WHERE (id < 31)"
    )
    with snapshot_of(reader_any, "t") as snapshot:
        rows = flat(rows_of(reader_any, snapshot, rows=7))
    assert rows == [{"id": n, "v": n % 10} for n in range(1, 31)]


def test_the_first_commit_after_the_point_is_neither_lost_nor_doubled(reader_any: Reader) -> None:
    """Many writers, with transactions that began long before; strict: what is before the point is
    in the rows, all else is not."""
    reader_any.prepare("CREATE TABLE t (id int PRIMARY KEY, w int)")
    stop = threading.Event()

    def write(writer: int) -> None:
        with psycopg.connect(reader_any.database.url) as connection:
            number = writer
            while not stop.is_set():
                for _ in range(3):
                    connection.execute("INSERT INTO t VALUES (%s, %s)", (number, writer))
                    number += 4
                connection.commit() if number % 5 else connection.rollback()

    writers = [threading.Thread(target=write, args=(one,)) for one in range(4)]
    for each in writers:
        each.start()
    try:
        taken = []
        for _ in range(5):
            reader_any.take(50)
            with snapshot_of(reader_any, "t") as snapshot:
                taken.append(
                    (snapshot.position, {one["id"] for one in flat(rows_of(reader_any, snapshot))})
                )
    finally:
        stop.set()
        for each in writers:
            each.join()
    with psycopg.connect(reader_any.database.url) as connection:
        found = connection.execute("SELECT count(*) FROM t").fetchone()
    assert found is not None
    reader_any.until(lambda: len(reader_any.rows) >= found[0])
    for position, rows in taken:
        before = {
            row["after"]["id"]
            for row in reader_any.rows
            if f"{row['cursor']}:{row['ordinal']}" < position
        }
        assert rows == before


def test_commits_that_wait_for_a_paused_standby_are_neither_lost_nor_doubled(
    server: Postgres,
) -> None:
    """While a commit waits for a synchronous standby, decoding sees it and snapshots do not. One
    begins to wait before the snapshot is asked for, another while it is made."""
    with ExitStack() as stack:
        database = stack.enter_context(server.database())
        database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (0)")
        reader = Reader(database).prepare()
        stack.callback(reader.close)
        pool = stack.enter_context(ThreadPoolExecutor())

        def standby(name: str) -> None:
            server.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
            server.execute("SELECT pg_reload_conf()")

        def waiting(count: int) -> bool:
            query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            return bool(server.execute(query) == [(count,)])

        def commit(number: int) -> Future[Any]:
            return pool.submit(database.execute, "INSERT INTO t VALUES (%s)", [number])

        def take() -> tuple[str, set[int]]:
            with snapshot_of(reader, "t") as snapshot:
                return snapshot.position, {one["id"] for one in flat(rows_of(reader, snapshot))}

        standby("paused")
        stack.callback(standby, "")  # also where the test fails: the pool waits for commits
        commits = [commit(1)]
        until(lambda: waiting(1))
        reader.until(lambda: any(row["after"] == {"id": 1} for row in reader.rows))
        taking = pool.submit(take)
        commits.append(commit(2))
        until(lambda: waiting(2))
        assert not taking.done()
        standby("")
        position, rows = taking.result(60)
        for each in commits:
            each.result(60)
        database.execute("INSERT INTO t VALUES (3)")
        reader.until(lambda: any(row["after"] == {"id": 3} for row in reader.rows))
        before = {
            row["after"]["id"]
            for row in reader.rows
            if f"{row['cursor']}:{row['ordinal']}" < position
        }
    assert rows == {0} | before
    assert 1 in rows


def test_a_transaction_of_300_000_rows_is_before_the_point_or_after_it(reader: Reader) -> None:
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    insert = "INSERT INTO t SELECT n FROM generate_series(%s::int, %s::int) n"

    def take() -> tuple[str, int]:
        with snapshot_of(reader, "t") as snapshot:
            reader.database.execute(insert, (300_001, 600_000))  # after the point
            return snapshot.position, len(flat(rows_of(reader, snapshot, 100_000, 2**24)))

    with psycopg.connect(reader.database.url) as connection, ThreadPoolExecutor() as pool:
        connection.execute(insert, (1, 300_000))
        taking = pool.submit(take)
        until(lambda: bool(reader.database.execute(_HELD_UP)))
        connection.commit()
        position, rows = taking.result(120)
    assert rows == 300_000
    before = after = 0
    deadline = time.monotonic() + 120
    while before + after < 600_000:
        assert time.monotonic() < deadline
        for page in reader.following.read(0.5):
            assert (str(page.first) < position) == (str(page.last) < position)
            before += page.count if str(page.last) < position else 0
            after += 0 if str(page.last) < position else page.count
    assert (before, after) == (300_000, 300_000)


def test_positions_are_of_the_history_that_changes_are_of(reader: Reader) -> None:
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    known = {reader.slot: Bookmark(None, {"era": "e0002-"})}
    with reader.feed.snapshot("public", "t", known, SnapshotWait(patience=PATIENCE)) as snapshot:
        assert snapshot.position.startswith("e0002-0000")
        rows = rows_of(reader, snapshot)
    assert rows == [[]]


def test_the_table_cannot_be_rewritten_meanwhile(reader: Reader) -> None:
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with snapshot_of(reader, "t") as snapshot:
        with pytest.raises(psycopg.errors.LockNotAvailable):
            reader.database.execute("SET lock_timeout = '100ms'; TRUNCATE t")
        assert flat(rows_of(reader, snapshot)) == [{"id": 1}]
        slots = (
            "SELECT 1 FROM pg_replication_slots WHERE temporary AND database = current_database()"
        )
        # Its connection is closed; the server ends it when it notices.
        until(lambda: not reader.database.execute(slots))
    reader.database.execute("SET lock_timeout = '20s'; TRUNCATE t")


def test_a_rewrite_that_waits_is_not_held_up_by_a_late_reader(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.feeds.postgres.snapshot._READER", 0.5)
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    waiting = (
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    with (
        ThreadPoolExecutor() as pool,
        snapshot_of(reader, "t") as snapshot,
        snapshot.source.opened() as pages,
    ):
        rewrite = pool.submit(reader.database.execute, "TRUNCATE t")
        until(lambda: reader.database.execute(waiting) != [(0,)])
        # Who is late would wait for the rewrite, which waits for the snapshot's end.
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="lock"), snapshot.source.opened():
            raise AssertionError
        assert time.monotonic() - begun < PATIENCE / 2
        (part,) = snapshot.plan(10, 1000)
        assert [row["after"] for row in reader.decode(list(pages(part, 10, 1000)))] == [{"id": 1}]
        assert not rewrite.done()
    rewrite.result(60)


def test_the_process_that_holds_a_snapshot_up_is_reported(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.feeds.postgres.connect._EVERY", 0.1)
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    told: list[str] = []
    with psycopg.connect(reader.database.url) as old, ThreadPoolExecutor() as pool:
        old.execute("INSERT INTO t VALUES (1)")
        pid = f"process {old.info.backend_pid} (idle in transaction) since 20"

        def take() -> None:
            wait = SnapshotWait(patience=PATIENCE, on_wait=told.append)
            with reader.feed.snapshot("public", "t", {}, wait):
                pass

        taking = pool.submit(take)
        until(lambda: any(pid in text for text in told))
        old.commit()
        taking.result(60)
    assert told[-1] == ""


@pytest.mark.parametrize("holds", ["INSERT INTO t VALUES (1)", "LOCK TABLE t"])
def test_a_prepared_transaction_that_holds_a_snapshot_up_is_named(
    holds: str, reader_any: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no process: a new slot waits for it, and so does the table's lock."""
    monkeypatch.setattr("penstock.feeds.postgres.connect._EVERY", 0.1)
    reader_any.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    gid, told = f"it's {reader_any.database.name}", list[str]()
    named = f"the prepared transaction 'it''s {reader_any.database.name}' since 20"
    with psycopg.connect(reader_any.database.url, autocommit=True) as other:
        other.execute("BEGIN")
        other.execute(holds.encode())
        other.execute(sql.SQL("PREPARE TRANSACTION {}").format(gid))
        try:
            taking = reader_any.feed.snapshot(
                "public", "t", {}, SnapshotWait(patience=3, on_wait=told.append)
            )
            with pytest.raises(Unavailable, match=re.escape(f"waited for {named}")), taking:
                raise AssertionError
        finally:
            other.execute(sql.SQL("ROLLBACK PREPARED {}").format(gid))
    assert any(named in text for text in told) and told[-1] == ""


@pytest.mark.parametrize("statement", ["SELECT pg_sleep(600)", "LOCK TABLE public.t"])
def test_a_statement_ends_when_it_is_stopped(reader: Reader, statement: str) -> None:
    """Here and at the server."""
    reader.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    running = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
        " AND application_name = 'penstock'"
    )
    stopped = threading.Event()
    with (
        psycopg.connect(reader.database.url) as other,
        closing(connect_reading(reader.settings, stopped.is_set)) as connection,
        ThreadPoolExecutor() as pool,
    ):
        other.execute("LOCK TABLE public.t")
        connection.execute("BEGIN")
        waiting = pool.submit(connection.execute, statement.encode())
        until(lambda: bool(reader.database.execute(running)))
        stopped.set()
        with pytest.raises(psycopg.OperationalError, match="cancelled"):
            waiting.result(60)
        until(lambda: not reader.database.execute(running))


@pytest.mark.parametrize("way", ["socket", "libpq"])
def test_rows_that_do_not_come_are_not_waited_for_when_it_is_stopped(
    way: str, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "libpq":
        monkeypatch.setattr("penstock.feeds.postgres.rows._from_socket", _through_libpq)
    stopped = threading.Event()
    with (
        closing(connect_reading(reader.settings, stopped.is_set)) as connection,
        ThreadPoolExecutor() as pool,
    ):
        query = sql.SQL("COPY (SELECT pg_sleep({})) TO STDOUT").format(600)
        waiting = pool.submit(lambda: len(list(copied(connection, query, "reading"))))
        stopped.set()
        with pytest.raises(Unavailable, match="cancelled"):
            waiting.result(60)


def test_a_server_without_tid_range_scans_reads_a_leaf_at_once(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL 13: each range of pages would read the whole table."""
    monkeypatch.setattr("penstock.feeds.postgres.snapshot._PAGES_SINCE", 990_000)
    reader.prepare(
        "CREATE TABLE t (v int, s text);"
        "INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 2000) n"
    )
    with snapshot_of(reader, "t") as snapshot:
        found = rows_of(reader, snapshot, size=16384)
    assert [len(part) for part in found] == [2000]


def test_another_history_is_noticed(reader: Reader) -> None:
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    with snapshot_of(reader, "t") as snapshot:
        snapshot.verify({reader.slot: Bookmark(None, {"flushed": "0/1"})})
        with pytest.raises(Unavailable, match="history"):
            snapshot.verify({reader.slot: Bookmark(None, {"era": "e0001-"})})


def test_what_cannot_be_read_is_refused(reader: Reader) -> None:
    user = f"u_{reader.database.name}"
    reader.prepare(
        "CREATE TABLE t (id int PRIMARY KEY); CREATE VIEW v AS SELECT * FROM t;"
        "CREATE TABLE hidden (id int PRIMARY KEY); INSERT INTO hidden VALUES (1);"
        "ALTER TABLE hidden ENABLE ROW LEVEL SECURITY;"
        f"CREATE ROLE {user} LOGIN REPLICATION; GRANT SELECT ON hidden TO {user};"
        "CREATE POLICY none ON hidden USING (false)"
    )
    with pytest.raises(SettingsError, match=r"does not send public\.v"), snapshot_of(reader, "v"):
        raise AssertionError
    with pytest.raises(SettingsError, match="no"), snapshot_of(reader, "absent"):
        raise AssertionError
    url = reader.database.url.replace("//postgres@", f"//{user}@")
    assert url != reader.database.url
    theirs = PostgresFeed(
        reader.settings.model_copy(update={"connection": type(reader.settings.connection)(url)})
    )
    with pytest.raises(SettingsError, match="permission denied"):
        theirs.snapshot("public", "t", {}, SnapshotWait(patience=PATIENCE)).__enter__()
    with (
        pytest.raises(SettingsError, match="row-level security"),
        theirs.snapshot("public", "hidden", {}, SnapshotWait(patience=PATIENCE)) as snapshot,
    ):
        rows_of(reader, snapshot)
    reader.database.execute(f"DROP OWNED BY {user}; DROP ROLE {user}")
