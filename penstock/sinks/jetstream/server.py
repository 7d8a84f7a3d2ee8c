"""The server that has the stream, for what is stored there besides changes.

News of the pipeline are stored in a stream of their own: a message of ours in the stream of the
changes would be the last of a shard, and break the fence. So every announcement says which stream
it expects: any other that takes its subject refuses it. Whoever subscribes to the subject gets it
in any case.
"""

from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any

import orjson

from penstock.model.errors import PenstockError, Unavailable
from penstock.model.table_schema import TableName
from penstock.nats.api import ApiError, JetStream, error_of
from penstock.nats.connection import Connection
from penstock.nats.protocol import hpub
from penstock.nats.settings import NatsSettings
from penstock.nats.subjects import covers
from penstock.sinks.jetstream.poison import DeadLetters, headers_with
from penstock.sinks.jetstream.schemas import SchemaBucket
from penstock.sinks.jetstream.session import Session, borrowed, limit_of
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.jetstream.stream import TargetStream, own_stream
from penstock.sinks.poison.dead_letter import Letter
from penstock.sinks.server import SinkServer

_EVENTS = "penstock.gap.>"
_DAY = 86_400 * 1_000_000_000  # nanoseconds
_WRONG_STREAM = 10060


class JetStreamServer(SinkServer):
    def __init__(self, settings: JetStreamSettings) -> None:
        self._settings = settings
        self.nats: NatsSettings = settings
        self.stream, self.subject, self.delivery = (
            settings.stream, settings.subject, str(settings.delivery),
        )  # fmt: skip
        self.encoding, self.dictionaries = str(settings.encoding), settings.dictionaries
        self.layout = settings.layout
        self.replicas, self.storage = settings.replicas, str(settings.storage)
        self.limits: Mapping[str, int] = {
            "max_age": int(settings.max_age * 10**9), "max_bytes": int(settings.max_bytes) or -1,
        }  # fmt: skip

    def stream_info(self, name: str) -> Mapping[str, Any] | None:
        with borrowed(self._settings) as session:
            return session.asked(lambda api: api.stream(name))

    def largest_message(self) -> int:
        with closing(Connection(self._settings)) as connection:
            connection.open()
            info = JetStream(connection).stream(self.stream)
            return limit_of(TargetStream.of(info).largest if info else 0, connection)

    def announce(self, subject: str, news: Mapping[str, Any], *, identity: str) -> str:
        with borrowed(self._settings, is_open=True) as session:
            return _announce(session, subject, orjson.dumps(news), identity)

    def schemas(self, pipeline: str, prefix: TableName = ()) -> SchemaBucket:
        return SchemaBucket(self._settings, pipeline, prefix)

    def set_aside(self, connection: Connection, letters: Iterable[Letter]) -> None:
        stream = DeadLetters(connection, JetStream(connection), self._settings)
        for letter in letters:
            stream.store(letter)


def _announce(session: Session, subject: str, news: bytes, identity: str) -> str:
    """See `SinkServer.announce`: "" when no stream may be made."""
    stream, connection = session.settings.events, session.connection
    headers = headers_with({
        "Nats-Msg-Id": identity,
        "Nats-Expected-Stream": stream,
        "Content-Type": "application/json",
    })  # fmt: skip
    if not _takes(session, stream, subject):
        connection.send(hpub(subject.encode(), b"", headers, news))
        connection.ping()
        return ""
    try:
        session.api.publish(subject, headers, news)
    except ApiError as error:
        if error.code == _WRONG_STREAM:  # another one takes the subject, and refused it
            return ""
        raise error_of(error, f"news for {subject} were not stored") from None
    return stream


def _takes(session: Session, stream: str, subject: str) -> bool:
    """Whether there is a stream that takes the subject, made if it may be."""
    settings = session.settings
    if stream == settings.stream:
        return False
    try:
        if (info := session.api.stream(stream)) is None:
            limits = {"max_age": 365 * _DAY, "max_msgs": 100_000}
            info = session.api.create(own_stream(stream, _EVENTS, settings) | limits)
    except Unavailable:
        raise
    except PenstockError:
        return False  # not allowed, or its subjects are another stream's
    return any(covers(taken, subject) for taken in info["config"].get("subjects") or ())
