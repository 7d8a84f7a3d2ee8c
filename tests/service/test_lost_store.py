"""The positions store is lost, and the source's partitions have come and gone since: what the sink
has says that this is no first start, and what was lost is told."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config import parse_pipeline
from penstock.model.position import PartitionId
from penstock.reading.positions import Positions
from penstock.service.beginning import resume
from penstock.sinks import ignore
from tests.dynamodb.consumers import Pipeline, some, until
from tests.dynamodb.server import StreamsServer
from tests.servers import Nats


@pytest.fixture
def server() -> Iterator[StreamsServer]:
    with StreamsServer() as found:
        yield found


@pytest.fixture(params=["memory", "jetstream"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    if request.param == "memory":
        return {"type": "memory", "folder": str(tmp_path / "sink")}
    nats: Nats = request.getfixturevalue("nats")
    stream: str = request.getfixturevalue("stream")
    subject = f"{stream.lower()}.{{source_partition}}.{{operation}}"
    return {"type": "jetstream", "url": nats.url, "stream": stream, "subject": subject}


def test_what_the_sink_has_is_a_gap_when_none_of_its_partitions_is_listed(
    server: StreamsServer, sink: dict[str, Any], tmp_path: Path
) -> None:
    source = server.stream("users")
    shard = source.shard()
    source.put(shard, "a", at=server.now)
    backend = {
        "name": "aws", "type": "dynamodb", "table": "users", "endpoint": server.url,
        "region": "eu-central-1", "access_key": "a", "secret_key": "b", "poll": 0.01,
    }  # fmt: skip
    document = {"name": "shop", "backends": [backend], "sink": sink, "state": str(tmp_path)}
    pipeline = parse_pipeline(json.dumps(document))
    made, target = pipeline.backends[0], pipeline.sink.sink()
    target.prepare()
    feed: Any = made.feed()
    begun = feed.begin()
    partition = PartitionId(f"{source.label}/{shard.id}")
    following, decoder = feed.follow(partition, begun[partition]), feed.decoder("json")
    deadline = time.monotonic() + 30
    while not (pages := following.read(0.1)):
        assert time.monotonic() < deadline
    target.write(decoder.decode(pages[0]), ignore)

    (child,) = source.split(shard, 1)
    (last,) = source.split(child, 1)
    source.put(last, "c", at=server.now)
    for each in (shard, child):
        each.listed, each.gone = False, True
    positions = Positions.of(pipeline.positions, "shop", "aws", pipeline.checkpoint)
    resume(made, positions, target)
    assert set(positions.load()) == {partition}

    stopped = Pipeline(feed, positions.load())
    until(stopped, lambda: bool(stopped.lost))
    assert (stopped.keys, stopped.causes) == ([], ["shard_gone"])
    stopped.stop()
    document["backends"] = [backend | {"on_gap": "continue"}]
    goes_on = Pipeline(
        parse_pipeline(json.dumps(document)).backends[0].feed(),  # type: ignore[arg-type]
        positions.load(),
    )
    assert some(goes_on, 1) == ["c"]
    assert goes_on.causes == ["shard_gone", "lineage_broken"]
    goes_on.stop()
