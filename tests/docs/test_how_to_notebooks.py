"""The page's lines hand a table to DuckDB and pandas without a copy, and to Polars."""

import subprocess
import sys

from tests.docs.pages import DOCS, blocks
from tests.servers import Database
from tests.spark.connect.conftest import connect_path, environment

__all__ = ["connect_path"]

PAGE = (DOCS / "how-to" / "notebooks.md").read_text()
_BEFORE = """
import penstock

stream = penstock.stream("postgres", connection={url!r}, slot="notebook", publication="notebook")
"""
# The addresses of a column's buffers are those of the table's.
_AFTER = """
assert by_operation.order("total").fetchall()[0][0] == "INSERT", by_operation
assert str(in_pandas.dtypes["price"]) == "decimal128(10, 2)[pyarrow]", in_pandas.dtypes
(mine,) = orders["id"].chunks
(other,) = in_pandas["id"].array._pa_array.chunks
assert other.buffers()[1].address == mine.buffers()[1].address
assert "ARROW" in str(duckdb.sql("EXPLAIN SELECT * FROM orders").fetchall())
assert in_polars["price"].to_list() == orders["price"].to_pylist()
"""


def test_a_table_is_read_where_it_is(database: Database, connect_path: str) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, price numeric(10,2));"
        "CREATE PUBLICATION notebook FOR TABLE orders"
    )
    database.execute("SELECT pg_create_logical_replication_slot('notebook', 'pgoutput')")
    database.execute("INSERT INTO orders SELECT n, n * 1.5 FROM generate_series(1, 100) n")
    database.execute("UPDATE orders SET price = 1000 WHERE id > 50")
    (lines,) = (each for each in blocks(PAGE, "python") if "duckdb" in each)
    script = _BEFORE.format(url=database.url) + lines + _AFTER
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, check=False, timeout=120, env=environment(connect_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
