"""A DynamoDB Streams server that follows a script: HTTP and JSON as the service speaks them, for
boto3 and anything else, with what neither moto nor DynamoDB Local can be made to do.

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
"""

import itertools
import json
import socket
import threading
from contextlib import suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from penstock.feeds.dynamodb import DynamodbSettings
from tests.dynamodb.service import StreamsService
from tests.dynamodb.streams import Refused

_accounts = itertools.count()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    # Connections that wait to be accepted: with the usual 5, of fifty at once some are reset.
    request_queue_size = 128


class StreamsServer(StreamsService):
    """Serves on a free port of loopback from `__enter__` to `__exit__`."""

    def __init__(self, port: int = 0) -> None:
        super().__init__()
        self.access_key = f"key{next(_accounts)}"  # an account of its own: its limits, too
        self._port = port
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Self:
        server = self

        class Handler(_Handler):
            streams = server

        self._http = _Http(("127.0.0.1", self._port), Handler)
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
            "access_key": server.access_key,
            "secret_key": "b",
            **given,
        }
    )


class _Handler(BaseHTTPRequestHandler):
    streams: StreamsServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.streams._connections.append(self.connection)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
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

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The `Date` header, by the server's clock."""
        return formatdate(self.streams.now if timestamp is None else timestamp, usegmt=True)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""
