"""A pipeline whose source lost changes: it says so everywhere, and its policy is obeyed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.running import Run, document, eventually, messages, running
from tests.servers import Database, Nats
from tests.slots import drop_slot

pytestmark = pytest.mark.fault

TABLE = """
CREATE TABLE items (id int PRIMARY KEY, note text);
CREATE PUBLICATION pub FOR TABLE items
"""


@pytest.fixture
def nats() -> Iterator[Nats]:
    """A server of its own: an account has one stream of news."""
    with Nats() as server:
        yield server


def pipeline_of(
    folder: Path, database: Database, nats: Nats, stream: str, **backend: Any
) -> dict[str, Any]:
    made = document(folder, database, nats, stream)
    made["backends"][0] |= backend
    made["sink"]["events"] = f"{stream}_EVENTS"
    made["sink"]["encoding"] = "json"
    made["checkpoint"] = {"interval": "500ms"}
    return made


def insert(database: Database, first: int, last: int, note: str) -> None:
    database.execute(
        "INSERT INTO items SELECT g, %s FROM generate_series(%s::int, %s::int) g",
        (note, first, last),
    )


def notes(nats: Nats, stream: str, note: str) -> list[int]:
    """The ids of the stored rows with that note."""
    bodies = [message.body for message in messages(nats, stream)]
    return [body["data"]["id"] for body in bodies if body["data"]["note"] == note]


def lose_the_slot(database: Database) -> None:
    drop_slot(database, f"slot_{database.name}", taken=True)


def gaps_of(run: Run, database: Database) -> dict[str, Any]:
    row: dict[str, Any] = run.status()["backends"][0]["gaps"][f"slot_{database.name}"]
    return row


def penstock_gaps(file: Path, *options: str) -> Any:
    command = [sys.executable, "-m", "penstock", "gaps", str(file), "--json", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


@pytest.mark.timeout(300)
def test_a_slot_that_is_dropped_while_we_run_stops_the_backend_and_is_told_everywhere(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    database.execute(TABLE)
    pipeline = pipeline_of(tmp_path, database, nats, stream)
    with running(tmp_path, pipeline) as run:
        eventually(lambda: run.status()["backends"][0]["connected"], run=run)
        insert(database, 1, 10, "before")
        eventually(lambda: len(notes(nats, stream, "before")) == 10, run=run)
        eventually(lambda: penstock_positions(run.file), run=run)
        lose_the_slot(database)
        insert(database, 11, 20, "lost")
        eventually(lambda: run.get("/health")[0] == 503, run=run)
        status = eventually(lambda: run.status() if run.status()["backends"][0]["blocked"] else 0)
        assert "the slot is gone" in status["backends"][0]["blocked"]
        assert any("stands still" in reason for reason in status["reasons"])
        row = gaps_of(run, database)
        assert (row["stale"], row["counts"]) == (True, {"slot_missing": 1})
        assert row["gaps"][0]["policy"] == "fail"
        assert row["gaps"][0]["from"]
        metrics = run.get("/metrics")[1]
        where = f'backend="default",cause="slot_missing",partition="slot_{database.name}"'
        assert f"penstock_gaps_total{{{where}}} 1.0" in metrics
        where = f'backend="default",partition="slot_{database.name}"'
        assert f"penstock_partition_stale{{{where}}} 1.0" in metrics
        told = eventually(lambda: messages(nats, f"{stream}_EVENTS"), run=run)
        assert [message.subject for message in told] == ["penstock.gap.default"]
        assert told[0].body["cause"] == "slot_missing"
        assert told[0].body["pipeline"] == "test"
        assert penstock_gaps(run.file)[0]["counts"] == {"slot_missing": 1}
        assert 'event="history lost"' in run.log
        assert run.stop() == 0
    pipeline["backends"][0]["on_gap"] = "continue"
    with running(tmp_path, pipeline) as run:
        eventually(lambda: gaps_of(run, database)["gaps"][0]["to"], run=run)
        insert(database, 21, 30, "after")
        eventually(lambda: len(notes(nats, stream, "after")) == 10, run=run)
        assert gaps_of(run, database)["counts"] == {"slot_missing": 1}, "it is the same hole"
        told = eventually(lambda: messages(nats, f"{stream}_EVENTS")[1:], run=run)
        assert [message.body["policy"] for message in told] == ["continue"]
        eventually(lambda: run.status()["health"] == "degraded", run=run)
        assert any("is stale" in reason for reason in run.status()["reasons"])
        penstock_gaps(run.file, "mend", f"default/slot_{database.name}")
        eventually(lambda: run.status()["health"] == "ok", run=run)
        assert run.stop() == 0
    assert notes(nats, stream, "lost") == []


def penstock_positions(file: Path) -> bool:
    """Whether a place is stored."""
    command = [sys.executable, "-m", "penstock", "positions", str(file), "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    return bool(found and found[0]["place"])
