"""What /status shows of a running pipeline with many partitions."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.running import Run, eventually, running

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.usefixtures("staged")]

PARTITIONS, CHANGES = 400, 20


def backend(run: Run, query: str = "") -> Any:
    return json.loads(run.get(f"/status{query}")[1])["backends"][0]


def test_the_rows_of_all_partitions_and_their_sums_arrive(tmp_path: Path) -> None:
    many = {"type": "staged", "partitions": PARTITIONS, "changes": CHANGES, "polled": True}
    pipeline = {
        "name": "test",
        "backends": [{"name": "many", **many}],
        "sink": {"type": "memory", "keep": False},
        "state": str(tmp_path / "state"),
        "ops": {"port": 0},
    }

    def durable(run: Run) -> bool:
        rows = backend(run, "?partitions=all")["partitions"]
        return len([row for row in rows if row["place"]]) == PARTITIONS

    with running(tmp_path, pipeline) as run:
        eventually(lambda: durable(run), run=run)
        eventually(lambda: backend(run)["events"] == PARTITIONS * CHANGES, run=run)
        found = backend(run)
        assert (found["connected"], found["partition_count"]) == (True, PARTITIONS)
        assert found["partition_states"] == {"reading": PARTITIONS}
        assert len(found["partitions"]) == 20
        assert found["pages"] == PARTITIONS
        assert found["last_event_seconds"] is not None
        every = backend(run, "?partitions=all")["partitions"]
        assert {row["partition"] for row in every} == {f"p{n}" for n in range(PARTITIONS)}
        eventually(lambda: backend(run)["lag"] == {"changes": 0}, run=run)
        eventually(lambda: run.get("/health")[0] == 200, run=run)
        where = 'penstock_partitions{backend="many",state="reading"}'
        assert f"{where} {PARTITIONS}.0" in run.get("/metrics")[1]
        assert run.stop() == 0
