"""The positions store is lost, and the source's partitions have come and gone since: what the sink
has says that this is no first start, and what was lost is told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.model.position import PartitionId
from penstock.service.beginning import resume
from penstock.service.ownership import positions_of
from penstock.sinks import ignore
from tests.dynamodb.consumers import Pipeline, some, until
from tests.dynamodb.server import StreamsServer
from tests.servers import Nats
from tests.service.pipelines import pipeline_of
from tests.waiting import until as wait_for


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


@pytest.mark.slow
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
    pipeline = pipeline_of(backend, sink=sink, folder=tmp_path)
    made, target = pipeline.backends[0], pipeline.sink.sink()
    target.prepare()
    feed: Any = made.feed()
    begun = feed.begin()
    partition = PartitionId(f"{source.label}/{shard.id}")
    following, decoder = feed.follow(partition, begun[partition]), feed.decoder("json")
    target.write(decoder.decode(wait_for(lambda: following.read(0.1))[0]), ignore)

    (child,) = source.split(shard, 1)
    (last,) = source.split(child, 1)
    source.put(last, "c", at=server.now)
    for each in (shard, child):
        each.listed, each.gone = False, True
    positions = positions_of(pipeline, "aws", "")
    resume(made, positions, target)
    assert set(positions.load()) == {partition}

    stopped = Pipeline(feed, positions.load())
    until(stopped, lambda: bool(stopped.lost))
    assert (stopped.keys, stopped.causes) == ([], ["shard_gone"])
    stopped.stop()
    pipeline = pipeline_of(backend | {"on_gap": "continue"}, sink=sink, folder=tmp_path)
    goes_on = Pipeline(cast("Any", pipeline.backends[0].feed()), positions.load())
    assert some(goes_on, 1) == ["c"]
    assert goes_on.causes == ["shard_gone", "lineage_broken"]
    goes_on.stop()
