"""A client without a JVM: what docs/reference/spark.md says of Spark Connect."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.model.change import COLUMNS
from penstock.sinks.memory import MemorySinkSettings, stored
from tests.microbatch.sources import Table, table_in
from tests.servers import Database
from tests.spark.connect.conftest import ran

pytestmark = pytest.mark.spark

CLIENT = Path(__file__).with_name("client.py")
MADE_UP = {
    "backend": "memory", "changes": "500", "page": "64", "max_events": "100", "patience": "100ms"
}  # fmt: skip


@pytest.fixture
def table(database: Database) -> Iterator[Table]:
    with table_in(database) as made:
        yield made


def test_runs_of_a_table_of_postgresql_into_parquet(
    server: str, connect_path: str, table: Table, tmp_path: Path
) -> None:
    def run() -> Any:
        found = ran(CLIENT, connect_path, server, ["parquet"], table.options, str(tmp_path))
        return found["parquet"]

    assert run()["ids"] == []
    table.write(2_500)
    found = run()
    assert found["ids"] == list(range(1, 2_501))
    assert found["rows"] == 2_500
    assert '"lag_bytes"' in found["latest"]
    table.write(10)
    assert run()["ids"] == list(range(1, 2_511))


@pytest.mark.thorough
def test_the_ways_to_write_from_a_client(server: str, connect_path: str, tmp_path: Path) -> None:
    expected = {
        "registered": list(COLUMNS), "processing_time": 500, "for_each_batch": 500,
        "listener": 500, "sql": 168,
    }  # fmt: skip
    cases = [*expected, "sink", "errors"]
    found = ran(CLIENT, connect_path, server, cases, MADE_UP, str(tmp_path))
    unknown, once = found.pop("errors")
    assert found == {**expected, "sink": None}
    assert len(stored(MemorySinkSettings(folder=str(tmp_path / "sink")))) == 500
    assert "did you mean 'changes'" in unknown
    assert "use trigger(availableNow=True)" in once
