"""Where the archive of classes is kept, and when it is not."""

import os
import time
from pathlib import Path

import pytest

from penstock.spark.archive import Archive, find_archive


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "spark.jar"
    path.write_bytes(b"jar")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def found(jar: Path, environment: dict[str, str]) -> Archive:
    archive = find_archive(jar, [jar], environment)
    assert archive is not None
    return archive


def test_it_is_made_first_and_used_then(jar: Path, cache: dict[str, str]) -> None:
    archive = found(jar, cache)
    assert f"-XX:ArchiveClassesAtExit={archive.draft}" in archive.options
    archive.path.write_bytes(b"classes")
    archive.size.write_text("7\n")
    assert f"-XX:SharedArchiveFile={archive.path}" in archive.options
    assert archive.path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("size", ["8", "", "no number", None])
def test_half_an_archive_is_none(jar: Path, cache: dict[str, str], size: str | None) -> None:
    archive = found(jar, cache)
    archive.path.write_bytes(b"classes")
    if size is not None:
        archive.size.write_text(size)
    assert not archive.exists


def test_another_jar_or_java_has_another_archive(jar: Path, cache: dict[str, str]) -> None:
    before = found(jar, cache).path
    assert found(jar, cache).path == before
    jar.write_bytes(b"another jar")
    assert found(jar, cache).path != before


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no"])
def test_it_can_be_turned_off(jar: Path, cache: dict[str, str], word: str) -> None:
    assert find_archive(jar, [jar], cache | {"PENSTOCK_CLASS_ARCHIVE": word}) is None


def test_a_folder_that_others_can_write_to_is_not_trusted(
    jar: Path, cache: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "cache" / "penstock"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert find_archive(jar, [jar], cache) is None


@pytest.mark.parametrize("environment", [{}, {"HOME": ""}, {"HOME": "/dev/null"}])
def test_without_a_home_there_is_none(jar: Path, environment: dict[str, str]) -> None:
    assert find_archive(jar, [jar], environment) is None


def test_a_missing_jar_is_no_archive(tmp_path: Path, jar: Path, cache: dict[str, str]) -> None:
    assert find_archive(jar, [tmp_path / "gone.jar"], cache) is None


def test_what_a_killed_process_left_is_removed_in_time(jar: Path, cache: dict[str, str]) -> None:
    fresh = found(jar, cache).draft
    old = fresh.with_name("spark.jsa.1.draft")
    fresh.touch()
    old.touch()
    os.utime(old, (0, time.time() - 2 * 86_400))
    found(jar, cache)
    assert fresh.exists()
    assert not old.exists()
