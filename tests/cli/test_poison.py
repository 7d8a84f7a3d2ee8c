"""`penstock dead-letters` and `tables`: what they refuse, and how they say it."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.cli.options import columns

FILE = """\
name: shop
backends:
  - {type: memory, name: made, on_error: suspend}
sink: {type: memory}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "pipeline.yaml"
    path.write_text(FILE)
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("dead-letters", "list"),
        ("dead-letters", "replay", "--all"),
        ("tables", "list"),
    ],
)
def test_a_sink_without_dead_letters_says_so(arguments: tuple[str, ...], file: str) -> None:
    done = run(*arguments, file)
    assert done.exit_code == 2
    assert "the sink memory keeps no dead letters" in done.output


@pytest.mark.parametrize("arguments", [(), ("1", "--all")])
def test_a_replay_wants_one_or_all(arguments: tuple[str, ...], file: str) -> None:
    done = run("dead-letters", "replay", file, *arguments)
    assert done.exit_code == 2
    assert "name an ID, or give --all" in done.output


@pytest.mark.parametrize("group", ["dead-letters", "tables"])
def test_help_names_what_there_is(group: str) -> None:
    done = run(group, "--help")
    assert done.exit_code == 0
    assert "list " in done.output


def test_a_policy_belongs_to_a_backend(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        FILE.replace("{type: memory}", "{type: jetstream, url: nats://h, on_error: stop}")
    )
    done = run("tables", "list", str(path))
    assert done.exit_code == 2
    assert "on_error belongs to each backend" in done.output


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    assert columns(("a", "b"), [("long", "1"), ("x", "22")]) == "a     b\nlong  1\nx     22"
