"""A source whose places are not enough to resume: the stream itself gives the bookmark back."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.model.position import PartitionId
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.pipeline.running import Run, assert_none_is_left, count, eventually, messages, tree
from tests.servers import Nats

pytestmark = [
    pytest.mark.live, pytest.mark.spark, pytest.mark.fault, pytest.mark.usefixtures("staged"),
]  # fmt: skip

CHANGES = 600
FEED: dict[str, Any] = {
    "changes": CHANGES, "page": 5, "unit": 7, "latency": "1s", "tokens": True,
}  # fmt: skip


def event_ids() -> list[str]:
    """All that the feed has, in order."""
    feed = StagedFeed(StagedSettings.model_validate({"name": "default", **FEED}))
    following, decoder = feed.follow(PartitionId("p0")), feed.decoder("json")
    ids: list[str] = []
    while pages := following.read(0.0):
        ids += [
            str(event)
            for page in pages
            for batch in decoder.decode(page)
            for event in batch.column("event_id").to_pylist()
        ]
    return ids


@pytest.mark.thorough  # tests/service has it without Spark
def test_without_positions_it_goes_on_exactly_after_the_last_stored_change(
    tmp_path: Path, nats: Nats, stream: str
) -> None:
    subject = f"{stream.lower()}.{{operation}}"
    document = {
        "name": "marks",
        "backends": [{"name": "default", "type": "staged", **FEED}],
        "sink": {
            "type": "jetstream",
            "url": nats.url,
            "stream": stream,
            "subject": subject,
            "messages": "batch",
            "encoding": "json",
            "batch": {"max_size": 3},
        },
        "state": str(tmp_path / "state"),
        "ops": {"port": 0},
    }
    run = Run(tmp_path, document)
    try:
        eventually(lambda: count(nats, stream) >= 50, run=run)
        processes = tree(run)
        run.kill()
        assert_none_is_left(processes)
        before = count(nats, stream)
        shutil.rmtree(tmp_path / "state")
        run = Run(tmp_path, document)
        eventually(lambda: last_id(nats, stream) == event_ids()[-1], run=run)
        assert "resuming after them" in run.log
    finally:
        if run.process.poll() is None:
            run.stop()
    stored = messages(nats, stream)
    assert 50 <= before < len(stored), "it was killed in the middle"
    assert [each[0] for message in stored for each in message.body["changes"]] == event_ids()


def last_id(nats: Nats, stream: str) -> str:
    headers = messages(nats, stream)[-1].headers
    return headers.get("Nats-Msg-Id") or headers["Penstock-Event-Id"]
