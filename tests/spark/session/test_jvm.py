"""The JVM that starts before there is a session."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from penstock.config import Pipeline, parse_pipeline
from penstock.spark.queries.engine import Engine
from penstock.spark.session import jvm
from penstock.spark.session.jvm import EarlyJvm
from penstock.spark.session.plan import SessionPlan, guessed, plan_of
from tests.spark.queries.test_query import pipeline_of
from tests.waiting import until


def test_what_no_session_takes_is_ended(tmp_path: Path) -> None:
    with EarlyJvm() as early:
        started = early.start(plan_of(pipeline_of(tmp_path), tmp_path))
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
    with EarlyJvm() as early:
        started = early.start(plan_of(pipeline_of(tmp_path), tmp_path))
        assert started is not None
        assert started.gateway() is None


@pytest.mark.parametrize("variable", ["SPARK_HOME", "SPARK_CONF_DIR"])
def test_what_only_pyspark_can_start_is_left_to_it(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    with EarlyJvm() as early:
        started = early.start(plan_of(pipeline_of(tmp_path), tmp_path))
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


def test_the_jvm_starts_before_what_takes_long_to_import() -> None:
    code = (
        "import sys, penstock.cli.run\n"
        "heavy = {'pyspark', 'py4j', 'structlog', 'rich', 'pyarrow', 'numpy', 'psycopg',"
        " 'pydantic', 'asyncio', 'penstock.config'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Known:
    """In place of a `Jvm`, of which a test knows all."""

    made: ClassVar[list["Known"]] = []

    def __init__(self, plan: SessionPlan) -> None:
        self.plan, self.is_dropped, self.has_forks = plan, False, False
        self.made.append(self)

    def start_forks(self) -> None:
        self.has_forks = True

    def drop(self) -> None:
        self.is_dropped = True


def test_a_guess_that_was_wrong_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "Jvm", Known)
    monkeypatch.setattr(Known, "made", [])
    plan = plan_of(pipeline_of(tmp_path), tmp_path)
    with EarlyJvm() as early:
        early.guess(replace(plan, slots=7))
        assert early.start(plan) is Known.made[1]
        assert [(each.is_dropped, each.has_forks) for each in Known.made] == [
            (True, False), (False, True),
        ]  # fmt: skip
        assert early.start(plan) is Known.made[1]
    assert [each.is_dropped for each in Known.made] == [True, True]


FEEDS = "backends: [{type: memory}, {type: memory, name: b}]"
SINK = "sink: {type: memory}"


@pytest.mark.parametrize(
    "text",
    [
        f"{{{FEEDS}, {SINK}}}",
        f"{{name: shop, {FEEDS}, {SINK}, positions: 'sqlite:////f.db', ops: {{port: 1}}}}",
        f"{{{FEEDS}, {SINK}, snapshot: {{patience: 9s}}}}",
    ],
)
def test_the_plan_of_most_files_is_told_by_a_glance(text: str, tmp_path: Path) -> None:
    assert guessed(text, tmp_path) == plan_of(parse_pipeline(text), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "", "a: [", "- a", "backends: {}", "7", "backends: [{type: memory}]",
        f"{{{FEEDS}, {SINK}, transform: SELECT * FROM changes}}",
        f"{{{FEEDS}, {SINK}, spark: {{master: 'local[4]'}}}}",
        f"{{{FEEDS}, {SINK}, name: '${{NAME}}'}}", f"{{{FEEDS}, {SINK}, name: 2026-01-01}}",
        f"{{{FEEDS}, sink: {{type: postgres, map: 'sqlite:///map.db'}}}}",
        f"{{backends: [{{name: a}}], {SINK}}}", f"{{backends: [memory], {SINK}}}",
        f"{{{FEEDS}, sink: memory}}", f"{{{FEEDS}, sink: {{}}}}", "{1: 2, [a]: b}", "!!python/x {}",
    ],
)  # fmt: skip
def test_a_glance_that_does_not_tell_starts_nothing(text: str, tmp_path: Path) -> None:
    assert guessed(text, tmp_path) is None


def test_a_file_with_a_mistake_leaves_no_process(tmp_path: Path) -> None:
    """The JVM was started by a glance at it."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"{{{FEEDS}, {SINK}, nmae: x}}")
    assert guessed(file.read_text(), tmp_path) is not None
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "penstock", "run", file]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "nmae: unknown key" in done.stderr
    assert done.stderr.count("\n") == 2, done.stderr  # and where it is explained
    until(lambda: not any(str(tmp_path) in " ".join(words) for words in commands()), 60)
    assert not list(tmp_path.glob("penstock-run-*"))
