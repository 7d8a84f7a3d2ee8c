"""Transactions of 300,000 rows: bounded memory, streamed while they run or not."""

import resource
from collections.abc import Callable, Iterator

import psycopg
import pytest

from penstock.model.errors import Unavailable
from penstock.model.position import Bookmark
from tests.feeds.postgres.reading import Reader, whole_pages
from tests.servers import Database, Postgres

_ROWS = 300_000
_MIB = 2**20


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(one, marks=pytest.mark.thorough) for one in (15, 16)), 18],
)
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """One that starts to stream, or to spill, soon."""
    settings = {"logical_decoding_work_mem": "256kB", "fsync": False, "max_wal_size": "4GB"}
    with Postgres(version=request.param, settings=settings) as server:
        yield server


@pytest.fixture
def large(server: Postgres) -> Iterator[Database]:
    """A database with the table `t`."""
    with server.database() as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        yield database


@pytest.fixture
def reader_with(large: Database) -> Iterator[Callable[..., Reader]]:
    """Makes a reader with settings."""
    readers: list[Reader] = []

    def make(**settings: object) -> Reader:
        readers.append(Reader(large, **settings).prepare())
        return readers[-1]

    yield make
    for each in readers:
        each.close()


@pytest.mark.parametrize("streaming", [True, False])
def test_300000_rows_in_one_transaction_arrive_in_bounded_memory(
    reader_with: Callable[..., Reader], streaming: bool
) -> None:
    reader = reader_with(streaming=streaming, memory="2MiB")
    reader.following.read(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reader.database.execute(
        f"INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, {_ROWS}) g"
    )
    held = 0
    seen = 0
    while seen < _ROWS:
        for page in reader.following.read(30):
            assert page.first.ordinal == seen
            seen += page.count
        held = max(held, int(reader.following.status()["details"]["in_progress_bytes"]))
    assert seen == _ROWS
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 40 * 1024, f"{grown} KiB for {_ROWS * 150 // _MIB} MiB of rows"
    assert held < 3 * _MIB
    assert (int(reader.following.status()["details"]["spilled_bytes"]) > 0) is streaming


@pytest.mark.parametrize("streaming", [True, False])
def test_300000_rows_that_are_rolled_back_leave_nothing(
    reader_with: Callable[..., Reader], streaming: bool
) -> None:
    reader = reader_with(streaming=streaming, memory="2MiB")
    reader.following.read(0)
    reader.database.execute(
        f"BEGIN; INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, {_ROWS}) g;"
        " ROLLBACK"
    )
    reader.database.execute("INSERT INTO t VALUES (1, 'after')")
    (row,) = reader.take(1)
    assert row["after"] == {"id": 1, "a": "after"}
    status = reader.following.status()["details"]
    assert (status["in_progress"], status["in_progress_bytes"]) == (0, 0)


@pytest.mark.parametrize("streaming", [True, False])
def test_a_restart_in_the_middle_of_a_large_transaction_resumes_exactly_there(
    reader_with: Callable[..., Reader], streaming: bool
) -> None:
    reader = reader_with(streaming=streaming, memory="1MiB")
    reader.database.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 30000) g")
    seen, places = 0, []
    while seen < 10_000:
        for page in reader.following.read(30):
            assert page.first.ordinal == seen
            seen += page.count
            places.append(page.last)
    reader.following.acknowledge(Bookmark(places[-1]))
    reader.following.read(0)
    reader.close()
    following = reader.follow(places[-1])
    try:
        while seen < 30_000:
            for page in following.read(30):
                assert page.first.ordinal == seen
                seen += page.count
    finally:
        following.close()
    assert seen == 30_000


