"""The two ways in which a feed is read, behind one face: a pipeline's reader process, and the
iterator. Both resume from `saved`, hand out keys, and know the causes of gaps."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from penstock.feeds.dynamodb import DynamodbFeed
from penstock.model.errors import PositionLost, Unavailable
from penstock.stream import Stream
from tests.dynamodb.reading import Reading

PATIENCE = 60.0
Clock = Callable[[], float]


def fast() -> float:
    """Monotonic seconds, ten of which pass in one: look-ups wait for seconds."""
    return 10 * time.monotonic()


class Consumer(Protocol):
    """`keys` of everything that was handed out; `lost` the errors that came between."""

    keys: list[str]
    lost: list[PositionLost]

    def poll(self) -> None:
        """Reads once."""
        ...

    @property
    def saved(self) -> Any:
        """What it resumes from."""
        ...

    @property
    def causes(self) -> list[str]:
        """Of the gaps on record, in their order."""
        ...

    def stop(self) -> None: ...


class Pipeline:
    """The read side of a reader process."""

    def __init__(self, feed: DynamodbFeed, saved: Any = None, clock: Clock = fast) -> None:
        self.lost: list[PositionLost] = []
        self._reading = Reading(feed, None if saved is None else dict(saved), clock=clock)

    @property
    def keys(self) -> list[str]:
        return [key for _, key in self._reading.found]

    def poll(self) -> None:
        try:
            self._reading.read()
        except PositionLost as error:
            self.lost.append(error)
        except Unavailable:
            return

    @property
    def saved(self) -> Any:
        return dict(self._reading.done)

    @property
    def causes(self) -> list[str]:
        rows = self._reading.gaps.rows()
        gaps = [gap for name in sorted(rows) for gap in rows[name]["gaps"]]
        return [gap["cause"] for gap in sorted(gaps, key=lambda gap: str(gap["at"]))]

    def stop(self) -> None:
        self._reading.stop()


class Iterator:
    """The iterator; `saved` is its token, through JSON."""

    def __init__(self, feed: DynamodbFeed, at: Any = None, clock: Clock = fast) -> None:
        self.lost: list[PositionLost] = []
        self.keys: list[str] = []
        self.stream = Stream(feed, at="trim_horizon" if at is None else at, clock=clock)

    def poll(self) -> None:
        try:
            record = next(self.stream)
        except PositionLost as error:
            self.lost.append(error)
            return
        except Unavailable:
            return
        if record is None:
            time.sleep(0.002)
        else:
            self.keys.append(str(record["key"]["id"]))

    @property
    def saved(self) -> Any:
        return json.loads(json.dumps(self.stream.token))

    @property
    def causes(self) -> list[str]:
        return [gap.cause for gap in self.stream.gaps]

    def stop(self) -> None:
        with suppress(Unavailable):
            self.stream.close()


def until(consumer: Consumer, condition: Callable[[], bool]) -> None:
    """Polls until it holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, (consumer.keys, consumer.causes, consumer.lost)
        consumer.poll()


def some(consumer: Consumer, count: int) -> list[str]:
    """That many keys, and those of a few more polls."""
    until(consumer, lambda: len(consumer.keys) >= count)
    for _ in range(5):
        consumer.poll()
    return list(consumer.keys)
