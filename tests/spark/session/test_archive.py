"""The archive of Spark's classes: which options of Java a session has, and what becomes the file.
tests/pipeline/test_class_archive.py makes and uses one. Java here is a script."""

import os
import sys
import time
from pathlib import Path

import pytest

from penstock.spark.session import archive as archives
from penstock.spark.session.archive import ClassArchive, cached_archive
from tests.waiting import until

# Writes the archive, and counts its starts.
WORKS = 'echo classes >"$file"; chmod 444 "$file"'
FAILS = 'echo half >"$file"; exit 1'
WAITS = 'echo half >"$file"; exec sleep 600'


def java(folder: Path, does: str = WORKS) -> Path:
    program = folder / "java"
    program.write_text(
        f'#!/bin/sh\necho start >>{folder}/starts\nfor each; do case "$each" in'
        f' -XX:SharedArchiveFile=*) file="${{each#*=}}";; esac; done\n{does}\n'
    )
    program.chmod(0o755)
    return program


def starts(folder: Path) -> int:
    return (folder / "starts").read_text().count("start")


def session(path: Path, *, is_ours: bool = True) -> ClassArchive:
    return ClassArchive(path, path.with_name("list"), is_ours=is_ours)


def make(archive: ClassArchive, program: Path) -> None:
    archive.make(program, "a.jar:b.jar")
    assert archive._thread is not None
    archive._thread.join(60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a folder" / "spark-1.jsa"


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_session_without_a_file_makes_it_and_the_next_one_uses_it(
    is_ours: bool, path: Path, tmp_path: Path
) -> None:
    archive = session(path, is_ours=is_ours)
    assert f"'-XX:DumpLoadedClassList={path.with_name('list')}'" in archive.options()
    make(archive, java(tmp_path))
    assert list(path.parent.iterdir()) == [path]
    assert path.read_bytes().startswith(b"classes")
    found = session(path, is_ours=is_ours)
    assert f"'-XX:SharedArchiveFile={path}' -Xshare:auto" in found.options()
    assert not found.is_wanted
    archive.make(tmp_path / "java", "")
    found.make(tmp_path / "java", "")
    assert starts(tmp_path) == 1


def test_a_java_that_fails_makes_none(path: Path, tmp_path: Path) -> None:
    make(session(path), java(tmp_path, FAILS))
    assert list(path.parent.iterdir()) == []


def test_two_services_may_make_it_at_the_same_time(path: Path, tmp_path: Path) -> None:
    one, two = session(path), session(path)
    slow = java(tmp_path, f"{WORKS}; until [ -e {tmp_path}/go ]; do sleep 0.01; done")
    one.make(slow, "")
    two.make(slow, "")
    until(lambda: (tmp_path / "starts").exists() and starts(tmp_path) == 2)
    (tmp_path / "go").touch()
    until(lambda: [each for each in (one, two) if each._thread and each._thread.is_alive()] == [])
    assert list(path.parent.iterdir()) == [path]
    assert not session(path).is_wanted


def test_a_service_that_ends_leaves_no_draft(path: Path, tmp_path: Path) -> None:
    archive = session(path)
    archive.make(java(tmp_path, WAITS), "")
    until(lambda: list(path.parent.rglob("classes.jsa")) if path.parent.exists() else [])
    archive.close()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("size", [0, 3, 10])
def test_a_file_that_was_cut_short_is_not_used(path: Path, tmp_path: Path, size: int) -> None:
    """One of the user's stays as it is: the path may name something else."""
    make(session(path), java(tmp_path))
    path.write_bytes(path.read_bytes()[:size])
    named = session(path, is_ours=False)
    assert (named.options(), named.is_wanted) == ("", False)
    ours = session(path)
    assert ours.is_wanted
    make(ours, java(tmp_path))
    assert not session(path).is_wanted


def test_where_nothing_can_be_written_spark_starts_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    make(session(tmp_path / "file" / "classes.jsa"), java(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cached_archive(java(tmp_path), []) is None


def test_what_killed_services_and_earlier_versions_left_is_removed(
    path: Path, tmp_path: Path
) -> None:
    old = time.time() - 40 * 86400
    (path.parent / ".making-killed").mkdir(parents=True)
    (path.parent / ".making-killed" / "classes.jsa").touch()
    (path.parent / ".making-now").mkdir()
    (path.parent / "spark-0.jsa").touch()
    for name in (".making-killed", "spark-0.jsa"):
        os.utime(path.parent / name, (old, old))
    make(session(path), java(tmp_path))
    assert {each.name for each in path.parent.iterdir()} == {path.name, ".making-now"}


def test_the_cache_has_one_for_each_java_and_its_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jar, program = tmp_path / "a.jar", java(tmp_path)
    jar.touch()
    found = [cached_archive(program, [jar]), cached_archive(program, [jar])]
    assert found[0] == found[1]
    jar.write_text("another")
    found.append(cached_archive(program, [jar]))
    java(tmp_path, FAILS)
    found.append(cached_archive(program, [jar]))
    assert len({*found}) == 3
    folder = tmp_path / "cache" / "penstock"
    assert {each.parent for each in found if each} == {folder}
    folder.chmod(0o777)
    assert cached_archive(program, [jar]) is None, "others may write what our JVM runs"


def test_an_image_brings_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives.sys, "prefix", str(tmp_path))
    (tmp_path / "spark-classes.jsa").touch()
    assert cached_archive(java(tmp_path), []) == tmp_path / "spark-classes.jsa"
