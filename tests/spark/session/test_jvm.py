"""The JVM that starts before there is a session."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from penstock.config import Pipeline
from penstock.spark.queries.engine import Engine
from penstock.spark.session.jvm import jvm_of
from penstock.spark.session.plan import plan_of
from tests.spark.queries.test_query import pipeline_of
from tests.waiting import until


def test_what_no_session_takes_is_ended(tmp_path: Path) -> None:
    with jvm_of(pipeline_of(tmp_path), tmp_path) as started:
        assert started is not None
        assert started.process is not None
        address = started.gateway()
        assert address is not None
        assert address[0] > 0
        forks = started._forks
        assert forks is not None
    assert started.process.poll() is not None
    forks._process.wait(60)


def test_a_jvm_that_ends_at_its_start_has_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with jvm_of(pipeline_of(tmp_path), tmp_path) as started:
        assert started is not None
        assert started.gateway() is None


@pytest.mark.parametrize("variable", ["SPARK_HOME", "SPARK_CONF_DIR"])
def test_what_only_pyspark_can_start_is_left_to_it(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    with jvm_of(pipeline_of(tmp_path), tmp_path) as started:
        assert started is not None
        assert started.process is None


class Started:
    """In place of a `Jvm`."""

    def __init__(self, pipeline: Pipeline, run: Path) -> None:
        self.plan = plan_of(pipeline, run)
        self.is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True


def waits(engine: Engine) -> None:
    engine.wait()


def closes(engine: Engine) -> None:
    engine.close()


@pytest.mark.parametrize("act", [waits, closes])
def test_an_engine_that_does_not_need_it_ends_it(
    act: Callable[[Engine], None], tmp_path: Path
) -> None:
    pipeline = pipeline_of(tmp_path)
    started = Started(pipeline, tmp_path)
    engine = Engine(pipeline, tmp_path, started=started)  # type: ignore[arg-type]
    act(engine)
    assert started.is_dropped


def test_a_run_that_ends_before_spark_leaves_no_process(tmp_path: Path) -> None:
    """A port that is taken is found after the JVM was started."""
    file = tmp_path / "pipeline.yaml"
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    file.write_text(
        f"{{backends: [{{type: memory}}], sink: {{type: memory}}, ops: {{port: {port}}}}}"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "penstock", "run", file, "--state", tmp_path]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as run:
        _, error = run.communicate(timeout=120)
    taken.close()
    assert run.returncode == 2, error
    until(lambda: not any(str(tmp_path) in " ".join(words) for words in commands()), 60)
    assert not list(tmp_path.glob("penstock-run-*"))


def commands() -> list[list[str]]:
    return [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]


def test_the_jvm_needs_no_pyspark_here() -> None:
    code = (
        "import sys, penstock.spark.session.jvm\n"
        "heavy = {'pyspark', 'py4j', 'structlog', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
