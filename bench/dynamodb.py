"""DynamoDB Streams for the bench: the suite's scripted server in a process of its own, a backlog in
eight shards, and a bare boto3 loop that keeps to five reads a second and shard, as AWS does."""

import multiprocessing
import time
from collections import deque
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import boto3

from penstock.process.closing import Closes
from tests.dynamodb.server import StreamsServer

SHARDS = 8
READS = 5  # a second and shard
_TABLE = "bench"


class DynamoDB(Closes):
    """A `Source`."""

    baseline = "boto3's GetRecords, parsed by boto3"

    def __init__(self, rows: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._control, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)

    def __enter__(self) -> "DynamoDB":
        self._process.start()
        self._url, self._arn = self._control.recv()
        return self

    def close(self) -> None:
        """Ends the server."""
        self._process.terminate()
        self._process.join()

    @property
    def pid(self) -> int:
        """See `Source`."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def backend(self) -> Mapping[str, Any]:
        """See `Source`."""
        return {
            "type": "dynamodb",
            "table": _TABLE,
            "endpoint": self._url,
            "region": "eu-central-1",
            "access_key": "a",
            "secret_key": "b",
            "reads": READS,
        }

    def write(self, rows: int, size: int = 1000) -> None:
        """See `Source`."""
        self._control.send(rows)
        self._control.recv()

    def read(self, rows: int) -> float:
        """See `Source`."""
        client = boto3.client(
            "dynamodbstreams",
            endpoint_url=self._url,
            region_name="eu-central-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
        )
        started, found = time.perf_counter(), 0
        listed = client.describe_stream(StreamArn=self._arn)["StreamDescription"]["Shards"]
        waiting: deque[tuple[str, deque[float]]] = deque()
        for shard in listed:
            iterator = client.get_shard_iterator(
                StreamArn=self._arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            waiting.append((iterator, deque(maxlen=READS)))
        while found < rows:
            iterator, recent = waiting.popleft()
            if len(recent) == READS:
                time.sleep(max(0.0, recent[0] + 1 - time.monotonic()))
            recent.append(time.monotonic())
            answer = client.get_records(ShardIterator=iterator)
            found += len(answer["Records"])
            waiting.append((answer["NextShardIterator"], recent))
        return time.perf_counter() - started


def _serve(control: Connection) -> None:
    """The server's process: writes as many rows as it is asked to."""
    with StreamsServer() as server:
        stream = server.stream(_TABLE)
        shards = [stream.shard() for _ in range(SHARDS)]
        control.send((server.url, stream.arn))
        first = 0
        while True:
            rows = control.recv()
            with server.lock:
                for number in range(first, first + rows):
                    shard = shards[number % SHARDS]
                    stream.put(shard, str(number), new=_item(number), at=server.now)
            first += rows
            control.send(rows)


def _item(number: int) -> dict[str, Any]:
    return {
        "name": f"name {number}",
        "text": "twenty characters xx" * 3,
        "number": number * 3,
        "big": 2**40 + number,
        "price": number / 4,
        "active": number % 2 == 0,
        "tags": ["a", "b"],
        "nested": {"a": 1, "b": None},
        "none": None,
    }
