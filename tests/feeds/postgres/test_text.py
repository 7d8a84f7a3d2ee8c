"""Lines of every kind of value, given to COPY, make the table that they are of."""

import json
from collections.abc import Callable

import psycopg
from psycopg import sql

from penstock.model.page import Page
from penstock.wire.pgoutput.values import SESSION
from tests.feeds.postgres.reading import Reader, whole_pages
from tests.feeds.postgres.test_snapshot import snapshot_of
from tests.servers import Database
from tests.wire.kinds import KINDS, LIVE, LIVE_SETUP


def _copied(reader: Reader, pages: list[Page], target: str) -> None:
    """Gives all `after` lines of these pages to COPY, as the descriptions name the columns."""
    decoder = reader.feed.decoder("text")
    batches = [batch for page in pages for batch in decoder.decode(page)]
    first = json.loads(batches[0].column("delta")[0].as_py())
    columns = [sql.Identifier(column["name"]) for column in first["columns"]]
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier("public", target), sql.SQL(", ").join(columns)
    )
    with psycopg.connect(reader.database.url) as connection:
        for name, value in SESSION.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        with connection.cursor().copy(statement) as copy:
            for batch in batches:
                for line in batch.column("after").to_pylist():
                    copy.write(line.encode() + b"\n")


def _texts(database: Database, table: str) -> list[tuple[str]]:
    return database.execute(f"SELECT t::text FROM {table} t ORDER BY id")


def test_lines_are_the_rows_of_the_table(reader_any: Reader) -> None:
    database = reader_any.database
    ((version,),) = database.execute("SHOW server_version_num")
    kinds = [kind for kind in (*KINDS, *LIVE) if kind.known_to(int(version) // 10_000)]
    columns = ", ".join(f"{kind.name} {kind.type}" for kind in kinds)
    rows = (f"1, {', '.join(kind.sql for kind in kinds)}", f"2{', NULL' * len(kinds)}")
    database.execute(LIVE_SETUP)
    database.execute(f"CREATE TABLE t (id integer PRIMARY KEY, {columns})")
    for copy in ("by_change", "by_snapshot"):
        database.execute(f"CREATE TABLE {copy} (LIKE t)")
    reader_any.prepare()
    for row in rows:
        database.execute(f"INSERT INTO t VALUES ({row})")
    reader_any.take(2)
    _copied(reader_any, reader_any.pages, "by_change")
    with snapshot_of(reader_any, "t") as snapshot, snapshot.source.opened() as pages:
        parts = [page for part in snapshot.plan(100, 2**20) for page in pages(part, 100, 2**20)]
    _copied(reader_any, parts, "by_snapshot")
    assert len(_texts(database, "t")) == 2
    for copy in ("by_change", "by_snapshot"):
        assert _texts(database, copy) == _texts(database, "t")


def test_the_last_page_of_a_transaction_says_that_it_is(reader_of: Callable[..., Reader]) -> None:
    """Also where the page is full with its last change: COMMIT has no row to come with."""
    reader = reader_of(page_rows=3)
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    reader.database.execute("INSERT INTO t SELECT n FROM generate_series(1, 6) n")
    reader.take(6)
    reader.database.execute("INSERT INTO t SELECT n FROM generate_series(7, 9) n")
    reader.take(3)
    for page in (reader.pages[1], reader.pages[2]):
        assert whole_pages(reader, page.last.cursor)[-1]
    assert whole_pages(reader, reader.pages[0].last.cursor) == [False, True]
