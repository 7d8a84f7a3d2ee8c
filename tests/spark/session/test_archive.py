"""The archive of Spark's classes: which options of Java a session has, and what becomes the file.
tests/pipeline/test_class_archive.py makes and uses one."""

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.spark.session.session import ClassArchive


def ended(code: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"])


def made(path: Path, code: int = 0) -> None:
    """As a session that finds no file."""
    archive = ClassArchive(path)
    assert f"-XX:ArchiveClassesAtExit={archive.draft}" in archive.options()
    assert archive.draft
    archive.draft.write_bytes(b"classes")
    archive.draft.chmod(0o444)  # as Java writes it
    archive.keep(ended(code))


def test_a_session_without_a_file_makes_it_and_the_next_one_uses_it(tmp_path: Path) -> None:
    path = tmp_path / "a folder" / "classes.jsa"
    made(path)
    assert list(path.parent.iterdir()) == [path]
    archive = ClassArchive(path)
    assert f"'-XX:SharedArchiveFile={path}' -Xshare:auto" in archive.options()
    archive.keep(ended(0))
    assert path.read_bytes().startswith(b"classes")


def test_a_jvm_that_was_killed_makes_none(tmp_path: Path) -> None:
    made(tmp_path / "classes.jsa", code=1)
    assert not (tmp_path / "classes.jsa").exists()


@pytest.mark.parametrize("size", [0, 3, 10])
def test_a_file_that_was_cut_short_is_not_used(tmp_path: Path, size: int) -> None:
    path = tmp_path / "classes.jsa"
    made(path)
    path.write_bytes(path.read_bytes()[:size])
    assert ClassArchive(path).options() == ""


def test_where_nothing_can_be_written_spark_starts_without(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    archive = ClassArchive(tmp_path / "file" / "classes.jsa")
    archive.keep(ended(0))
