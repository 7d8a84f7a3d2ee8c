"""A flow that keeps its position, begins as `penstock run` does, and acknowledges what it saved."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from penstock.config import Checkpoint
from penstock.leases.gaps import Gaps
from penstock.model.errors import LeaseLost, PositionLost, Unavailable
from penstock.model.position import Bookmark, Bookmarks, Place
from penstock.reading.gaps import GapLog
from penstock.reading.positions import Positions
from penstock.reading.reader import PartitionReader
from penstock.service.beginning import resume
from tests.servers import Database
from tests.sinks.postgres.flow import Flow
from tests.waiting import until


class Kept(Flow):
    """A flow with its position in the file `store`. Where it does not save (`saves`), it is in the
    seconds before it does. `lost`: why its history is, while it is."""

    def __init__(
        self,
        source: Database,
        target: Database | Path,
        tables: Mapping[str, Any],
        store: Path,
        *,
        saves: bool = True,
        slot: str = "kept",
        **backend: Any,
    ) -> None:
        super().__init__(source, target, tables, slot=slot, **backend)
        self.saves, self.lost = saves, ""
        self.began_anew: LeaseLost | None = None
        self._url = f"sqlite:///{store}"
        self._feed.mark_changes()
        self._reader: PartitionReader

    def __enter__(self) -> Self:
        self._sink.prepare()
        positions = self.positions()
        resume(self._backend, positions, self._sink)
        self._positions = self.positions()
        ((name, bookmark),) = self._positions.load().items()
        self._reader = PartitionReader(self._feed, name, bookmark, GapLog(self._positions))
        self._reached = bookmark.place
        self._thread.start()
        self._loader.start()
        return self

    def positions(self) -> Positions:
        return Positions.of(self._url, "flow", "shop", Checkpoint(interval=0), owner="us")

    @property
    def saved(self) -> Bookmark:
        (bookmark,) = self.positions().load().values()
        return bookmark

    @property
    def gap(self) -> Mapping[str, Any] | None:
        """The last one, with `stale`."""
        rows = [*self.positions().gaps.rows().values()]
        return {**rows[0]["gaps"][-1], "stale": rows[0]["stale"]} if rows else None

    def refused(self) -> LeaseLost:
        """Waits until the sink finds that it went back, and takes that for the end."""
        found = until(lambda: self._failure, 60)
        assert isinstance(found, LeaseLost), found
        self._failure = None
        return found

    def bookmarks(self, backend: str) -> Bookmarks:
        """See `PipelineState`."""
        return self.positions().load()

    def gaps(self, backend: str) -> Gaps:
        """See `OwnedState`."""
        return self.positions().gaps

    def begin_anew(self, error: LeaseLost) -> None:
        """See `OwnedState`."""
        self.began_anew = error

    def _write(self) -> None:
        super()._write()
        self._save()
        self._reader.disconnect()

    def _changes(self) -> Iterator[pa.RecordBatch]:
        decoder = self._feed.decoder("text")
        while not self._is_over.is_set():
            step = self._reader.step(0.05)
            self.lost = str(step.error) if isinstance(step.error, PositionLost) else ""
            if isinstance(step.error, PositionLost | Unavailable):
                self._is_over.wait(0.1)
            elif step.error is not None:
                raise step.error
            for page in step.pages:
                yield from decoder.decode(page)
            self._save()

    def _save(self) -> None:
        place: Place | None = self.position.get(self._reader.partition, self._reached)
        bookmark = self._reader.bookmark(place)
        if self.saves and bookmark is not None:
            saved = self._positions.save({self._reader.partition: bookmark}, force=True)
            for each in saved.values():
                self._reader.acknowledge(each)
