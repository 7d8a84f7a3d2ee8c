"""Declarative Pipelines: the page's files, run by `spark-pipelines`, as a user would."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.docs.pages import DOCS
from tests.microbatch.sources import Table, table_in
from tests.pipeline.running import SHORT_LIVED
from tests.servers import Database
from tests.spark.connect.conftest import HOME, environment

pytestmark = pytest.mark.spark

CATALOG = Path(__file__).with_name("MemoryCatalog.java")
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

    def run(
        self, script: str, *, fails: bool = False, outlives: bool = False,
        catalog: Path | None = None,
    ) -> str:  # fmt: skip
        """`outlives`: the catalog knows the tables in the next run, which takes some seconds.
        `catalog`: the folder with the class of the catalog that tables are in."""
        conf = ["--conf", "spark.sql.catalogImplementation=hive"] if outlives else []
        if catalog is not None:
            with (self.folder / "spark-pipeline.yml").open("a") as spec:
                spec.write("catalog: lake\ndatabase: shop\n")
            conf += ["--conf", f"spark.sql.catalog.lake={CATALOG.stem}"]
        (self.folder / "transformations" / "orders.py").write_text(script)
        done = subprocess.run(
            [
                str(HOME / "bin" / "spark-pipelines"), "run", "--conf", "spark.ui.enabled=false",
                *conf,
            ],
            capture_output=True, text=True, cwd=self.folder, check=False, timeout=400,
            env=environment(
                self._path, JDK_JAVA_OPTIONS=SHORT_LIVED, SPARK_HOME=str(HOME),
                SPARK_DIST_CLASSPATH=str(catalog or ""),
            ),
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
        pipeline.run(pipeline.blocks[0], outlives=True)
    assert pipeline.rows("order_changes") == list(range(1, 1_521))


def test_the_flow_of_the_page_is_taken_and_parquet_refused(
    pipeline: Pipeline, table: Table
) -> None:
    table.write(10)
    log = pipeline.run(pipeline.blocks[1], fails=True)
    assert "AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE" in log
    assert "`orders` (format: parquet)" in log


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (javac := shutil.which("javac")) is None:
        pytest.skip("no javac: a table format with MERGE is compiled for this test")
    folder = tmp_path_factory.mktemp("catalog")
    subprocess.run(
        [javac, "--release", "17", "-proc:none", "-nowarn", "-cp", str(HOME / "jars" / "*"),
         "-d", str(folder), str(CATALOG)],
        check=True, timeout=300,
    )  # fmt: skip
    return folder


def change(table: Table) -> None:
    table.database.execute(
        "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t ADD name text;"
        "INSERT INTO t SELECT i FROM generate_series(1, 4) i"
    )
    table.database.execute("UPDATE t SET name = 'a' WHERE id < 3")
    table.database.execute("UPDATE t SET name = 'b' WHERE id = 2")
    table.database.execute("DELETE FROM t WHERE id = 3")


def rows_of(pipeline: Pipeline) -> list[dict[str, Any]]:
    text = (pipeline.folder / "shop.orders.json").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_the_flow_of_the_page_makes_the_table_of_its_changes(
    pipeline: Pipeline, table: Table, catalog: Path
) -> None:
    change(table)
    pipeline.run(pipeline.blocks[1], catalog=catalog)
    found = {row["id"]: row["name"] for row in rows_of(pipeline)}
    assert found == {1: "a", 2: "b", 4: None}


@pytest.mark.thorough  # the flow of the test above, as SCD 2
def test_the_flow_of_the_page_makes_the_history_of_the_table(
    pipeline: Pipeline, table: Table, catalog: Path
) -> None:
    change(table)
    script = pipeline.blocks[1].replace("stored_as_scd_type=1", "stored_as_scd_type=2")
    pipeline.run(script, catalog=catalog)
    rows = sorted(rows_of(pipeline), key=lambda row: (row["id"], row["__START_AT"]))
    assert [(row["id"], row["name"], row["__END_AT"] is None) for row in rows] == [
        (1, None, False), (1, "a", True), (2, None, False), (2, "a", False), (2, "b", True),
        (3, None, False), (4, None, True),
    ]  # fmt: skip
    later = {row["__START_AT"] for row in rows}
    assert {row["__END_AT"] for row in rows if row["id"] == 2 and row["__END_AT"]} <= later
