"""A run's folder, and what others left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.microbatch.run_folder import read_task_slots, run_folder, write_task_slots


def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_a_killed_service_left_is_removed_and_what_just_vanished_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / f"penstock-run-{dead()}-left"
    left.mkdir()
    others = tmp_path / f"penstock-run-{os.getppid()}-alive"
    others.mkdir()
    # There when the folder is listed, and gone when it is looked at.
    (tmp_path / f"penstock-run-{dead()}-gone").symlink_to(tmp_path / "nowhere")
    with run_folder() as folder:
        assert folder.parent == tmp_path
        assert not left.exists()
        assert others.exists()
    assert not folder.exists()


def test_the_number_of_slots_is_the_one_that_was_written_last(tmp_path: Path) -> None:
    assert read_task_slots(None) is None
    assert read_task_slots(str(tmp_path)) is None
    for slots in (0, 12, 3):
        write_task_slots(tmp_path, slots)
        assert read_task_slots(str(tmp_path)) == slots
