"""Declarative Pipelines: the page's files, run by `spark-pipelines`, as a user would."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.docs.pages import DOCS
from tests.microbatch.sources import Table, table_in
from tests.pipeline.running import SHORT_LIVED
from tests.servers import Database
from tests.spark.connect.conftest import HOME, environment

pytestmark = pytest.mark.spark

PAGE = DOCS / "reference" / "spark.md"


@pytest.fixture
def table(database: Database) -> Iterator[Table]:
    with table_in(database) as made:
        database.execute("CREATE PUBLICATION runs FOR TABLE t")
        database.execute("SELECT pg_create_logical_replication_slot('runs', 'pgoutput')")
        yield made


class Pipeline:
    """The folder of one; `run` returns its log."""

    def __init__(self, folder: Path, path: str, database: Database) -> None:
        self.folder, self._path = folder, path
        (folder / "transformations").mkdir()
        section = PAGE.read_text().partition("## Declarative Pipelines\n")[2].partition("\n## ")[0]
        blocks = re.findall(r"^```(\w+)\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        (spec,) = (text for kind, text in blocks if kind == "yaml")
        spec = spec.replace("file:///data/orders-pipeline", f"file://{folder}")
        (folder / "spark-pipeline.yml").write_text(spec)
        self.blocks = [
            text.replace("postgresql://reader@db/shop", database.url).replace(".orders", ".t")
            for kind, text in blocks
            if kind == "python"
        ]

    def run(self, script: str, *, fails: bool = False) -> str:
        (self.folder / "transformations" / "orders.py").write_text(script)
        done = subprocess.run(
            [
                str(HOME / "bin" / "spark-pipelines"), "run", "--conf", "spark.ui.enabled=false",
                "--conf", "spark.sql.catalogImplementation=hive",
            ],
            capture_output=True, text=True, cwd=self.folder, check=False, timeout=400,
            env=environment(self._path, JDK_JAVA_OPTIONS=SHORT_LIVED, SPARK_HOME=str(HOME)),
        )  # fmt: skip
        log = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, log[-4000:]
        return log

    def rows(self, table: str) -> list[int]:
        found = pq.read_table(self.folder / "spark-warehouse" / table)
        return sorted(found.column("id").to_pylist())


@pytest.fixture
def pipeline(connect_path: str, tmp_path: Path, database: Database) -> Pipeline:
    return Pipeline(tmp_path, connect_path, database)


def test_a_streaming_table_of_changes_goes_on_at_each_run(pipeline: Pipeline, table: Table) -> None:
    for rows in (1_500, 20):
        table.write(rows)
        pipeline.run(pipeline.blocks[0])
    assert pipeline.rows("order_changes") == list(range(1, 1_521))


def test_the_flow_of_the_page_is_taken_and_parquet_refused(
    pipeline: Pipeline, table: Table
) -> None:
    table.write(10)
    log = pipeline.run(pipeline.blocks[1], fails=True)
    assert "AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE" in log
    assert "`orders` (format: parquet)" in log
