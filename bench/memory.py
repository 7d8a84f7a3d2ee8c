"""The memory feed for the bench: many partitions, without the cost of any source."""

import os
import time
from collections.abc import Mapping
from typing import Any, Self

from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.process.closing import Closes

_PARTITIONS = 1000


class Memory(Closes):
    """A `Source` of 1,000 partitions. Its server is this process: there is none."""

    baseline = "the memory feed read and decoded by one process"

    def __init__(self, rows: int, page: int = 1000) -> None:
        if rows % _PARTITIONS:
            raise ValueError(f"--rows must be a multiple of {_PARTITIONS}, the partitions")
        changes = rows // _PARTITIONS
        self._settings = {"partitions": _PARTITIONS, "changes": changes, "page": page}

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        """Nothing is open."""

    @property
    def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    @property
    def backend(self) -> Mapping[str, Any]:
        """See Source."""
        return {"name": "default", "type": "memory", **self._settings}

    def write(self, rows: int, size: int = 1000) -> None:
        """Everything is there already; it does not grow."""

    def read(self, rows: int) -> float:
        """See Source."""
        feed = MemoryFeed(MemoryFeedSettings.model_validate(self._settings))
        decoder = feed.decoder("msgpack")
        began, found = time.monotonic(), 0
        for each in feed.partitions():
            following = feed.follow(each.partition)
            while pages := following.read(0.0):
                found += sum(len(batch) for page in pages for batch in decoder.decode(page))
        if found != rows:
            raise RuntimeError(f"{rows} changes were to be read, {found} were")
        return time.monotonic() - began
