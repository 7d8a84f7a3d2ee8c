"""A flow that keeps its position, begins as `penstock run` does, and acknowledges what it saved."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from penstock.config import Checkpoint
from penstock.leases.gaps import Gaps
from penstock.model.errors import LeaseLost, PositionLost, Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place, Position
from penstock.reading.gaps import GapLog
from penstock.reading.positions import Positions
from penstock.reading.reader import PartitionReader
from penstock.service.beginning import resume
from tests.servers import Database
from tests.sinks.postgres.flow import Flow
from tests.waiting import until


class Kept(Flow):
    """A flow with its positions in the file `store`. Where it does not save (`saves`), it is in the
    seconds before it does."""

    def __init__(
        self,
        source: Database | Mapping[str, Database],
        target: Database | Path,
        tables: Mapping[str, Any],
        store: Path,
        *,
        saves: bool = True,
        **backend: Any,
    ) -> None:
        if isinstance(source, Database):
            backend = {"slot": "kept", **backend}
        super().__init__(source, target, tables, **backend)
        self.saves: bool | set[PartitionId] = saves  # or of which alone
        # By partition: why its history is lost, while it is.
        self.losses_of: dict[PartitionId, str] = {}
        self.began_anew: LeaseLost | None = None
        self._url = f"sqlite:///{store}"
        self._feed.mark_changes()
        self._turns, self._turned = threading.Event(), threading.Event()
        self._began: Position = {}
        self._readers: dict[PartitionId, PartitionReader] = {}
        self._reached: dict[PartitionId, Place | None] = {}

    def __enter__(self) -> Self:
        self._sink.prepare()
        positions = self.positions()
        resume(self._backend, positions, self._sink)
        self._positions = self.positions()
        for name, bookmark in self._positions.load().items():
            if bookmark.ended:
                continue
            gaps = GapLog(self._positions)
            self._readers[name] = PartitionReader(self._feed, name, bookmark, gaps)
            self._reached[name] = bookmark.place
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
    def is_saved(self) -> bool:
        """Whether all that was read is stored, and saved."""
        self.check()
        saved = self.positions().load()
        return all(
            saved[name].place == self.position.get(name, self._reached[name]) == reader.read_to
            for name, reader in self._readers.items() if self._saves(name)
        )  # fmt: skip

    def _saves(self, name: PartitionId) -> bool:
        return self.saves if isinstance(self.saves, bool) else name in self.saves

    @property
    def lost(self) -> str:
        """Why the history of any source is lost, while it is."""
        return "; ".join(filter(None, self.losses_of.values()))

    @property
    def gap(self) -> Mapping[str, Any] | None:
        """The last one of the only source that has some, with `stale`."""
        rows = [*self.positions().gaps.rows().values()]
        assert len(rows) < 2
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

    def began(self, partition: PartitionId) -> Place | None:
        """See `Progress`."""
        return self._began.get(partition)

    @contextmanager
    def between_writes(self) -> Iterator[None]:
        """Nothing is written in the block, as where an epoch is turned over."""
        self._turns.set()
        until(self._turned.is_set, 60)
        yield
        self._turned.clear()
        self._turns.clear()

    def _write(self) -> None:
        while self._failure is None and not self._is_over.is_set():
            self._began = {
                name: each.place for name, each in self.positions().load().items() if each.place
            }
            super()._write()
            if self._turns.is_set():
                self._turned.set()
                while self._turns.is_set():
                    self._is_over.wait(0.05)
        self._save()
        for reader in self._readers.values():
            reader.disconnect()

    def _changes(self) -> Iterator[pa.RecordBatch]:
        decoder = self._feed.decoder("text")
        while not (self._is_over.is_set() or self._turns.is_set()):
            for name, reader in self._readers.items():
                step = reader.step(0.05)
                is_lost = isinstance(step.error, PositionLost)
                self.losses_of[name] = str(step.error) if is_lost else ""
                if isinstance(step.error, PositionLost | Unavailable):
                    self._is_over.wait(0.05)
                elif step.error is not None:
                    raise step.error
                for page in step.pages:
                    yield from decoder.decode(page)
            self._save()

    def _save(self) -> None:
        found = {
            name: reader.bookmark(self.position.get(name, self._reached[name]))
            for name, reader in self._readers.items() if self._saves(name)
        }  # fmt: skip
        saved = self._positions.save(
            {name: each for name, each in found.items() if each is not None}, force=True
        )
        for name, bookmark in saved.items():
            self._readers[name].acknowledge(bookmark)
