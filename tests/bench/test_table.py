"""The load: how many rows, in which transactions, and whether its rate was reached."""

from collections.abc import Iterator

import pytest

from bench.table import Shape, Writer, create, write_backlog
from tests.servers import Database, Postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres(version=16) as server:
        yield server


@pytest.fixture
def database(postgres: Postgres) -> Iterator[Database]:
    with postgres.database() as made:
        yield made


def rows_in(database: Database, table: str) -> int:
    return int(database.execute(f"SELECT count(*) FROM {table}")[0][0])


def test_a_backlog_goes_round_the_tables(database: Database) -> None:
    create(database, Shape(tables=3, columns=20))
    write_backlog(database, rows=1000, per_transaction=100, shape=Shape(tables=3, columns=20))
    assert [rows_in(database, name) for name in ("bench", "bench1", "bench2")] == [400, 300, 300]
    names = database.execute("SELECT * FROM information_schema.columns WHERE table_name = 'bench2'")
    assert len(names) == 20


def test_fewer_columns_than_ten(database: Database) -> None:
    create(database, Shape(columns=5))
    write_backlog(database, rows=10, shape=Shape(columns=5))
    assert rows_in(database, "bench") == 10


def test_the_writer_writes_its_rate_in_transactions_of_its_size(database: Database) -> None:
    create(database)
    writer = Writer(database, rate=500, per_transaction=10)
    for _ in range(2):
        writer.start(0.5)
        writer.wait()
    assert writer.rows == rows_in(database, "bench") == 500
    transactions = database.execute("SELECT count(DISTINCT xmin::text) FROM bench")
    assert int(transactions[0][0]) == 50


@pytest.mark.parametrize(("asynchronous", "sessions"), [(False, 20), (True, 1)])
def test_single_rows_are_all_alike_however_they_are_committed(
    database: Database, asynchronous: bool, sessions: int
) -> None:
    create(database)
    writer = Writer(database, rate=2000, per_transaction=1, asynchronous=asynchronous)
    assert writer.sessions == sessions
    writer.start(0.2)
    writer.wait()
    assert writer.rows == rows_in(database, "bench") == 400
    transactions = database.execute("SELECT count(DISTINCT xmin::text) FROM bench")
    assert int(transactions[0][0]) == 400
    ((note, quantity, tags),) = database.execute(
        "SELECT note, quantity, tags FROM bench ORDER BY quantity DESC LIMIT 1"
    )
    last = 400 // sessions
    assert note == f"a note of ordinary length for row {last}"
    assert (quantity, tags) == (last, ["red", "green", f"tag {last % 10}"])


def test_a_rate_that_is_not_reached_is_said(database: Database) -> None:
    create(database)
    writer = Writer(database, rate=10_000_000, per_transaction=1)
    writer.start(0.0005)
    writer.wait()
    assert writer.rows >= 5000
    assert writer.late > 0.001


def test_what_stops_the_writer_is_raised(database: Database) -> None:
    create(database)
    writer = Writer(database, rate=10, per_transaction=1)
    database.execute("DROP TABLE bench CASCADE")
    writer.start(1)
    with pytest.raises(Exception, match="bench"):
        writer.wait()
