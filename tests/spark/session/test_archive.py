"""Where the archive of Spark's classes is, who may have written it, and how it is made."""

import os
import stat
import time
from pathlib import Path

import pytest

from penstock.spark.session.archive import Archive, find_archive


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "spark.jar"
    path.write_bytes(b"jar")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def dump(path: Path) -> None:
    """What stands for a JVM: writes seven bytes."""
    path.write_bytes(b"classes")


def found(jar: Path, environment: dict[str, str]) -> Archive:
    archive = find_archive(jar, [jar], environment)
    assert archive is not None
    return archive


def test_looking_for_an_archive_makes_nothing(
    jar: Path, cache: dict[str, str], tmp_path: Path
) -> None:
    archive = found(jar, cache)
    assert (archive.path, archive.options()) == (None, ())
    assert [path.name for path in tmp_path.iterdir()] == ["spark.jar"]


def test_an_archive_that_was_made_is_used(jar: Path, cache: dict[str, str]) -> None:
    made = found(jar, cache).make(dump)
    archive = found(jar, cache)
    assert archive.path == made
    assert f"-XX:SharedArchiveFile={made}" in archive.options()
    assert made.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in made.parent.iterdir()] == [made.name]


def test_its_folder_can_be_named(jar: Path, tmp_path: Path) -> None:
    environment = {"PENSTOCK_CLASS_ARCHIVE": str(tmp_path / "image"), "HOME": "/dev/null"}
    assert found(jar, environment).make(dump).parent == tmp_path / "image"


@pytest.mark.parametrize("size", ["8", "", "x"])
def test_a_file_that_was_cut_short_is_not_used(jar: Path, cache: dict[str, str], size: str) -> None:
    made = found(jar, cache).make(dump)
    made.rename(made.with_name(made.name.replace("-7.jsa", f"-{size}.jsa")))
    assert found(jar, cache).path is None


def test_another_jar_or_java_has_another_archive(jar: Path, cache: dict[str, str]) -> None:
    made = found(jar, cache).make(dump)
    assert found(jar, cache).path == made
    jar.write_bytes(b"another jar")
    assert found(jar, cache).path is None


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no"])
def test_it_can_be_turned_off(jar: Path, cache: dict[str, str], word: str) -> None:
    assert find_archive(jar, [jar], cache | {"PENSTOCK_CLASS_ARCHIVE": word}) is None


@pytest.mark.parametrize("which", ["folder", "file"])
def test_what_others_can_write_to_is_not_trusted(
    jar: Path, cache: dict[str, str], which: str
) -> None:
    made = found(jar, cache).make(dump)
    path = made if which == "file" else made.parent
    path.chmod(path.stat().st_mode | stat.S_IWGRP)
    assert found(jar, cache).path is None


def test_no_archive_is_made_where_others_can_write(
    jar: Path, cache: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "cache" / "penstock"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="can write to"):
        found(jar, cache).make(dump)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("environment", [{}, {"HOME": ""}])
def test_without_a_home_there_is_no_place_for_one(jar: Path, environment: dict[str, str]) -> None:
    assert find_archive(jar, [jar], environment) is None


@pytest.mark.parametrize("environment", [{"HOME": "/dev/null"}, {"XDG_CACHE_HOME": "/proc"}])
def test_a_place_that_cannot_be_written_to_is_an_error_only_when_it_is_made(
    jar: Path, environment: dict[str, str]
) -> None:
    archive = found(jar, environment)
    assert archive.path is None
    with pytest.raises(OSError, match=r"/dev/null|/proc"):
        archive.make(dump)


def test_a_missing_jar_is_no_archive(tmp_path: Path, jar: Path, cache: dict[str, str]) -> None:
    assert find_archive(jar, [tmp_path / "gone.jar"], cache) is None


def test_archives_that_no_session_used_are_removed_by_the_next_one(
    jar: Path, cache: dict[str, str]
) -> None:
    archive = found(jar, cache)
    used, old = archive.make(dump), archive.folder / "spark-0-a-0.jsa"
    old.touch()
    for path in (used, old):
        os.utime(path, (0, time.time() - 31 * 86_400))
    found(jar, cache).options()  # a session
    jar.write_bytes(b"another jar")
    made = found(jar, cache).make(dump)
    assert sorted(archive.folder.iterdir()) == sorted([used, made])


def test_a_dump_that_fails_leaves_nothing(jar: Path, cache: dict[str, str]) -> None:
    def fail(path: Path) -> None:
        dump(path)
        raise OSError("no space left on device")

    archive = found(jar, cache)
    with pytest.raises(OSError, match="no space"):
        archive.make(fail)
    assert list(archive.folder.iterdir()) == []
