"""The job of the page keeps the table, over a kill in the middle of a merge."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.docs.pages import DOCS
from tests.microbatch.sources import is_read
from tests.pipeline.running import SHORT_LIVED
from tests.servers import Database
from tests.slots import drop_slots
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PAGE = (DOCS / "how-to" / "lake-by-spark.md").read_text()


def blocks(kind: str) -> list[str]:
    found = re.findall(rf"^    ```{kind}\n(.*?)^    ```", PAGE, re.DOTALL | re.MULTILINE)
    return [re.sub(r"(?m)^    ", "", each) for each in found]


class Job:
    def __init__(self, folder: Path, database: Database) -> None:
        self.lake, self._folder = folder / "lake", folder
        job, self._reading = (
            text.replace("postgresql://reader@db/shop", database.url).replace(
                "/data/lake/orders", str(self.lake)
            )
            for text in blocks("python")
        )
        (folder / "lake.py").write_text(job)

    def start(self) -> "subprocess.Popen[bytes]":
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "lake.py"], cwd=self._folder, stdout=log, stderr=log,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable,
                     "JDK_JAVA_OPTIONS": SHORT_LIVED},
                start_new_session=True,
            )  # fmt: skip

    def run(self) -> None:
        assert self.start().wait(300) == 0, (self._folder / "log").read_text()[-4000:]

    def newest(self) -> int:
        return max(
            (int(each.parent.name[1:]) for each in self.lake.glob("v*/_SUCCESS")), default=-1
        )

    def rows(self) -> list[tuple[object, ...]]:
        table = pq.read_table(self.lake / f"v{self.newest()}").to_pylist()
        kept = [row for row in table if row["_operation"] != "DELETE"]
        return sorted((row["id"], row["name"], row["price"]) for row in kept)

    def shown(self) -> str:
        """What the page's reader prints."""
        done = subprocess.run(
            [sys.executable, "-c", self._reading], capture_output=True, text=True, check=True
        )
        return done.stdout


def test_the_job_of_the_page_keeps_the_table(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, name text, price numeric(10,2));"
        "INSERT INTO orders SELECT n, 'order ' || n, n FROM generate_series(1, 300) n"
    )
    for statement in blocks("sql")[0].rstrip().removesuffix(";").split(";\n"):
        database.execute(statement)
    job = Job(tmp_path, database)

    def wanted() -> list[tuple[object, ...]]:
        return sorted(database.execute("SELECT id, name, price FROM orders"))

    job.run()
    assert job.rows() == wanted()
    database.execute("UPDATE orders SET price = price + 0.5 WHERE id % 3 = 0")
    database.execute("DELETE FROM orders WHERE id % 7 = 0")
    database.execute("UPDATE orders SET id = id + 1000 WHERE id < 10")
    database.execute("INSERT INTO orders VALUES (7, 'again', NULL)")
    killed, before = job.start(), job.newest()
    while not list(job.lake.glob(f"v{before + 1}/_temporary")) and job.newest() == before:
        assert killed.poll() is None, (tmp_path / "log").read_text()[-4000:]
        time.sleep(0.005)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    until(lambda: not is_read(database))
    database.execute("DELETE FROM orders WHERE id = 1001")
    job.run()
    assert job.rows() == wanted()
    assert "again" in job.shown()
    drop_slots(database)
