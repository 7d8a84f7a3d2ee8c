"""A stream whose messages all expired: it has no record of how far it is."""

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.running import count, document, eventually, json_messages, running
from tests.pipeline.test_faults import TABLE
from tests.servers import Database, Nats
from tests.sinks.jetstream.raw import Raw

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.fault]


def rows(nats: Nats, stream: str) -> list[Any]:
    return [body["data"]["who"] for body in json_messages(nats, stream)]


@pytest.mark.thorough  # tests/service/test_resuming.py has both cases without Spark
@pytest.mark.timeout(300)
def test_a_stream_emptied_by_max_age_goes_on_behind_what_it_had(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    """By the stored position or, without one, by the slot; and the log says so."""
    database.execute(TABLE)
    pipeline = document(tmp_path, database, nats, stream)
    with running(tmp_path, pipeline) as run:
        eventually(lambda: run.status()["backends"][0]["connected"], run=run)
        assert "nothing left" not in run.log
        database.execute("INSERT INTO items (who) SELECT generate_series(1, 10)")
        eventually(lambda: rows(nats, stream) == list(range(1, 11)), run=run)
        assert run.stop() == 0
    expire(nats, stream)
    database.execute("INSERT INTO items (who) SELECT generate_series(11, 20)")
    with running(tmp_path, pipeline) as run:
        eventually(lambda: count(nats, stream) >= 10, run=run)
        assert "resuming after the stored position" in run.log
        assert run.stop() == 0
    assert rows(nats, stream) == list(range(11, 21))
    expire(nats, stream)
    database.execute("INSERT INTO items (who) SELECT generate_series(21, 30)")
    with running(tmp_path, {**pipeline, "positions": "memory:"}) as run:
        eventually(lambda: count(nats, stream) >= 10, run=run)
        assert "resuming where the source remembers us to be" in run.log
        assert run.stop() == 0
    assert rows(nats, stream) == list(range(21, 31))


def expire(nats: Nats, stream: str) -> None:
    """All of its messages."""
    server = Raw(nats.url)
    server.update(stream, max_age=1_000_000_000, duplicate_window=1_000_000_000)
    eventually(lambda: count(nats, stream) == 0)
    server.update(stream, max_age=0)
