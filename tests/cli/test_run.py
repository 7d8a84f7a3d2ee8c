"""`penstock run` up to the service: what it reads, and how mistakes end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli import main

SECRET = "hunter22"


def penstock(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "name: shop\n"
        "backends:\n"
        "  - {name: default, type: postgres, connection: '${PG}', slot: shop, publication: shop}\n"
        "sink: {type: jetstream, url: 'nats://localhost'}\n"
    )
    return path


@pytest.mark.parametrize("command", ["run", "check", "positions"])
def test_a_mistake_in_the_file_is_one_line_and_exit_code_2(file: Path, command: str) -> None:
    file.write_text(file.read_text().replace("slot:", "sloot:"))
    done = penstock(command, str(file), PG=f"postgresql://u:{SECRET}@h/d")
    assert done.exit_code == 2
    assert "pipeline.yaml:3: backends[0].sloot: unknown key; did you mean 'slot'?" in done.stderr
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stderr + done.stdout


def test_a_variable_that_is_not_set_is_named(file: Path) -> None:
    done = penstock("run", str(file))
    assert done.exit_code == 2
    assert "pipeline.yaml:3: backends[0].connection: the environment variable PG" in done.stderr


def test_a_wrong_connection_url_is_not_repeated(file: Path) -> None:
    done = penstock("run", str(file), PG=f"u:{SECRET}@h")
    assert done.exit_code == 2
    assert "backends[0].connection" in done.stderr
    assert SECRET not in done.stderr


def test_a_file_that_is_missing_is_one_line_and_where_to_read_more(tmp_path: Path) -> None:
    done = penstock("run", str(tmp_path / "none.yaml"))
    assert (done.exit_code, done.stderr.count("\n")) == (2, 2)
    assert "no such file" in done.stderr


def test_the_jvm_starts_before_what_takes_long_to_import(file: Path) -> None:
    code = (
        "import sys, penstock.cli.run, penstock.spark.session.jvm as jvm\n"
        "heavy = {'pyspark', 'py4j', 'structlog', 'rich', 'prometheus_client', 'starlette'}\n"
        "def start(_):\n"
        "    assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "    sys.exit(77)\n"
        "jvm.Jvm = start\n"
        f"penstock.cli.run.command([{str(file)!r}])\n"
    )
    environment = {**os.environ, "PG": "postgresql://h/d"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert done.returncode == 77


def test_a_mistake_is_told_without_importing_spark(file: Path) -> None:
    code = (
        "import sys; from penstock.cli import main\n"
        f"try: main(['run', {str(file)!r}])\n"
        "except SystemExit as e: assert e.code == 2\n"
        "assert 'pyspark' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_service_needs_no_driver_that_its_pipeline_does_not_use() -> None:
    drivers = "psycopg", "pymongo", "boto3", "azure"
    code = (
        "import sys\n"
        f"sys.modules |= dict.fromkeys({drivers})\n"
        "import penstock.service.service, penstock.service.processing"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
