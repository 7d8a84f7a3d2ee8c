"""DynamoDB Local, the official one, where `scripts/test` could get it; and tables on any server."""

import os
import shutil
import signal
import socket
import uuid
from pathlib import Path
from typing import Any

import boto3

from penstock.demo.server import EmbeddedServer
from penstock.errors import Unavailable

__all__ = ["DynamodbLocal", "Table"]

_LIBRARIES = Path(__file__).parents[2] / ".venv" / "dynamodb-local" / "lib"
_MAIN = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"


def java() -> str:
    """The program; raises Unavailable."""
    home = os.environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java")
    if found is None:
        raise Unavailable("java is not installed")
    return found


class DynamodbLocal(EmbeddedServer):
    """`keeps`: its tables are in its folder, over a kill as well; else in memory. Raises
    Unavailable without its jars."""

    def __init__(self, *, keeps: bool = False) -> None:
        self._keeps = keeps
        if not any(_LIBRARIES.glob("DynamoDBLocal-*.jar")):
            raise Unavailable(
                "DynamoDB Local is not there", hint="install Maven, and run scripts/test"
            )
        super().__init__("dynamodb-local", None)

    @property
    def url(self) -> str:
        """The endpoint of tables and streams."""
        return f"http://{self.host}:{self.port}"

    def close(self) -> None:
        """Ends the server."""
        self.daemon.signal(signal.SIGTERM)
        if not self.daemon.wait(20):
            self.kill()

    def _start(self, *, again: bool) -> None:
        command = [java(), f"-Djava.library.path={_LIBRARIES}", "-Xmx256m", "-cp"]
        command += [f"{_LIBRARIES}/*", _MAIN, "-port", str(self.port)]
        command += ["-dbPath", str(self.folder)] if self._keeps else ["-inMemory"]
        self.daemon.start(command, ready=self._ready, timeout=self.timeout, again=again)

    def _ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0


class Table:
    """A table with a stream; on DynamoDB Local in a database of its own."""

    def __init__(self, url: str, view: str = "NEW_AND_OLD_IMAGES") -> None:
        self.name = "users"
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
