"""A DynamoDB Streams server that follows a script: HTTP and JSON as the service speaks them, for
boto3 and anything else, with what neither moto nor DynamoDB Local can be made to do.

    with StreamsServer() as server:
        stream = server.stream("users")
        shard = stream.shard()
        stream.put(shard, "a", new={"age": 7}, at=server.now)
        left, right = stream.split(shard)
        server.fail("GetRecords", "ExpiredIteratorException", times=2)
        server.advance(16 * 60)               # every iterator has expired
        server.counts["GetRecords"]           # calls so far
"""

import base64
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from penstock.feeds.dynamodb import DynamodbSettings
from tests.dynamodb.streams import Refused, Shard, Stream

LIFETIME = 15 * 60
_TARGET = "DynamoDBStreams_20120810."


@dataclass
class _Failure:
    """What the next `times` calls of `operation` (of `shard`, if any) answer."""

    operation: str
    error: Refused
    times: int
    shard: str = ""


class StreamsServer:
    """Serves on a free port of loopback from `__enter__` to `__exit__`. Thread-safe: the script is
    changed under `lock` by those who care about the moment."""

    def __init__(self, port: int = 0) -> None:
        self.lock = threading.RLock()
        self.streams: dict[str, Stream] = {}
        self.counts: Counter[str] = Counter()
        """Calls of each operation."""
        self.reads: dict[str, list[float]] = {}
        """Shard id -> when GetRecords was called for it, in monotonic seconds."""
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.at_timestamp = True
        """Whether GetShardIterator knows AT_TIMESTAMP."""
        self.trims_at = "GetShardIterator"
        """Which call refuses a trimmed place: `GetRecords` is what an iterator of before gets."""
        self.page_of_shards = 100
        self.page_of_records = 1000
        self.empty_describes = 0
        """How many answers of DescribeStream list nothing."""
        self.shuffles: random.Random | None = None
        self.repeats_shards = False
        """Whether pages of DescribeStream overlap by one shard."""
        self.before: Callable[[str, dict[str, Any]], None] = lambda operation, request: None
        """Called before each answer, with `lock` held: a script that reacts."""
        self._failures: list[_Failure] = []
        self._ahead = 0.0
        self._port = port
        self._labels = 0
        self._connections: list[socket.socket] = []

    # The script.

    @property
    def now(self) -> float:
        """The server's time, in seconds since 1970."""
        return time.time() + self._ahead

    def advance(self, seconds: float) -> None:
        """Moves the server's time on."""
        self._ahead += seconds

    def stream(self, table: str, **given: Any) -> Stream:
        """A new stream of a table, without shards. The table's old one is disabled."""
        with self.lock:
            for each in self.streams.values():
                if each.table == table and each.status == "ENABLED":
                    each.disable()
            self._labels += 1
            label = f"2026-11-23T01:00:{self._labels:02d}.000"
            found = Stream(table=table, label=label, **given)
            self.streams[found.arn] = found
            return found

    def fail(
        self, operation: str, code: str, *, times: int = 1, status: int = 400, shard: str = ""
    ) -> None:
        """The next `times` calls (that concern the shard) are refused."""
        with self.lock:
            self._failures.append(_Failure(operation, Refused(code, status=status), times, shard))

    # The service.

    def answer(self, operation: str, request: dict[str, Any]) -> bytes:
        """The body of an answer; raises Refused."""
        with self.lock:
            self.counts[operation] += 1
            self.calls.append((operation, request))
            self.before(operation, request)
            place = _opened(request["ShardIterator"]) if "ShardIterator" in request else {}
            shard = str(request.get("ShardId") or place.get("shard", ""))
            if operation == "GetRecords":
                self.reads.setdefault(shard, []).append(time.monotonic())
            for failure in self._failures:
                if failure.operation == operation and failure.shard in ("", shard):
                    failure.times -= 1
                    if not failure.times:
                        self._failures.remove(failure)
                    raise failure.error
            if operation == "GetRecords":
                return self._records(request, place)
            found = {
                "ListStreams": self._list,
                "DescribeStream": self._describe,
                "GetShardIterator": self._iterator,
            }[operation](request)
            return json.dumps(found).encode()

    def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        table = request.get("TableName")
        return {
            "Streams": [
                {"StreamArn": each.arn, "TableName": each.table, "StreamLabel": each.label}
                for each in self.streams.values()
                if table in (None, each.table)
            ]
        }

    def _stream(self, arn: str) -> Stream:
        if arn not in self.streams:
            raise Refused("ResourceNotFoundException", f"Stream {arn} not found")
        return self.streams[arn]

    def _describe(self, request: dict[str, Any]) -> dict[str, Any]:
        stream = self._stream(request["StreamArn"])
        shards = [each for each in stream.shards.values() if each.listed]
        after = request.get("ExclusiveStartShardId")
        if after is not None:
            ids = [each.id for each in shards]
            start = ids.index(after) + 1
            shards = shards[max(0, start - self.repeats_shards) :]
        limit = min(request.get("Limit", 100), self.page_of_shards)
        page, rest = shards[:limit], shards[limit:]
        last = page[-1].id if rest else None
        if self.empty_describes:
            self.empty_describes -= 1
            page, last = [], None
        if self.shuffles is not None:
            self.shuffles.shuffle(page)
        described = {
            "StreamArn": stream.arn,
            "StreamLabel": stream.label,
            "StreamStatus": stream.status,
            "StreamViewType": stream.view,
            "TableName": stream.table,
            "KeySchema": [
                {"AttributeName": name, "KeyType": "RANGE" if number else "HASH"}
                for number, name in enumerate(stream.keys)
            ],
            "Shards": [each.describe() for each in page],
        }
        return {"StreamDescription": described | ({"LastEvaluatedShardId": last} if last else {})}

    def _shard(self, stream: Stream, name: str) -> Shard:
        found = stream.shards.get(name)
        if found is None or found.gone:
            raise Refused("ResourceNotFoundException", f"Shard {name} not found")
        return found

    def _iterator(self, request: dict[str, Any]) -> dict[str, Any]:
        stream = self._stream(request["StreamArn"])
        shard = self._shard(stream, request["ShardId"])
        index = self._index(shard, request)
        if index < shard.trimmed and self.trims_at == "GetShardIterator":
            raise Refused("TrimmedDataAccessException", "trimmed")
        return {"ShardIterator": self._sealed(stream, shard, index)}

    def _index(self, shard: Shard, request: dict[str, Any]) -> int:
        kind = request["ShardIteratorType"]
        if kind == "TRIM_HORIZON":
            return shard.trimmed
        if kind == "LATEST":
            return len(shard.records)
        if kind == "AT_TIMESTAMP":
            if not self.at_timestamp:
                raise Refused("ValidationException", "AT_TIMESTAMP is not one of the values")
            if request["Timestamp"] > self.now:
                raise Refused("ValidationException", "the timestamp is in the future")
            later = (n for n, at in enumerate(shard.times) if at >= request["Timestamp"])
            return max(shard.trimmed, next(later, len(shard.records)))
        number = int(request["SequenceNumber"])
        if number < shard.first:
            raise Refused("ValidationException", "the sequence number is before the shard")
        after = kind == "AFTER_SEQUENCE_NUMBER"
        found = (n for n, each in enumerate(shard.sequences) if each >= number + after)
        return next(found, len(shard.records))

    def _sealed(self, stream: Stream, shard: Shard, index: int) -> str:
        place = {"arn": stream.arn, "shard": shard.id, "index": index, "made": self.now}
        return base64.b64encode(json.dumps(place).encode()).decode()

    def _records(self, request: dict[str, Any], place: dict[str, Any]) -> bytes:
        if self.now - place["made"] > LIFETIME:
            raise Refused("ExpiredIteratorException", "Iterator expired")
        stream = self._stream(place["arn"])
        shard = self._shard(stream, place["shard"])
        index = place["index"]
        if index < shard.trimmed:
            raise Refused("TrimmedDataAccessException", "trimmed")
        records, then = shard.page(index, request.get("Limit", self.page_of_records))
        body = b'{"Records": [' + b", ".join(records) + b"]"
        if then is not None:
            following = json.dumps(self._sealed(stream, shard, then))
            body = b'{"NextShardIterator": ' + following.encode() + b", " + body[1:]
        return body + b"}"

    # HTTP.

    def __enter__(self) -> Self:
        server = self

        class Handler(_Handler):
            streams = server

        self._http = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._http.daemon_threads = True
        self._port = self._http.server_address[1]
        serve = self._http.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def restart(self) -> None:
        """Every connection breaks; what the server has and its port stay."""
        self.__exit__()
        self.cut()
        self.__enter__()

    def cut(self) -> None:
        """Breaks every connection."""
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._connections.clear()

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self._port}"


def settings_of(server: StreamsServer, table: str = "users", **given: Any) -> DynamodbSettings:
    """The feed's settings for a table of this server."""
    return DynamodbSettings.model_validate(
        {
            "table": table,
            "endpoint": server.url,
            "region": "eu-central-1",
            "access_key": "a",
            "secret_key": "b",
            **given,
        }
    )


def _opened(iterator: str) -> dict[str, Any]:
    place: dict[str, Any] = json.loads(base64.b64decode(iterator))
    return place


class _Handler(BaseHTTPRequestHandler):
    streams: StreamsServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.streams._connections.append(self.connection)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        operation = self.headers.get("X-Amz-Target", "").removeprefix(_TARGET)
        try:
            self._send(200, self.streams.answer(operation, json.loads(body)))
        except Refused as refused:
            name = f"com.amazonaws.dynamodb.v20120810#{refused.code}"
            answer = {"__type": name, "message": refused.message}
            self._send(refused.status, json.dumps(answer).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("x-amzn-RequestId", "0" * 32)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""
