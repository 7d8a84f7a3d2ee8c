"""Where the archive of classes is kept, and when it is not."""

import os
import subprocess
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


LISTED = "org/apache/spark/sql/execution/python/streaming/PythonStreamingSinkCommitRunner"


def whole(archive: Archive) -> Path:
    """Makes one of seven bytes."""
    path = archive.stem.with_name(f"{archive.stem.name}-7.jsa")
    path.write_bytes(b"classes")
    return path


def found(jar: Path, environment: dict[str, str]) -> Archive:
    archive = find_archive(jar, [jar], environment)
    assert archive is not None
    return archive


def test_classes_are_listed_first_and_an_archive_is_used_then(
    jar: Path, cache: dict[str, str]
) -> None:
    archive = found(jar, cache)
    assert f"-XX:DumpLoadedClassList={archive.classes}" in archive.options
    made = whole(archive)
    assert f"-XX:SharedArchiveFile={made}" in archive.options
    assert made.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("size", ["8", "", "x"])
def test_half_an_archive_is_none(jar: Path, cache: dict[str, str], size: str) -> None:
    archive = found(jar, cache)
    whole(archive).rename(archive.stem.with_name(f"{archive.stem.name}-{size}.jsa"))
    assert archive.path is None


def test_another_jar_or_java_has_another_archive(jar: Path, cache: dict[str, str]) -> None:
    made = whole(found(jar, cache))
    assert found(jar, cache).path == made
    jar.write_bytes(b"another jar")
    assert found(jar, cache).path is None


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


@pytest.mark.parametrize(
    "environment", [{}, {"HOME": ""}, {"HOME": "/dev/null"}, {"XDG_CACHE_HOME": "/proc"}]
)
def test_without_a_home_or_in_a_read_only_one_there_is_none(
    jar: Path, environment: dict[str, str]
) -> None:
    assert find_archive(jar, [jar], environment) is None


def test_a_missing_jar_is_no_archive(tmp_path: Path, jar: Path, cache: dict[str, str]) -> None:
    assert find_archive(jar, [tmp_path / "gone.jar"], cache) is None


def test_what_nobody_uses_is_removed_in_time(jar: Path, cache: dict[str, str]) -> None:
    archive = found(jar, cache)
    used = whole(archive)
    fresh = archive.stem.with_name("spark-1-cut-100.jsa")
    fresh.touch()
    old = [
        archive.stem.with_name(f"spark-0-{name}")
        for name in ("a-0.jsa", "b.1.classes", "cut-9.jsa")
    ]
    for path in (used, *old):
        path.touch()
        os.utime(path, (0, time.time() - 31 * 86_400))
    archive.draft.mkdir()
    os.utime(archive.draft, (0, time.time() - 3600))
    found(jar, cache)
    assert [path.exists() for path in (used, fresh, archive.draft, *old)] == [
        True, True, False, False, False, False,
    ]  # fmt: skip


def ended(archive: Archive, dump: str, *, code: int = 0, classes: str = LISTED) -> None:
    """A JVM listed these classes and ended with this code; `dump` is a shell's way to make one."""
    archive.classes.write_text(classes)
    script = f"code={code}\n{archive.script(['sh', '-c', dump])}"
    done = subprocess.run(["sh", "-c", script], timeout=20, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")
    assert not archive.classes.exists()


def names(archive: Archive) -> list[str]:
    return [path.name for path in archive.stem.parent.iterdir()]


# `$0` is -Xshare:dump, the third argument names the file.
DUMP = 'printf classes > "${2#*=}"'


def test_an_archive_takes_its_name_when_it_is_whole(jar: Path, cache: dict[str, str]) -> None:
    archive = found(jar, cache)
    ended(archive, DUMP)
    assert archive.path is not None
    assert archive.path.read_text() == "classes"
    assert names(archive) == [archive.path.name]


@pytest.mark.parametrize(
    ("dump", "code", "classes"),
    [
        (f"{DUMP}; kill -9 $$", 0, LISTED),
        (f"{DUMP}; exit 1", 0, LISTED),
        (DUMP, 1, LISTED),
        (DUMP, 137, LISTED),
        (DUMP, 0, "java/lang/Object"),
    ],
)
def test_none_is_made_when_anything_went_wrong(
    jar: Path, cache: dict[str, str], dump: str, code: int, classes: str
) -> None:
    archive = found(jar, cache)
    ended(archive, dump, code=code, classes=classes)
    assert names(archive) == []


def test_only_one_process_makes_it(jar: Path, cache: dict[str, str]) -> None:
    archive = found(jar, cache)
    archive.draft.mkdir()
    ended(archive, DUMP)
    assert names(archive) == [archive.draft.name]


def test_a_second_session_that_began_without_one_makes_none(
    jar: Path, cache: dict[str, str]
) -> None:
    archive = found(jar, cache)
    ended(archive, DUMP)
    before = archive.path
    ended(archive, 'printf other-classes > "${2#*=}"')
    assert before is not None
    assert names(archive) == [before.name]


def test_one_that_was_cut_short_does_not_count(jar: Path, cache: dict[str, str]) -> None:
    archive = found(jar, cache)
    archive.stem.with_name(f"{archive.stem.name}-100.jsa").write_text("half")
    ended(archive, DUMP)
    assert archive.path is not None
    assert archive.path.read_text() == "classes"
