"""The table that is written: ten columns (or another number), alone or among many others."""

import math
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.servers import Database

PUBLICATION = "bench"

# Commits a second that one session is asked for, also if they are asynchronous, and how many
# sessions there are at most.
_COMMITS, _ASYNCHRONOUS, _SESSIONS = 100, 10_000, 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Tables in the publication, which all get rows in turn, and columns of each.

    The first ten columns are those of the standard table; more are texts of twenty characters,
    and with fewer the last of the ten are left out.
    """

    tables: int = 1
    columns: int = 10


TEN = Shape()

_COLUMNS = (
    ("id bigserial PRIMARY KEY", ""),
    ("name text", "'customer ' || n"),
    ("note text", "'a note of ordinary length for row ' || n"),
    ("quantity int", "n % 1000"),
    ("active bool", "n % 2 = 0"),
    ("price numeric(12,4)", "n * 1.0001"),
    ("ratio float8", "n / 7.0"),
    ("changed timestamptz", "clock_timestamp()"),
    ("detail jsonb", "jsonb_build_object('n', n, 'source', 'bench')"),
    ("tags text[]", "ARRAY['red', 'green', 'tag ' || n % 10]"),
)

# Runs in the server, so that no client is the limit: it commits at its own pace and says by how
# many seconds it was late at the worst.
_WRITER = """
CREATE PROCEDURE bench_write(
    rate float8, size bigint, seconds float8, INOUT written bigint, INOUT late float8
) LANGUAGE plpgsql AS $$
DECLARE started float8 := extract(epoch FROM clock_timestamp()); due float8; ahead float8;
BEGIN
    written := 0; late := 0;
    LOOP
        due := written / rate;
        EXIT WHEN due >= seconds;
        ahead := due - (extract(epoch FROM clock_timestamp()) - started);
        IF ahead > 0.002 THEN
            PERFORM pg_sleep(ahead);
        ELSIF -ahead > late THEN
            late := -ahead;
        END IF;
        {insert};
        written := written + size;
        COMMIT;
    END LOOP;
END $$
"""


def backend(database: Database, slot: str) -> dict[str, Any]:
    """The backend of a pipeline file that follows the tables on `slot`."""
    return {
        "type": "postgres",
        "connection": database.url,
        "slot": slot,
        "publication": PUBLICATION,
    }


def create(database: Database, shape: Shape = TEN) -> None:
    """The tables and their publication."""
    for number in range(shape.tables):
        columns = ", ".join(column for column, _ in _columns(shape))
        database.execute(f"CREATE TABLE {_table(number)} ({columns})")
    tables = ", ".join(_table(number) for number in range(shape.tables))
    database.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {tables}")


def write_backlog(
    database: Database, *, rows: int, per_transaction: int = 1000, shape: Shape = TEN
) -> None:
    """`rows` rows in transactions of `per_transaction`, as fast as the server takes them; each
    transaction writes the next table."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for number, first in enumerate(range(1, rows + 1, per_transaction)):
            last = min(first + per_transaction - 1, rows)
            statement = _insert(number % shape.tables, str(first), str(last), shape)
            if last == rows:  # flushes all transactions before it, too
                connection.execute("SET synchronous_commit = on")
            connection.execute(statement.encode())


def write_mix(database: Database, *, rows: int, per_transaction: int = 1000) -> None:
    """Changes of rows all over the first table: of ten four are updates, four inserts, and two are
    deletes of the oldest rows. Its ids have no gaps, but for negative ones."""
    updates, deletes = per_transaction * 4 // 10, per_transaction * 2 // 10
    with psycopg.connect(database.url, autocommit=True) as connection:
        found = connection.execute("SELECT min(id), max(id) FROM bench WHERE id > 0").fetchone()
        assert found is not None
        low, high = found
        for number in range(rows // per_transaction):
            low += deletes
            span = high - low
            connection.execute(
                f"BEGIN; SET LOCAL synchronous_commit = off; {_insert(0, '1', str(updates), TEN)};"
                f"UPDATE bench SET quantity = quantity + 1, note = 'changed' WHERE id = ANY(ARRAY("
                f"SELECT {low} + (n * {span // updates} + {number * 7919}) % {span}"
                f" FROM generate_series(1, {updates}) n));"
                f"DELETE FROM bench WHERE id > 0 AND id < {low}; COMMIT".encode()
            )
            high += updates
        connection.execute("SELECT pg_logical_emit_message(true, 'bench', 'flushed')")


class Writer:
    """Writes `rate` rows a second in transactions of `per_transaction` for `seconds`.

    Over several sessions: a commit waits for the disk, and those of many sessions wait together;
    `asynchronous` ones do not wait.
    `late` is the longest delay of a session behind its schedule, in seconds: if it is not small,
    the rate was not reached.
    """

    def __init__(
        self, database: Database, *, rate: int, per_transaction: int, asynchronous: bool = False
    ) -> None:
        self.rows = 0
        self.late = 0.0
        sessions = math.ceil(rate / per_transaction / (_ASYNCHRONOUS if asynchronous else _COMMITS))
        self.sessions = min(max(sessions, 1), _SESSIONS)
        self._synchronous_commit = "off" if asynchronous else "on"
        self._url, self._rate, self._size = database.url, rate, per_transaction
        last = "written + 1" if per_transaction == 1 else "written + size"
        insert = _insert(0, "written + 1", last, TEN)
        database.execute(_WRITER.format(insert=insert))
        self._threads: list[Future[tuple[int, float]]] = []

    def start(self, seconds: float) -> None:
        """Begins to write; `wait` returns when it is done."""
        pool = ThreadPoolExecutor(self.sessions)
        self._threads = [pool.submit(self._run, seconds) for _ in range(self.sessions)]
        pool.shutdown(wait=False)

    def wait(self) -> None:
        """Until the last commit; raises what the server said."""
        for thread in self._threads:
            rows, late = thread.result()
            self.rows += rows
            self.late = max(self.late, late)

    def _run(self, seconds: float) -> tuple[int, float]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(f"SET synchronous_commit = {self._synchronous_commit}".encode())
            call = b"CALL bench_write(%s, %s, %s, NULL, NULL)"
            rate = self._rate / self.sessions
            found = connection.execute(call, (rate, self._size, seconds)).fetchone()
        assert found is not None
        return int(found[0]), float(found[1])


def _columns(shape: Shape) -> list[tuple[str, str]]:
    more = [(f"more{n} text", "'twenty characters ' || n % 10") for n in range(10, shape.columns)]
    return [*_COLUMNS[: shape.columns], *more]


def _table(number: int) -> str:
    return "bench" if number == 0 else f"bench{number}"


def _insert(number: int, first: str, last: str, shape: Shape) -> str:
    columns = _columns(shape)[1:]
    names = ", ".join(column.split()[0] for column, _ in columns)
    values = ", ".join(value for _, value in columns)
    # For a single row, a series would cost five times as much.
    source = (
        f"(SELECT ({first})::bigint AS n) AS one"
        if first == last
        else f"generate_series({first}::bigint, {last}::bigint) AS n"
    )
    return f"INSERT INTO {_table(number)} ({names}) SELECT {values} FROM {source}"
