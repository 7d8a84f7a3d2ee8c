"""Spark Connect: a server with the same Spark, and clients without a JVM."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from penstock.demo.servers import free_port
from tests.pipeline.running import SHORT_LIVED

ROOT = Path(__file__).parents[3]
# What `pyspark[connect]` needs besides PySpark: pandas would come into every worker of the suite.
CONNECT = ROOT / ".venv" / "connect"
HOME = Path(pyspark.__file__).resolve().parent
# On a busy machine, of a Python that Spark started: to be started again.
SLOW = "Python worker failed to connect back"
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="session")
def connect_path() -> str:
    """The PYTHONPATH of a client, and of a server's workers."""
    if not (CONNECT / "ready").exists():
        pytest.skip(f"no {CONNECT}: scripts/test makes it")
    return os.pathsep.join([str(ROOT), str(CONNECT)])


@pytest.fixture(scope="package")
def server(connect_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server. Its workers have penstock; nothing is registered there."""
    folder, port = tmp_path_factory.mktemp("connect"), free_port()
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.ui.enabled": "false",
        "spark.driver.memory": "800m",
        "spark.sql.warehouse.dir": folder / "warehouse",
    }
    settings = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    command = [str(HOME / "bin" / "spark-submit"), "--class", _SERVER, "--master", "local[2]"]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *settings, "--name", "tests", "spark-internal"],
            stdout=output, stderr=output, cwd=folder,
            env=environment(connect_path, JDK_JAVA_OPTIONS=SHORT_LIVED),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 180
        while "Spark Connect server started at" not in log.read_text(errors="replace"):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def environment(path: str, **more: str) -> dict[str, str]:
    known = {key: text for key, text in os.environ.items() if not key.startswith("SPARK_")}
    return {**known, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, **more}


def ran(script: Path, path: str, *given: Any) -> Any:
    """What a client without a Java on its path prints as JSON."""
    nowhere = environment(path, PATH=str(Path(sys.executable).parent), JAVA_HOME="/nowhere")
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(script), *map(json.dumps, given)],
            capture_output=True, text=True, env=nowhere, check=False, timeout=400,
        )  # fmt: skip
        if SLOW not in done.stderr:  # as docs/reference/spark.md says
            break
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
