"""News of the pipeline itself: stored in a stream of their own, never in the one of the changes.

A message of ours in the stream of the changes would be the last of a shard, and break the fence.
So every announcement says which stream it expects: any other that takes its subject refuses it.
Whoever subscribes to the subject gets it in any case.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from penstock.model.errors import PenstockError, Unavailable
from penstock.nats.api import ApiError, error_of
from penstock.nats.protocol import hpub, status_of
from penstock.nats.subjects import covers
from penstock.sinks.jetstream.session import Session

SUBJECTS = "penstock.gap.>"
_DAY = 86_400 * 1_000_000_000  # nanoseconds
_WRONG_STREAM = 10060


def announce(session: Session, subject: str, news: Mapping[str, Any], *, identity: str) -> str:
    """Publishes and waits for the acknowledgement; returns the stream that keeps it, or "" when
    none may be made: then only present subscribers have it. Raises Unavailable."""
    stream = session.settings.events
    kept = _ensure(session, stream, subject)
    headers = (
        f"NATS/1.0\r\nNats-Msg-Id: {identity}\r\nNats-Expected-Stream: {stream}\r\n"
        "Content-Type: application/json\r\n\r\n"
    )
    connection = session.connection
    if not kept:
        connection.send(hpub(subject.encode(), b"", headers.encode(), orjson.dumps(news)))
        connection.ping()
        return ""
    answer = connection.request(subject, orjson.dumps(news), headers=headers.encode())
    if status_of(answer.headers) == 503:
        raise Unavailable(f"the stream {stream} does not answer now")
    if failure := orjson.loads(answer.payload).get("error"):
        error = ApiError.of(failure)
        if error.code == _WRONG_STREAM:  # another one takes the subject, and refused it
            return ""
        raise error_of(error, f"news for {subject} were not stored")
    return stream


def _ensure(session: Session, stream: str, subject: str) -> bool:
    """Whether there is a stream that takes the subject, made if it may be."""
    settings = session.settings
    if stream == settings.stream:
        return False
    try:
        info = session.api.stream(stream)
        if info is None:
            info = session.api.create({
                "name": stream,
                "subjects": [SUBJECTS],
                "retention": "limits",
                "discard": "old",
                "storage": settings.storage,
                "num_replicas": settings.replicas,
                "max_age": 365 * _DAY,
                "max_msgs": 100_000,
            })  # fmt: skip
    except Unavailable:
        raise
    except PenstockError:
        return False  # not allowed, or its subjects are another stream's
    return any(covers(taken, subject) for taken in info["config"].get("subjects") or ())
