"""One shard of the scripted server, followed by a clock of the test."""

from typing import Any

from penstock.feeds.dynamodb.beginning import ShardBeginning
from penstock.feeds.dynamodb.client import Account, StreamsClient
from penstock.feeds.dynamodb.following import DynamodbFollowing
from penstock.feeds.dynamodb.streams import ServedShard, TableStreams
from penstock.feeds.dynamodb.walk import KnownShard
from penstock.model.position import START, PartitionId
from tests.dynamodb.server import StreamsServer, settings_of
from tests.dynamodb.streams import Shard, Stream


def name(stream: Stream, shard: Shard) -> PartitionId:
    """The partition."""
    return PartitionId(f"{stream.label}/{shard.id}")


class Walking:
    """A following; `step` lets a second go by, here and at the server, and reads once."""

    def __init__(
        self,
        server: StreamsServer,
        stream: Stream,
        shard: Shard,
        beginning: ShardBeginning | None = None,
        *,
        known: KnownShard | None = None,
        seconds: float = 0.0,
        reads: int = 5,
        pause: float = 1.0,
    ) -> None:
        self.server, self.seconds = server, seconds
        settings = settings_of(server, reads=reads, poll=pause)
        account = Account(lambda: self.seconds, lambda _: None)
        if known is not None:
            account._shards[stream.arn, shard.id] = known
        self.known = account.shard(stream.arn, shard.id)
        client, streams = StreamsClient(settings, account), TableStreams(settings)
        client.now = lambda: server.now  # type: ignore[method-assign]
        streams.know(stream.arn)
        served = ServedShard(
            settings=settings,
            streams=streams,
            client=client,
            partition=name(stream, shard),
            bookmark=START,
        )
        self.following = DynamodbFollowing(served, beginning or ShardBeginning())

    def step(self, seconds: float = 1.0) -> int:
        """How many records came."""
        self.seconds += seconds
        self.server.advance(seconds)
        return sum(page.count for page in self.following.read(0.0))

    def status(self, name: str) -> Any:
        return self.following.status()[name]
