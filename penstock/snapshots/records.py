"""The bucket `snapshots`, a document for each run; and what the status page says of them."""

import re
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from penstock.model.formats import verify_format
from penstock.model.table_schema import TableName
from penstock.nats.buckets import Bucket, read_map
from penstock.nats.connection import Connection
from penstock.snapshots.job import RunProgress
from penstock.snapshots.range_progress import SnapshotPlan

BUCKET = "snapshots"
KEPT = 7 * 24 * 3600.0  # seconds for which a record outlasts its run: as chunks do

_PIECE = 2**18  # bytes of a plan in one value

State = Literal["queued", "running", "done", "failed", "cancelled", "replaced"]
ENDED: frozenset[State] = frozenset({"done", "failed", "cancelled", "replaced"})

# Crockford's base 32, in which a ULID is written.
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_ID = re.compile(r"snap-[0-9A-Z]{26}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """How a run is, or how it ended. `ranges` is 0 until the table was cut. `by`: the run that took
    its place, after the service had ended in the middle of it. `options`: see `SnapshotOptions`;
    plain JSON, without those that were not given. `gap`: see `Job.gap`, before the source's
    snapshot, and unchanged after all of it was read."""

    snapshot_id: str
    pipeline: str
    backend: str
    schema: str
    table: str
    name: TableName
    state: State
    position: str = ""
    lsn: str = ""
    gap: str = ""
    ranges: int = 0
    done: int = 0
    chunks: int = 0
    rows: int = 0
    bytes: int = 0
    error: str = ""
    hint: str = ""
    by: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    changed_at: float = 0.0  # seconds since 1970

    @property
    def is_partial(self) -> bool:
        """Whether its rows are not the table's."""
        return bool(self.options.get("where") or self.options.get("columns"))

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


def new_id(now: float | None = None) -> str:
    """`snap-` and a ULID: ids of later runs sort after those of earlier ones."""
    stamp = round((time.time() if now is None else now) * 1000) << 80 | secrets.randbits(80)
    return "snap-" + "".join(_DIGITS[stamp >> shift & 31] for shift in range(125, -1, -5))


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


class Records:
    """The records of one pipeline. Everything raises Unavailable, SettingsError."""

    def __init__(self, connection: Connection, pipeline: str) -> None:
        self._bucket = Bucket(connection, BUCKET)
        self._pipeline = pipeline

    def make(self, *, replicas: int) -> None:
        self._bucket.create(replicas=replicas)

    def put(self, record: RunRecord) -> None:
        self._bucket.put(self._key(record.snapshot_id), orjson.dumps(asdict(record)))

    def get(self, snapshot_id: str) -> RunRecord | None:
        found = self._bucket.get(self._key(snapshot_id))
        return None if found is None else _read(found.value or b"")

    def all(self) -> list[RunRecord]:
        """Every record of the pipeline, the oldest first."""
        start = f"{self._pipeline}."
        # One that is replaced during the scan comes twice.
        found = {
            entry.key: record
            for entry in self._bucket.scan()
            if entry.key.startswith(start) and (record := _read(entry.value or b"")) is not None
        }
        return sorted(found.values(), key=lambda record: record.snapshot_id)

    def forget(self, record: RunRecord) -> None:
        self._bucket.delete(self._key(record.snapshot_id))

    def initial(self) -> set[TableName]:
        """The tables whose initial snapshot was taken, or cancelled."""
        found = self._bucket.get(f"{self._pipeline}.initial")
        return set() if found is None else set(map(tuple, orjson.loads(found.value or b"[]")))

    def put_initial(self, names: Collection[TableName]) -> None:
        self._bucket.put(f"{self._pipeline}.initial", orjson.dumps(sorted(names)))

    def put_plan(self, snapshot_id: str, plan: SnapshotPlan) -> None:
        """Stores how the table was cut, for an instance that goes on with the run."""
        text = orjson.dumps(plan)
        pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        for number in reversed(range(len(pieces))):  # the first one says that all are there
            head = b"" if number else b"%d\n" % len(pieces)
            self._bucket.put(f"{self._key(snapshot_id)}.plan.{number}", head + pieces[number])

    def plan(self, snapshot_id: str) -> SnapshotPlan | None:
        """The plan of a run; None where none was stored."""
        key = f"{self._key(snapshot_id)}.plan"
        if (first := self._bucket.get(f"{key}.0")) is None:
            return None
        count, _, text = (first.value or b"").partition(b"\n")
        for number in range(1, int(count)):
            piece = self._bucket.get(f"{key}.{number}")
            text += (piece.value if piece else None) or b""
        return SnapshotPlan(**orjson.loads(text))

    def forget_plan(self, snapshot_id: str) -> None:
        key = f"{self._key(snapshot_id)}.plan"
        if (first := self._bucket.get(f"{key}.0")) is not None:
            for number in range(int((first.value or b"0").partition(b"\n")[0])):
                self._bucket.delete(f"{key}.{number}")

    def _key(self, snapshot_id: str) -> str:
        return f"{self._pipeline}.{snapshot_id}"


def _read(document: bytes) -> RunRecord | None:
    """None if penstock did not write it. A later version may have more fields."""
    found = read_map(document)
    verify_format(found.get("format"), f"a document of the bucket {BUCKET}")
    try:
        known = {each.name: found[each.name] for each in fields(RunRecord) if each.name in found}
        return RunRecord(**{**known, "name": tuple(known["name"])})
    except (TypeError, KeyError):
        return None


_COUNTED = "chunks", "rows", "bytes"
_LAST = 200  # tables whose last run is told of


class SnapshotTotals:
    """Counts the runs of one backend that ended, and what was stored, since the service started."""

    def __init__(self) -> None:
        self._runs: Counter[str] = Counter()
        self._stored: Counter[str] = Counter()
        self._last: dict[str, dict[str, Any]] = {}  # by table; the latest at the end

    def ended(self, record: RunRecord) -> None:
        self._runs[record.state] += 1
        self._stored.update({key: getattr(record, key) for key in _COUNTED})
        table = ".".join(record.name)
        self._last.pop(table, None)
        self._last[table] = {
            "snapshot_id": record.snapshot_id, "state": record.state, "rows": record.rows,
            "at": datetime.fromtimestamp(record.changed_at, UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        for name in list(self._last)[:-_LAST]:
            del self._last[name]

    def status(
        self, running: Iterable[tuple[RunRecord, RunProgress]], now: float
    ) -> dict[str, Any]:
        """The counts, with those of runs that have not ended; `now` is monotonic seconds."""
        current = [_of(record, progress, now) for record, progress in running]
        stored = {key: self._stored[key] + sum(one[key] for one in current) for key in _COUNTED}
        return {"runs": dict(self._runs), **stored, "current": current, "last": dict(self._last)}


def _of(record: RunRecord, progress: RunProgress, now: float) -> dict[str, Any]:
    seconds = now - progress.begun_at if progress.begun_at else 0.0
    read = progress.done - progress.done_before
    left = None if not read else seconds / read * (progress.ranges - progress.done)
    return {
        "snapshot_id": record.snapshot_id, "table": ".".join(record.name), "state": record.state,
        **{key: getattr(progress, key) for key in ("waiting", "ranges", "done", *_COUNTED)},
        "bytes_per_second": round(progress.bytes / seconds) if seconds else None,
        "seconds_left": None if left is None else round(left, 1),
    }  # fmt: skip
