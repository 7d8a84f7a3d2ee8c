"""A Spark that does not start: an error that names the master and the remedy."""

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.running import Run, eventually, running

pytestmark = pytest.mark.fault


def document(master: str) -> dict[str, Any]:
    return {
        "backends": [{"type": "memory"}],
        "sink": {"type": "memory"},
        "positions": "memory:",
        "spark": {"master": master},
    }


def assert_told(run: Run, said: str) -> None:
    """The last lines of the log are for the operator."""
    error, hint, _ = run.log.splitlines()[-3:]
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: ")
    assert "spark.master" in hint
    assert "py4j" not in run.log
    assert "Traceback" not in run.log


@pytest.mark.timeout(600)
def test_a_start_with_a_wrong_master_ends_with_an_error(tmp_path: Path) -> None:
    with running(tmp_path, document("spark://nowhere")) as run:
        assert run.process.wait(500) == 2
    assert_told(run, "the master spark://nowhere: Invalid master URL: spark://nowhere")


@pytest.mark.thorough  # Spark tries for a minute
@pytest.mark.timeout(900)
def test_without_a_master_a_start_ends_and_a_service_that_ran_waits_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark itself tries for a minute; a stop does not wait for it."""
    for name in ("first", "again"):
        (tmp_path / name).mkdir()
    pipeline = document("spark://127.0.0.1:1")
    said = "the Spark master spark://127.0.0.1:1 cannot be reached"
    with running(tmp_path / "first", pipeline) as first:
        monkeypatch.setenv("PENSTOCK_STARTED_AGAIN", "1")  # as after the cluster ended it
        with running(tmp_path / "again", pipeline) as again:
            assert first.process.wait(500) == 1
            eventually(lambda: again.log.count("ops server listens") == 2, seconds=400, run=again)
            assert again.stop(400) == 0
    assert_told(first, said)
    assert again.log.count("starting again") == 1
    assert again.log.count(said) == 1, "the second start was waited for"
    assert "Spark is gone" not in again.log, "nothing was in flight"
    assert "Traceback" not in again.log
