"""The servers that tests make tables on, and a table on any of them.

`PENSTOCK_DYNAMODB_URL` is the endpoint of tables and streams of one more server, which others run:
what needs neither its clock nor its end runs there, too.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self

import boto3
from botocore.config import Config

from tests.dynamodb.server import StreamsServer
from tests.servers import Moto

URL = os.environ.get("PENSTOCK_DYNAMODB_URL", "")


class Endpoint(Protocol):
    """A server from `__enter__` to `__exit__`."""

    @property
    def url(self) -> str: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class Given:
    """The server of PENSTOCK_DYNAMODB_URL."""

    url = URL

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


# By others; and those that know all of DynamoDB Streams that penstock asks for.
OTHERS: list[type[Endpoint]] = [Moto, *([Given] if URL else [])]
WHOLE: list[type[Endpoint]] = [StreamsServer, *([Given] if URL else [])]


@contextmanager
def table_on(server: Endpoint, view: str = "NEW_AND_OLD_IMAGES") -> Iterator["Table"]:
    """A table of its own, which goes again."""
    table = Table(server.url, view)
    try:
        yield table
    finally:
        table.client.delete_table(TableName=table.name)


class Table:
    """A table with a stream. Its access key is its own, too: the limits of an account are by key,
    and some servers have a database for each."""

    def __init__(self, url: str, view: str = "NEW_AND_OLD_IMAGES") -> None:
        self.name = f"users_{uuid.uuid4().hex[:8]}"
        key = f"k{uuid.uuid4().hex[:15]}"
        self.given = {
            "table": self.name, "endpoint": url, "region": "eu-central-1",
            "access_key": key, "secret_key": "b",
        }  # fmt: skip
        self.client: Any = boto3.client(
            "dynamodb",
            endpoint_url=url,
            region_name="eu-central-1",
            aws_access_key_id=key,
            aws_secret_access_key="b",
            config=Config(retries={"mode": "standard", "total_max_attempts": 10}),
        )
        self.client.create_table(
            TableName=self.name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": view},
        )

    def put(self, key: str, **item: Any) -> None:
        """Attributes are typed values."""
        self.client.put_item(TableName=self.name, Item={"id": {"S": key}, **item})

    def fill(self, count: int, start: int = 0) -> None:
        """Items `r0`, `r1`, ... in batches."""
        for first in range(start, start + count, 25):
            requests = [
                {"PutRequest": {"Item": {"id": {"S": f"r{n}"}, "n": {"N": str(n)}}}}
                for n in range(first, min(first + 25, start + count))
            ]
            self.client.batch_write_item(RequestItems={self.name: requests})

    def delete(self, key: str) -> None:
        """Removes an item."""
        self.client.delete_item(TableName=self.name, Key={"id": {"S": key}})

    def enable(self, on: bool) -> None:
        """Enables or disables the stream."""
        view = {"StreamViewType": "NEW_AND_OLD_IMAGES"} if on else {}
        self.client.update_table(
            TableName=self.name, StreamSpecification={"StreamEnabled": on, **view}
        )
