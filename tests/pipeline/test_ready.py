"""GET /ready: whatever is written after its first 200 is delivered."""

import json
from pathlib import Path

import pytest

from tests.pipeline.running import Run, document, eventually, messages, running
from tests.servers import Database, Nats

pytestmark = [pytest.mark.live, pytest.mark.spark]


def ready(run: Run) -> bool:
    code, body = run.get("/ready")
    assert json.loads(body)["ready"] is (code == 200)
    return code == 200


def test_what_is_written_once_a_first_start_is_ready_is_delivered(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION pub FOR TABLE items; INSERT INTO items VALUES (0)")
    with running(tmp_path, document(tmp_path, database, nats, stream)) as run:
        eventually(lambda: run.url, run=run)
        code, body = run.get("/ready")
        assert (code, json.loads(body)["reasons"]) == (503, ["backend default: has not begun"])
        eventually(lambda: ready(run), run=run)
        database.execute("INSERT INTO items SELECT generate_series(1, 100)")
        eventually(lambda: len(messages(nats, stream)) >= 100, run=run)
        assert run.stop() == 0
    ids = [message.body["data"]["id"] for message in messages(nats, stream)]
    assert ids == list(range(1, 101))


def test_a_pipeline_is_not_ready_while_its_sink_is_away(
    database: Database, stream: str, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE items"
    )
    with (
        Nats() as server,
        running(tmp_path, document(tmp_path, database, server, stream)) as run,
    ):
        eventually(lambda: ready(run), run=run)
        database.execute("INSERT INTO items VALUES (1)")
        eventually(lambda: len(messages(server, stream)) == 1, run=run)
        server.stop()
        database.execute("INSERT INTO items SELECT generate_series(2, 50)")
        eventually(lambda: not ready(run), run=run)
        server.start()
        eventually(lambda: ready(run), run=run)
        eventually(lambda: len(messages(server, stream)) == 50, run=run)
        assert run.stop() == 0
