"""The command line's frame: commands load by name, errors are one line and an exit code."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

import penstock
from penstock import cli
from penstock.errors import PenstockError, SettingsError, Unavailable

COMMANDS = list(cli.main.list_commands(click.Context(cli.main)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_loads_and_has_help(name: str) -> None:
    result = CliRunner().invoke(cli.main, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


def test_help_and_version_import_no_heavy_library() -> None:
    code = (
        "import sys; from penstock.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "heavy = {'pyspark', 'psycopg', 'nats', 'pyarrow', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "--version"], capture_output=True, text=True, check=True
    )
    assert penstock.__version__ in done.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [(SettingsError("no slot", hint="make one"), 2), (Unavailable("no slot", hint="make one"), 1)],
)
def test_an_error_is_one_line_with_its_hint_and_an_exit_code(
    error: PenstockError, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    result = _invoke(failing, monkeypatch)
    assert result.exit_code == code
    assert result.stderr == "error: no slot\nhint:  make one\n"
    assert result.stdout == ""


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def failing() -> None:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql")

    result = _invoke(failing, monkeypatch)
    assert result.exit_code == 2
    assert "pip install 'penstock[spark]'" in result.stderr


def test_a_missing_module_of_no_extra_is_a_bug_and_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @click.command()
    def failing() -> None:
        raise ModuleNotFoundError("No module named 'x'", name="x")

    result = _invoke(failing, monkeypatch)
    assert isinstance(result.exception, ModuleNotFoundError)


def test_a_command_whose_module_is_missing_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(cli._COMMANDS, "run", ("penstock.cli.gone:command", "Gone."))
    assert CliRunner().invoke(cli.main, ["run"]).exit_code == 2
    assert CliRunner().invoke(cli.main, ["tail", "--help"]).exit_code == 0


def test_an_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(cli.main, ["flow"]).exit_code == 2


def _invoke(command: click.Command, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def] # noqa: ANN202
    monkeypatch.setattr(f"{__name__}.FAILING", command)
    monkeypatch.setitem(cli._COMMANDS, "run", (f"{__name__}:FAILING", "Fails."))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    return CliRunner().invoke(cli.main, ["run"])


FAILING: click.Command | None = None
