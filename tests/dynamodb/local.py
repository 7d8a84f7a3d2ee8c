"""DynamoDB Local, the official one, where `scripts/test` could get it; and tables on any server.

Debian's libfaketime gives it a clock that tests move: its shards roll every four hours, iterators
expire after 15 minutes, and records are trimmed after 24 hours.
"""

import os
import shutil
import signal
import socket
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from penstock.model.errors import Unavailable
from tests.servers import EmbeddedServer

_OURS = Path(__file__).parents[2] / ".venv"
_LIBRARIES = _OURS / "dynamodb-local" / "lib"
_FAKETIME = "usr/lib/*/faketime/libfaketimeMT.so.1"
# How many seconds of the server pass in one, so that a shard rolls every 12 seconds.
ROLLS = 1200
_MAIN = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"


def java() -> str:
    """The program; raises Unavailable."""
    home = os.environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java")
    if found is None:
        raise Unavailable("java is not installed")
    return found


def faketime() -> Path:
    """The library; raises Unavailable."""
    found = [*_OURS.glob(f"faketime/{_FAKETIME}"), *Path("/").glob(_FAKETIME)]
    if not found:
        raise Unavailable("libfaketime is not there", hint="apt-get install libfaketime")
    return found[0]


class DynamodbLocal(EmbeddedServer):
    """`keeps`: its tables are in its folder, over a kill as well; else in memory. `clock`: that
    many of its seconds pass in one, and `advance` moves it. Raises Unavailable without its jars,
    or without the library for that."""

    def __init__(self, *, keeps: bool = False, clock: int | None = None) -> None:
        self._keeps = keeps
        self._library = None if clock is None else faketime()
        self._rate, self._ahead = clock, 0
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
        self.signal(signal.SIGTERM)
        if not self.wait(20):
            self.kill()

    def _command(self, *, again: bool) -> Sequence[str]:
        command = [java(), f"-Djava.library.path={_LIBRARIES}", "-Xmx256m", "-cp"]
        command += [f"{_LIBRARIES}/*", _MAIN, "-port", str(self.port)]
        command += ["-dbPath", str(self.folder)] if self._keeps else ["-inMemory"]
        if self._library is not None:
            self._write_clock()
            # The monotonic clock goes with it: else the JVM's timers spin, and no shard rolls.
            self.environment = {
                "LD_PRELOAD": str(self._library),
                "FAKETIME_TIMESTAMP_FILE": str(self._clock),
                "FAKETIME_CACHE_DURATION": "1",
            }
        return command

    @property
    def _clock(self) -> Path:
        return self.folder / "clock"

    def _write_clock(self) -> None:
        fresh = self._clock.with_suffix(".new")
        fresh.write_text(f"+{self._ahead} x{self._rate}\n")
        fresh.rename(self._clock)

    def advance(self, seconds: int) -> None:
        """Moves the clock on at once; the server notices within a second."""
        self._ahead += seconds
        self._write_clock()

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
            config=Config(retries={"mode": "standard", "total_max_attempts": 10}),
        )
        # boto3 repeats a call whose answer was lost (a clock that goes fast drops connections): the
        # table is there then.
        with suppress(self.client.exceptions.ResourceInUseException):
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
