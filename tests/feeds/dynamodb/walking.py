"""One shard of the scripted server, followed by a clock of the test."""

from typing import Any

from penstock.feeds.dynamodb.account import KnownShard
from penstock.feeds.dynamodb.beginning import ShardBeginning
from penstock.feeds.dynamodb.client import client_of
from penstock.feeds.dynamodb.following import DynamodbFollowing
from penstock.model.position import PartitionId
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
    ) -> None:
        self.server, self.seconds = server, seconds
        self.known = known or KnownShard()
        self.following = DynamodbFollowing(
            client_of(settings_of(server)),
            PartitionId(f"{stream.label}/{shard.id}"),
            arn=stream.arn,
            shard=shard.id,
            table="users",
            beginning=beginning or ShardBeginning(),
            known=self.known,
            reads=5,
            pause=1.0,
            lost=lambda after, cause: None,
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