def test_an_aborted_subtransaction_vanishes_from_a_streamed_transaction(
    reader_with: Callable[..., Reader],
) -> None:
    reader = reader_with(memory="1MiB", page_rows=700)
    reader.following.read(0)
    reader.database.execute(
        "BEGIN; INSERT INTO t SELECT g, 'kept' FROM generate_series(1, 5000) g; SAVEPOINT one;"
        "INSERT INTO t SELECT g, 'gone' FROM generate_series(5001, 10000) g;"
        "SAVEPOINT two; INSERT INTO t SELECT g, 'gone' FROM generate_series(10001, 15000) g;"
        "SELECT pg_logical_emit_message(true, 'gone', 'x'); RELEASE SAVEPOINT two;"
        "ROLLBACK TO SAVEPOINT one; SELECT pg_logical_emit_message(true, 'kept', 'x');"
        "INSERT INTO t SELECT g, 'kept' FROM generate_series(15001, 20000) g; COMMIT"
    )
    rows = reader.take(10_001)
    assert [row["ordinal"] for row in rows] == list(range(10_001))
    assert rows[5000]["operation"] == "MESSAGE"
    inserted = [row["after"]["id"] for row in rows if row["operation"] == "INSERT"]
    assert inserted == [*range(1, 5001), *range(15001, 20001)]
    assert "gone" not in str(rows)


def test_a_schema_change_inside_a_streamed_transaction_holds_from_where_it_stands(
    reader_with: Callable[..., Reader],
) -> None:
    reader = reader_with(memory="1MiB", page_rows=900)
    reader.following.read(0)
    reader.database.execute(
        "BEGIN; INSERT INTO t SELECT g, 'x' FROM generate_series(1, 5000) g;"
        "ALTER TABLE t ADD COLUMN n int DEFAULT 7;"
        "INSERT INTO t SELECT g, 'x' FROM generate_series(5001, 10000) g;"
        "ALTER TABLE t RENAME COLUMN a TO b; ALTER TABLE t DROP COLUMN n;"
        "INSERT INTO t SELECT g, 'x' FROM generate_series(10001, 15000) g; COMMIT"
    )
    reader.database.execute("INSERT INTO t VALUES (15001, 'x')")
    rows = reader.take(15_001)
    shapes = [tuple(row["after"]) for row in rows]
    assert shapes == [("id", "a")] * 5000 + [("id", "a", "n")] * 5000 + [("id", "b")] * 5001


def test_two_streamed_transactions_at_once_come_in_commit_order(
    reader_with: Callable[..., Reader],
) -> None:
    reader = reader_with(memory="1MiB")
    reader.following.read(0)
    url = reader.database.url
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        for part in range(5):
            for number, each in enumerate((first, second)):
                start = (number * 5 + part) * 3000
                each.execute(
                    f"INSERT INTO t SELECT g, '{number}'"
                    f" FROM generate_series({start}, {start + 2999}) g"
                )
        second.commit()
        first.commit()
    rows = reader.take(30_000)
    assert [row["after"]["a"] for row in rows] == ["1"] * 15000 + ["0"] * 15000


def test_a_table_altered_in_a_subtransaction_that_is_rolled_back_arrives_all_the_same(
    reader_with: Callable[..., Reader],
) -> None:
    """PostgreSQL 16 and 18 fail at this while they stream ("could not map filenumber"), and would
    fail for ever: the feed then follows without streaming."""
    reader = reader_with(memory="1MiB")
    reader.following.read(0)
    reader.database.execute(
        "BEGIN; INSERT INTO t SELECT g, 'x' FROM generate_series(1, 5000) g; SAVEPOINT s;"
        "INSERT INTO t SELECT g, 'gone' FROM generate_series(5001, 15000) g;"
        "ALTER TABLE t ADD COLUMN n int;"
        "INSERT INTO t SELECT g, 'gone' FROM generate_series(15001, 20000) g;"
        "ROLLBACK TO SAVEPOINT s;"
        "INSERT INTO t SELECT g, 'x' FROM generate_series(20001, 30000) g; COMMIT"
    )
    try:
        rows = reader.take(15_000)
    except Unavailable as error:
        assert "could not map filenumber" in str(error)
        reader.close()
        rows = reader.take(15_000)
        assert reader.following.status()["details"]["streaming"] is False
    assert [row["ordinal"] for row in rows] == list(range(15_000))
    assert {tuple(row["after"]) for row in rows} == {("id", "a")}


@pytest.mark.parametrize("streaming", [True, False])
def test_the_last_page_of_a_transaction_says_that_it_is(
    reader_with: Callable[..., Reader], streaming: bool
) -> None:
    reader = reader_with(streaming=streaming)
    reader.database.execute(
        "INSERT INTO t SELECT n, repeat('x', 200) FROM generate_series(1, 10001) n"
    )
    reader.take(10001)
    whole = whole_pages(reader, reader.pages[0].first.cursor)
    assert whole == [*[False] * (len(whole) - 1), True]
