"""A Spark that does not start: an error that names the master and the remedy."""

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.running import eventually, running

pytestmark = [pytest.mark.spark, pytest.mark.fault]


def document(master: str) -> dict[str, Any]:
    return {
        "name": "test",
        "backends": [{"type": "memory"}],
        "sink": {"type": "memory"},
        "positions": "memory:",
        "ops": {"port": 0},
        "spark": {"master": master},
    }


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("master", "code", "said"),
    [
        # Spark itself tries for a minute.
        ("spark://127.0.0.1:1", 1, "the Spark master spark://127.0.0.1:1 cannot be reached"),
        ("spark://nowhere", 2, "the master spark://nowhere: Invalid master URL: spark://nowhere"),
        ("sparks", 2, "with the master sparks"),
    ],
)
def test_a_start_without_a_master_ends_with_an_error(
    tmp_path: Path, master: str, code: int, said: str
) -> None:
    with running(tmp_path, document(master)) as run:
        assert run.process.wait(500) == code
    error, hint = run.log.splitlines()[-2:]
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: ")
    assert "spark.master" in hint
    assert "py4j" not in run.log
    assert "Traceback" not in run.log


@pytest.mark.timeout(900)
def test_a_service_that_ran_waits_for_its_master_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STARTED_AGAIN", "1")  # as after the cluster ended its application
    with running(tmp_path, document("spark://127.0.0.1:1")) as run:
        eventually(lambda: run.log.count("ops server listens") == 2, seconds=400, run=run)
        assert "the Spark master spark://127.0.0.1:1 cannot be reached" in run.log
        assert run.stop(400) == 1
        assert run.log.count("starting again") == 1
