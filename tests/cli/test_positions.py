"""`penstock positions`: what the store has."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock import cli
from penstock.leases import Lease
from penstock.leases.sqlite import SqliteStore
from penstock.service.ownership import Ownership

PLACE = "00000000/016B3748:41"
AT = json.dumps({"place": PLACE})


def positions(file: Path, *more: str, answer: str = "") -> Result:
    return CliRunner().invoke(cli.main, ["positions", str(file), *more], input=answer)


def store(file: Path, name: str, continuation: str) -> None:
    SqliteStore(file.parent / "positions.db").put(Lease(name=name, continuation=continuation))


@pytest.mark.slow
def test_a_pipeline_that_never_ran_has_none(file: Path) -> None:
    assert positions(file).output == "no positions are stored yet\n"
    assert positions(file, "--json").output == "[]\n"


def test_a_partition_to_release_is_never_cut(file: Path) -> None:
    shard = "2026-11-24T10:35:31.380/shardId-00000001795516531392-3bc48f48"
    store(file, f"shop/default/{shard}", AT)
    head, line = positions(file).output.splitlines()
    assert head.split() == ["backend", "partition", "place", "owner", "age", "revision"]
    assert line.split()[:3] == ["default", shard, PLACE]


def test_positions_are_shown_by_backend_and_partition(file: Path) -> None:
    store(file, "shop/default/my/slot", AT)
    store(file, "shopping/default/x", AT)
    assert json.loads(positions(file, "--json").output) == [
        {
            "backend": "default", "partition": "my/slot", "place": PLACE, "ended": False,
            "owner": "", "owner_ended": False, "asked_by": "", "age_seconds": None, "revision": "1",
        }
    ]  # fmt: skip
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
    store(file, "shop/default/slot", AT)
    assert "no positions" in positions(file, "--state", str(tmp_path / "other")).output


MARKED = {"place": PLACE, "mark": {"token": {"_data": "82"}}}


@pytest.mark.slow
def test_a_whole_bookmark_is_set_shown_exported_and_imported(file: Path, tmp_path: Path) -> None:
    assert positions(file, "set", "default/my/slot", json.dumps(MARKED), "--yes").exit_code == 0
    assert positions(file, "set", "default/b", PLACE, "--yes").exit_code == 0
    shown = json.loads(positions(file, "show", "default/my/slot").output)
    assert shown["bookmark"] == MARKED
    exported = positions(file, "export").output
    assert json.loads(exported) == {
        "pipeline": "shop",
        "positions": {"default/b": {"place": PLACE, "mark": None}, "default/my/slot": MARKED},
    }
    for name in ("default/b", "default/my/slot"):
        assert positions(file, "delete", name, "--yes").exit_code == 0
    assert json.loads(positions(file, "--json").output) == []
    (tmp_path / "export.json").write_text(exported)
    assert positions(file, "import", str(tmp_path / "export.json"), answer="y\n").exit_code == 0
    assert positions(file, "export").output == exported
    assert positions(file, "import", "-", "--yes", answer=exported).exit_code == 0
    assert positions(file, "export").output == exported


@pytest.mark.slow
def test_set_and_delete_ask(file: Path) -> None:
    store(file, "shop/default/slot", AT)
    asked = positions(file, "set", "default/slot", "0B:0", answer="n\n")
    assert asked.exit_code == 1
    assert PLACE in asked.output
    assert positions(file, "delete", "default/slot", answer="n\n").exit_code == 1
    assert positions(file, "import", "-", answer='{"positions": {}}').exit_code == 2
    assert json.loads(positions(file, "--json").output)[0]["place"] == PLACE
    assert positions(file, "delete", "default/slot", answer="y\n").exit_code == 0
    assert json.loads(positions(file, "--json").output) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show"], "positions FILE show PARTITION"),
        (["show", "default/none"], "default/slot"),
        (["show", "other/slot"], "its backends: default"),
        (["set", "default", PLACE], "BACKEND/PARTITION"),
        (["set", "default/slot", "not-a-place"], "CURSOR:ORDINAL"),
        (["set", "default/slot", '{"mark": 1}'], "CURSOR:ORDINAL"),
        (["delete", "default/none"], "default/slot"),
        (["import", "/nowhere"], "export"),
    ],
)
def test_a_mistake_names_the_place_and_the_remedy(
    file: Path, arguments: list[str], words: str
) -> None:
    store(file, "shop/default/slot", AT)
    found = positions(file, *arguments)
    assert found.exit_code == 2
    assert words in found.output


@pytest.mark.slow  # waits out the term of the lease, twice
def test_rows_of_a_running_instance_are_not_changed(file: Path) -> None:
    store(file, "shop/default/slot", AT)
    running = Ownership(SqliteStore(file.parent / "positions.db"), "shop", instance="host:1:abc")
    assert running.attempt() is None
    try:
        for arguments in (["set", "default/slot", "0B:0"], ["delete", "default/slot"]):
            refused = positions(file, *arguments, "--yes")
            assert refused.exit_code == 2
            assert "host:1:abc" in refused.output
            assert "stop it" in refused.output
    finally:
        running.release()
    assert json.loads(positions(file, "--json").output)[0]["place"] == PLACE
    assert positions(file, "set", "default/slot", "0B:0", "--yes").exit_code == 0
    assert SqliteStore(file.parent / "positions.db").get("owner:shop").owner == ""  # type: ignore[union-attr]
