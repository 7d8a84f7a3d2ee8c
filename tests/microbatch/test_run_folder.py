"""A run's folder, and what others left."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.microbatch.run_folder import (
    Bell,
    pause_reader,
    read_task_slots,
    run_folder,
    stop_queries,
    stop_query,
    write_task_slots,
)


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


CHANGES: dict[str, Callable[[Path], None]] = {
    "stop": stop_queries,
    "stop of a query": lambda folder: stop_query(folder, "one-0"),
    "pause": lambda folder: pause_reader(folder, "one", is_paused=True),
    "resume": lambda folder: pause_reader(folder, "one", is_paused=False),
    "task slots": lambda folder: write_task_slots(folder, 3),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_readers_look_at_wakes_them(tmp_path: Path, change: str) -> None:
    (tmp_path / "bell-1").touch()  # of a process that has ended
    woken = threading.Event()
    with Bell(str(tmp_path), woken.set):
        assert not woken.is_set()
        CHANGES[change](tmp_path)
        assert woken.wait(60)
    CHANGES[change](tmp_path)  # without a reader
    assert not [*tmp_path.glob(f"bell-{os.getpid()}")]
