"""A DynamoDB Streams server that follows a script: HTTP and JSON as the service speaks them, for
boto3 and anything else, with what other servers cannot be made to do.

    with StreamsServer() as server:
        stream = server.stream("users")
        shard = stream.shard()
        stream.put(shard, "a", new={"age": 7}, at=server.now)
        left, right = stream.split(shard)
        right.hidden = 2                      # two listings come without it
        stream.empty = 1                      # and one without any shard
        shard.pages = [0, 0, 0, 0, 0, 0]      # six empty answers before the record
        server.fail("GetRecords", "ExpiredIteratorException", times=2)
        server.ages = True                    # records are kept for a day, by the server's clock
        server.advance(16 * 60)               # every iterator has expired
        server.counts["GetRecords"]           # calls so far

Tables that are made, written to and changed by boto3 have streams, too (`tables`):

        server.rolls = 4 * 3600               # the shard that is written to ends, and has a child
"""

import itertools
import json
from email.utils import formatdate
from typing import Any

from penstock.feeds.dynamodb import DynamodbSettings
from tests.dynamodb.streams import Refused
from tests.dynamodb.tables import TablesService
from tests.servers.http import HttpHandler, HttpStandIn

_accounts = itertools.count()


class _Handler(HttpHandler):
    def do_POST(self) -> None:
        operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        try:
            status, body = 200, self.stand_in.answer(operation, json.loads(self.body()))
        except Refused as refused:
            name = f"com.amazonaws.dynamodb.v20120810#{refused.code}"
            answer = {"__type": name, "message": refused.message}
            status, body = refused.status, json.dumps(answer).encode()
        headers = {"Content-Type": "application/x-amz-json-1.0", "x-amzn-RequestId": "0" * 32}
        self.send(status, body, headers)

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The `Date` header, by the server's clock."""
        return formatdate(self.stand_in.now if timestamp is None else timestamp, usegmt=True)


class StreamsServer(HttpStandIn, TablesService):
    """See above."""

    handler = _Handler

    def __init__(self) -> None:
        HttpStandIn.__init__(self)
        TablesService.__init__(self)
        self.access_key = f"key{next(_accounts)}"  # an account of its own: its limits, too


def settings_of(server: StreamsServer, table: str = "users", **given: Any) -> DynamodbSettings:
    """The feed's settings for a table of this server."""
    return DynamodbSettings.model_validate(
        {
            "table": table,
            "endpoint": server.url,
            "region": "eu-central-1",
            "access_key": server.access_key,
            "secret_key": "b",
            **given,
        }
    )
