"""The memory sink: keeps changes by name in this process, or in a folder that others can read.

For tests, examples and trying a pipeline out. Idempotent on the event id, like every sink.
"""

import base64
import fcntl
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson
import ormsgpack
import pyarrow as pa

from penstock.model.change import IMAGES, images_of
from penstock.model.errors import SettingsError
from penstock.model.finding import Finding, finding
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.model.settings import Settings
from penstock.sinks import Progress, Receipt, Record, ReportsPositions, Sink, SinkPlugin


class MemorySinkSettings(Settings):
    """Where the memory sink keeps changes."""

    type: Literal["memory"] = "memory"
    name: str = "default"
    """Sinks of one name share their changes."""
    folder: str | None = None
    """Keep JSON lines in `FOLDER/NAME.jsonl`, durable over processes; default: in memory."""
    keep: bool = True
    """False: take changes and forget them."""


@dataclass(slots=True)
class _Store:
    changes: list[dict[str, Any]] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    offset: int = 0  # bytes of the file that are in `changes`


_stores: dict[MemorySinkSettings, _Store] = {}
_lock = threading.RLock()


def stored(settings: MemorySinkSettings) -> list[dict[str, Any]]:
    """Everything stored, in order: change column -> plain JSON value (times as ISO text)."""
    with _opened(settings) as store:
        return list(store.changes)


class MemorySink(Sink, ReportsPositions):
    """Keeps changes, once each."""

    def __init__(self, settings: MemorySinkSettings) -> None:
        self.settings = settings

    def write(self, changes: Iterable[pa.RecordBatch], progress: Progress) -> Receipt:
        position: dict[PartitionId, Place] = {}
        published = duplicates = size = 0
        for batch in changes:
            rows = new = list(_rows(batch))
            if self.settings.keep:
                new, added = self._keep(rows)
                size += added
            fresh = {row["partition"]: Place(row["cursor"], row["ordinal"]) for row in rows}
            progress.stored(fresh)
            position |= fresh
            published += len(new)
            duplicates += len(rows) - len(new)
            progress.report({"published": published, "duplicates": duplicates, "size": size})
        return Receipt(position=position, published=published, duplicates=duplicates, size=size)

    def _keep(self, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
        """Those that were not there, and their bytes."""
        with _opened(self.settings) as store:
            new = list({row["event_id"]: row for row in rows}.values())
            new = [row for row in new if row["event_id"] not in store.known]
            return new, _append(self.settings, store, new)

    def prepare(self) -> None:
        """Makes the folder. Raises SettingsError."""
        if self.settings.folder is None:
            return
        try:
            Path(self.settings.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(
                f"the memory sink's folder {self.settings.folder!r} cannot be made: "
                f"{error.strerror}",
                "sinks",
                hint="give a folder that may be written",
            ) from None

    def records(
        self, backend: str, partitions: Sequence[PartitionId]
    ) -> Mapping[PartitionId, Record]:
        """The last change of each partition, by its place."""
        last: dict[PartitionId, Bookmark] = {}
        with _opened(self.settings) as store:
            for row in store.changes:
                partition = PartitionId(row["partition"])
                place = Place(row["cursor"], row["ordinal"])
                known = last.get(partition)
                if row["backend"] == backend and (known is None or place > (known.place or place)):
                    last[partition] = Bookmark(place, orjson.loads(row.get("mark") or "{}"))
        return {name: Record(bookmark=last.get(name), begun=name in last) for name in partitions}

    def last(self, backend: str) -> tuple[PartitionId, Record] | None:
        with _opened(self.settings) as store:
            names = [row["partition"] for row in store.changes if row["backend"] == backend]
        if not names:
            return None
        return names[-1], self.records(backend, names[-1:])[names[-1]]

    def check(self) -> Sequence[Finding]:
        if self.settings.folder is None:
            message = "keeps changes in memory: they end with the process"
            return [finding("warning", "sink memory", message, code="sinks.in-memory")]
        return [finding("ok", "sink memory", f"in {self.settings.folder}")]


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    load: Any = ormsgpack.unpackb if images_of(batch.schema) == "msgpack" else orjson.loads
    for row in batch.to_pylist():
        for name in IMAGES:
            row[name] = None if row[name] is None else load(row[name])
        yield row


@contextmanager
def _opened(settings: MemorySinkSettings) -> Iterator[_Store]:
    """The store, locked against other threads and processes, and up to date with its file."""
    with _lock:
        store = _stores.setdefault(settings, _Store())
        if settings.folder is None:
            yield store
            return
        file = _file(settings)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab+") as lines:
            fcntl.flock(lines, fcntl.LOCK_EX)
            _catch_up(lines, store)
            yield store


def _catch_up(lines: Any, store: _Store) -> None:
    """Takes in what others wrote; a last line that a crash cut off is taken away."""
    if lines.seek(0, os.SEEK_END) < store.offset:
        store.changes.clear()  # the file was replaced
        store.known.clear()
        store.offset = 0
    lines.seek(store.offset)
    text = lines.read()
    whole = text[: text.rfind(b"\n") + 1]
    if len(whole) < len(text):
        lines.truncate(store.offset + len(whole))
    for line in whole.splitlines():
        row = orjson.loads(line)
        store.changes.append(row)
        store.known.add(row["event_id"])
    store.offset += len(whole)


def _append(settings: MemorySinkSettings, store: _Store, rows: list[dict[str, Any]]) -> int:
    option = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z | orjson.OPT_NAIVE_UTC
    text = b"".join(orjson.dumps(row, _plain, option) + b"\n" for row in rows)
    if settings.folder is not None:
        with _file(settings).open("ab") as lines:
            lines.write(text)
        return len(text)
    for line in text.splitlines():
        store.changes.append(orjson.loads(line))
    store.known.update(row["event_id"] for row in rows)
    return len(text)


def _plain(value: Any) -> Any:
    """Bytes, which JSON has no form for."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _file(settings: MemorySinkSettings) -> Path:
    return Path(settings.folder or ".") / f"{settings.name}.jsonl"


PLUGIN = SinkPlugin(settings=MemorySinkSettings, build=MemorySink)
