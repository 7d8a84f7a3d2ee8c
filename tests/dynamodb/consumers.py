"""The two ways in which a feed is read, behind one face: a pipeline's reader process, and the
iterator. Both resume from `saved`, hand out keys, and know the causes of gaps."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.feeds.dynamodb import DynamodbFeed
from penstock.microbatch.planned import PlannedReading
from penstock.model.errors import PositionLost, Unavailable
from penstock.reading.gaps import GapLog
from penstock.reading.reservoir import Reservoir
from penstock.reading.roster import Roster
from penstock.stream import Stream
from tests.reading.made import options_of

PATIENCE = 60.0
Clock = Callable[[], float]


def fast() -> float:
    """Monotonic seconds, ten of which pass in one: look-ups wait for seconds."""
    return 10 * time.monotonic()


class Pipeline:
    """The read side of a reader process, without Spark. `found` has shard and key of every change,
    `lost` the errors that came between; `saved` is what it resumes from. `clock`: monotonic seconds
    of its look-ups."""

    def __init__(self, feed: DynamodbFeed, saved: Any = None, clock: Clock = fast) -> None:
        self.gaps = GapLog(None)
        self.found: list[tuple[str, str]] = []
        self.lost: list[PositionLost] = []
        self.saved = dict(feed.begin() if saved is None else saved)
        options = options_of(patience=0.0)
        self._reservoir = Reservoir(feed, limit=options.buffer, gaps=self.gaps)
        self._planner = PlannedReading(self._reservoir, Roster(feed, clock=clock), options)
        self._decoder = feed.decoder("json")

    def read(self) -> None:
        """One micro-batch, of what there is. Raises PositionLost, Unavailable."""
        end = self._planner.advance(self.saved, patience=0.1)
        for split in self._planner.splits(self.saved, end):
            for part in split.parts:
                for page in part.pages:
                    for batch in self._decoder.decode(page):
                        shards, keys = batch.column("partition"), batch.column("document_id")
                        self.found += zip(shards.to_pylist(), keys.to_pylist(), strict=True)
        self.saved = dict(end)

    @property
    def keys(self) -> list[str]:
        return [key for _, key in self.found]

    def poll(self) -> None:
        """Reads once."""
        try:
            self.read()
        except PositionLost as error:
            self.lost.append(error)
        except Unavailable:
            return

    @property
    def causes(self) -> list[str]:
        """Of the gaps on record, in their order."""
        rows = self.gaps.rows()
        gaps = [gap for name in sorted(rows) for gap in rows[name]["gaps"]]
        return [gap["cause"] for gap in sorted(gaps, key=lambda gap: str(gap["at"]))]

    def stop(self) -> None:
        self._reservoir.stop(5.0)


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


def until(consumer: Pipeline | Iterator, condition: Callable[[], bool]) -> None:
    """Polls until it holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, (consumer.keys, consumer.causes, consumer.lost)
        consumer.poll()


def some(consumer: Pipeline | Iterator, count: int) -> list[str]:
    """That many keys, and those of a few more polls."""
    until(consumer, lambda: len(consumer.keys) >= count)
    for _ in range(5):
        consumer.poll()
    return list(consumer.keys)
