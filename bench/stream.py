"""Reads the stream back: how many changes, when stored, and from which commit."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

import orjson

from penstock.consumer.tail.reader import Message, TailReader
from penstock.model.errors import PenstockError
from penstock.nats.connection import Connection
from penstock.sinks.jetstream import JetStreamSettings


def stored(url: str, stream: str) -> tuple[int, float, float]:
    """Messages in the stream, and the times of the first and last, in seconds since 1970."""
    state = _ask(url, f"$JS.API.STREAM.INFO.{stream}").get("state", {})
    if not state.get("messages"):
        return 0, 0.0, 0.0
    return state["messages"], _seconds(state["first_ts"]), _seconds(state["last_ts"])


def messages_in(url: str, stream: str) -> int:
    """How many messages; 0 when there is no stream yet."""
    return stored(url, stream)[0]


def wait_for(
    done: Callable[[], bool], *, timeout: float, alive: Callable[[], Any], every: float = 0.1
) -> None:
    """Waits until `done`, which is asked `every` so many seconds; `alive` raises if it never
    will."""
    deadline = time.monotonic() + timeout
    while not done():
        alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not done within {timeout:.0f} s")
        time.sleep(every)


def changes_in(url: str, stream: str) -> int:
    """Changes in the stream, whatever its messages look like: reads all of it."""
    return sum(1 for _ in _changes(url, stream))


def stored_at(url: str, stream: str) -> list[float]:
    """When each change was stored, in the stream's order, in seconds since 1970."""
    return [change.stored_at.timestamp() for change in _changes(url, stream)]


class Times(NamedTuple):
    """Milliseconds of one change, from its commit in the database, which was `at` seconds after the
    start."""

    at: float
    captured: float
    stored: float


def latencies(url: str, stream: str, *, since: float) -> list[Times]:
    """From the commit in the database until penstock had the change, and until JetStream stored
    it, for every change that was committed at or after `since` (seconds since 1970), in the
    stream's order. All clocks are this machine's. The acknowledgement leaves the server at once
    after it stored."""
    found = []
    for change in _changes(url, stream):
        committed = change.committed_at
        if committed is not None and (at := committed.timestamp() - since) >= 0:
            captured = datetime.fromisoformat(change.body["captured_at"])
            ends = captured, change.stored_at
            found.append(Times(at, *((end - committed).total_seconds() * 1000 for end in ends)))
    return found


def _changes(url: str, stream: str) -> Iterator[Message]:
    left = messages_in(url, stream)
    seen = -1
    with TailReader(url, stream) as reader:
        while left:
            changes = reader.fetch(5000, 30.0)
            if not changes:
                raise TimeoutError(f"{left} messages of {stream} could not be read")
            for change in changes:
                left -= change.sequence != seen
                seen = change.sequence
                yield change


def _ask(url: str, subject: str) -> Any:
    connection = Connection(JetStreamSettings.model_validate({"url": url, "stream": "BENCH"}))
    try:
        connection.open()
        return orjson.loads(connection.request(subject, b"", 5.0).payload)
    except (PenstockError, ValueError):
        return {}
    finally:
        connection.close()


def _seconds(text: str) -> float:
    # RFC 3339 with nanoseconds, which datetime reads up to microseconds.
    head, _, rest = text.partition(".")
    fraction = rest.rstrip("Z") or "0"
    return datetime.fromisoformat(head.rstrip("Z") + "+00:00").timestamp() + float(f"0.{fraction}")
