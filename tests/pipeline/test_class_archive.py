"""The first run makes the archive of Spark's classes at its end; a damaged one stops no Spark."""

from pathlib import Path

import pytest

from tests.pipeline.running import CLASSES, commands, eventually, running, tree

pytestmark = pytest.mark.spark


@pytest.mark.timeout(600)
def test_the_first_run_makes_the_class_archive_and_a_damaged_one_stops_none(tmp_path: Path) -> None:
    """It runs first, and later tests start Spark with what it makes."""
    archive = CLASSES.with_name("spark-classes.new")
    archive.unlink(missing_ok=True)
    starts(tmp_path, archive, "-XX:ArchiveClassesAtExit=")
    whole = archive.read_bytes()
    archive.replace(CLASSES)
    damaged = tmp_path / "damaged.jsa"
    half = len(whole) // 2
    damaged.write_bytes(whole[:half] + bytes(1 << 20) + whole[half + (1 << 20) :])
    starts(tmp_path, damaged, f"-XX:SharedArchiveFile={damaged}")


def starts(folder: Path, archive: Path, option: str) -> None:
    """A pipeline with this archive runs until it is ready, in a JVM with this option."""
    pipeline = {
        "name": "test",
        "backends": [{"type": "memory"}],
        "sink": {"type": "memory"},
        "positions": "memory:",
        "ops": {"port": 0},
        "spark": {"class_archive": str(archive)},
    }
    with running(folder, pipeline) as run:
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        assert any(option in command for command in commands(tree(run)))
        assert run.stop() == 0
