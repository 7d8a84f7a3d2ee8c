"""The memory sink, in a process and in a folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.errors import SettingsError
from penstock.model.position import PartitionId, Place
from penstock.sinks import ignore, memory
from penstock.sinks.memory import MemorySink, MemorySinkSettings, stored
from tests.sinks.changes import batch_of


def settings(name: str, folder: Path | None = None) -> MemorySinkSettings:
    return MemorySinkSettings(name=name, folder=str(folder) if folder else None)


@pytest.mark.parametrize("in_folder", [True, False])
def test_a_change_is_kept_with_its_values(in_folder: bool, tmp_path: Path) -> None:
    mine = settings("values", tmp_path if in_folder else None)
    MemorySink(mine).write(
        [batch_of(1, 3, images="msgpack"), batch_of(1, 4, images="json")], ignore
    )
    one, two = stored(mine)
    assert one["event_id"] == "default:00000000/00000003:0"
    assert one["after"] == {"id": 0, "name": "n00000000/00000003:0"}
    assert two["after"] == {"id": 0, "name": "n00000000/00000004:0"}
    assert (one["before"], one["unchanged"], one["ordinal"]) == (None, [], 0)
    assert one["committed_at"] == "2026-11-21T10:02:03.000004Z"


def test_names_are_stores_of_their_own() -> None:
    MemorySink(settings("one")).write([batch_of(2)], ignore)
    assert len(stored(settings("one"))) == 2
    assert stored(settings("two")) == []


def test_what_another_process_wrote_is_seen_and_not_written_again(tmp_path: Path) -> None:
    mine = settings("shared", tmp_path)
    MemorySink(mine).write([batch_of(3, 1)], ignore)
    code = f"""
from penstock.sinks.memory import *
from penstock.sinks import ignore
import pickle, sys
sink = MemorySink(MemorySinkSettings(name="shared", folder={str(tmp_path)!r}))
receipt = sink.write([pickle.load(sys.stdin.buffer)], ignore)
print(receipt.published, receipt.duplicates)
"""
    import pickle

    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps(batch_of(5, 1)),
        capture_output=True,
        check=True,
    )
    assert done.stdout.split() == [b"2", b"3"]
    assert [row["ordinal"] for row in stored(mine)] == [0, 1, 2, 3, 4]
    assert MemorySink(mine).write([batch_of(5, 1)], ignore).duplicates == 5


def test_a_line_that_a_crash_cut_off_is_written_again(tmp_path: Path) -> None:
    mine = settings("torn", tmp_path)
    MemorySink(mine).write([batch_of(3, 1)], ignore)
    file = tmp_path / "torn.jsonl"
    text = file.read_bytes()
    memory._stores.clear()  # as in another process
    file.write_bytes(text[:-20])
    assert MemorySink(mine).write([batch_of(3, 1)], ignore).published == 1
    assert file.read_bytes() == text


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    mine = settings("replaced", tmp_path)
    MemorySink(mine).write([batch_of(3, 1)], ignore)
    (tmp_path / "replaced.jsonl").unlink()
    assert stored(mine) == []
    assert MemorySink(mine).write([batch_of(3, 1)], ignore).published == 3


def test_a_folder_that_cannot_be_made_is_a_settings_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match="cannot be made"):
        MemorySink(settings("x", tmp_path / "file" / "folder")).prepare()


def test_a_sink_that_forgets_says_so(tmp_path: Path) -> None:
    assert [f.level for f in MemorySink(settings("x")).check()] == ["warning"]
    assert [f.level for f in MemorySink(settings("x", tmp_path)).check()] == ["ok"]


def test_a_sink_that_keeps_nothing_takes_everything() -> None:
    mine = MemorySinkSettings(name="nothing", keep=False)
    for _ in range(2):
        receipt = MemorySink(mine).write([batch_of(3, 1)], ignore)
        assert (receipt.published, receipt.duplicates, receipt.size) == (3, 0, 0)
        assert receipt.position[PartitionId("shop")] == Place("00000000/00000001", 2)
    assert stored(mine) == []
