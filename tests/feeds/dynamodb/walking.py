"""One shard of the scripted server, followed by a clock of the test."""

from typing import Any

from penstock.feeds.dynamodb.beginning import ShardBeginning
from penstock.feeds.dynamodb.client import client_of
from penstock.feeds.dynamodb.following import DynamodbFollowing, ServedShard
from penstock.feeds.dynamodb.losses import ShardLosses
from penstock.feeds.dynamodb.streams import TableStreams
from penstock.feeds.dynamodb.walk import KnownShard
from penstock.model.position import START, PartitionId
from tests.dynamodb.server import StreamsServer, settings_of
from tests.dynamodb.streams import Shard, Stream


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
        self.known = known or KnownShard()
        settings, partition = settings_of(server), PartitionId(f"{stream.label}/{shard.id}")
        client = client_of(settings)
        served = ServedShard(
            client=client,
            partition=partition,
            arn=stream.arn,
            id=shard.id,
            table="users",
            known=self.known,
            reads=reads,
            pause=pause,
        )
        losses = ShardLosses(
            settings=settings,
            streams=TableStreams(settings),
            client=client,
            partition=partition,
            bookmark=START,
        )
        self.following = DynamodbFollowing(
            served,
            beginning or ShardBeginning(),
            losses,
            clock=lambda: self.seconds,
            now=lambda: server.now,
        )

    def step(self, seconds: float = 1.0) -> int:
        """How many records came."""
        self.seconds += seconds
        self.server.advance(seconds)
        return sum(page.count for page in self.following.read(0.0))

    def status(self, name: str) -> Any:
        return self.following.status()[name]
