"""`penstock positions`: what the store has."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock import cli
from penstock.leases import Lease
from penstock.leases.sqlite import SqliteStore

PLACE = "00000000/016B3748:41"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        f"name: shop\nstate: {tmp_path}\nbackends: [{{type: memory}}]\nsink: {{type: memory}}\n"
    )
    return path


def positions(file: Path, *more: str) -> Result:
    return CliRunner().invoke(cli.main, ["positions", str(file), *more])


def store(file: Path, name: str, continuation: str) -> None:
    SqliteStore(file.parent / "positions.db").put(Lease(name=name, continuation=continuation))


def test_a_pipeline_that_never_ran_has_none(file: Path) -> None:
    assert positions(file).output == "no positions are stored yet\n"
    assert positions(file, "--json").output == "[]\n"


def test_positions_are_shown_by_backend_and_partition(file: Path) -> None:
    store(file, "shop/default/my/slot", json.dumps({"place": PLACE}))
    store(file, "shopping/default/x", json.dumps({"place": PLACE}))
    assert json.loads(positions(file, "--json").output) == [
        {
            "backend": "default",
            "partition": "my/slot",
            "place": PLACE,
            "owner": "",
            "revision": 1,
        }
    ]
    lines = positions(file).output.splitlines()
    assert len(lines) == 2
    assert lines[1].split() == ["default", "my/slot", PLACE, "1"]


def test_what_something_else_wrote_is_shown_as_unreadable(file: Path) -> None:
    store(file, "shop/default/slot", "?")
    assert "unreadable" in positions(file).output
    assert json.loads(positions(file, "--json").output)[0]["place"] is None


def test_positions_in_memory_can_not_be_shown(file: Path) -> None:
    file.write_text(file.read_text() + "positions: 'memory:'\n")
    assert positions(file).exit_code == 2


def test_another_state_folder_has_other_positions(file: Path, tmp_path: Path) -> None:
    store(file, "shop/default/slot", json.dumps({"place": PLACE}))
    assert "no positions" in positions(file, "--state", str(tmp_path / "other")).output
