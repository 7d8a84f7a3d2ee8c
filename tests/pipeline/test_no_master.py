"""A Spark that does not start: an error that names the master and the remedy."""

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.running import running

pytestmark = [pytest.mark.spark, pytest.mark.fault]


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
    pipeline: dict[str, Any] = {
        "name": "test",
        "backends": [{"type": "memory"}],
        "sink": {"type": "memory"},
        "positions": "memory:",
        "ops": {"port": 0},
        "spark": {"master": master},
    }
    with running(tmp_path, pipeline) as run:
        assert run.process.wait(500) == code
    error, hint = run.log.splitlines()[-2:]
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith("hint: ")
    assert "spark.master" in hint
    assert "py4j" not in run.log
    assert "Traceback" not in run.log
