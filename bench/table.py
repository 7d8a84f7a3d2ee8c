"""The ten-column table, and the two ways it is written: as a backlog, and at a steady rate."""

import threading
import time

import psycopg

from penstock.demo.servers import Database

__all__ = ["PUBLICATION", "Writer", "create", "write_backlog"]

PUBLICATION = "bench"

_CREATE = """
CREATE TABLE bench (
    id bigserial PRIMARY KEY, name text, note text, quantity int, active bool,
    price numeric(12,4), ratio float8, changed timestamptz, detail jsonb, tags text[]
);
CREATE PUBLICATION bench FOR TABLE bench
"""

_INSERT = """
INSERT INTO bench (name, note, quantity, active, price, ratio, changed, detail, tags)
SELECT 'customer ' || n, 'a note of ordinary length for row ' || n, n % 1000, n % 2 = 0,
       n * 1.0001, n / 7.0, clock_timestamp(), jsonb_build_object('n', n, 'source', 'bench'),
       ARRAY['red', 'green', 'tag ' || n % 10]
FROM generate_series({first}::bigint, {last}::bigint) AS n
"""


def create(database: Database) -> None:
    """The table and its publication."""
    database.execute(_CREATE)


def write_backlog(database: Database, *, rows: int, per_transaction: int = 1000) -> None:
    """`rows` rows in transactions of `per_transaction`, as fast as the server takes them."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for first in range(1, rows + 1, per_transaction):
            last = min(first + per_transaction - 1, rows)
            connection.execute(_INSERT.format(first=first, last=last).encode())


class Writer:
    """Writes `rate` rows a second in transactions of `per_transaction`, from a thread.

    A writer that falls behind its schedule says so in `late` (seconds, at the worst).
    """

    def __init__(self, database: Database, *, rate: int, per_transaction: int) -> None:
        self.rows = 0
        self.late = 0.0
        self._database = database
        self._interval = per_transaction / rate
        self._per_transaction = per_transaction
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stop = threading.Event()

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the transaction in hand."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with psycopg.connect(self._database.url, autocommit=True) as connection:
            statement = _INSERT.replace("{first}", "%s").replace("{last}", "%s").encode()
            due = time.perf_counter()
            while not self._stop.is_set():
                first = self.rows + 1
                connection.execute(
                    statement.replace(b" % ", b" %% "), (first, self.rows + self._per_transaction)
                )
                self.rows += self._per_transaction
                due += self._interval
                wait = due - time.perf_counter()
                self.late = max(self.late, -wait)
                if wait > 0:
                    time.sleep(wait)
