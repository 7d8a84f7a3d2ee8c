"""Changes that cannot be decoded go around the transform, whatever its statements do.

The task that decodes writes them to files instead of passing them to Spark; the task that writes
puts them back in their places. No statement can drop or change one, and each gets its dead letter.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from penstock.microbatch.late import Attempt
from penstock.model.change import unreadable

_SUFFIX = ".errors"

# Places of a partition compare as text and number.
_Place = tuple[str, int]
_BEFORE_ALL: _Place = ("", -1)


class ErrorFiles:
    """The files of one task attempt in `folder`: written by the task that decodes, merged by the
    task that writes. After a shuffle these are different attempts; then the first task of the later
    stage merges, which starts when the earlier one is complete."""

    def __init__(self, folder: Path, attempt: Attempt) -> None:
        self._folder = folder
        self._attempt = attempt
        self._written = 0
        # What was read from files and not merged yet: one row each, by partition.
        self._held: dict[str, deque[tuple[_Place, pa.RecordBatch]]] = defaultdict(deque)

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The changes that can be decoded; the others of a batch are in a file before it."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for batch in batches:
            errors = unreadable(batch)
            if not errors:
                yield batch
                continue
            self._write(batch.take(pa.array(errors)))
            others = sorted(set(range(batch.num_rows)).difference(errors))
            if others:
                yield batch.take(pa.array(others))

    def merge(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Changes that went through the transform, and what belongs before the last of them. Their
        order within the batch is the sink's to restore."""
        self._load()
        if not any(self._held.values()):
            return batch
        early = []
        for partition, last in _last_places(batch).items():
            held = self._held[partition]
            while held and held[0][0] < last:
                early.append(held.popleft()[1])
        return _joined([*early, batch])

    def remaining(self) -> Iterator[pa.RecordBatch]:
        """What belongs after the last change that went through the transform."""
        self._load()
        left = [row for held in self._held.values() for _, row in held]
        self._held.clear()
        if left:
            yield _joined(left)

    def _write(self, errors: pa.RecordBatch) -> None:
        """The file gets its name when it is complete: the other task looks for it meanwhile."""
        attempt = self._attempt
        name = f"{attempt.number}-{attempt.stage}-{self._written:09d}{_SUFFIX}"
        self._written += 1
        draft = self._folder / f"{name}.draft"
        with pa.OSFile(str(draft), "wb") as file, pa.ipc.new_stream(file, errors.schema) as writer:
            writer.write_batch(errors)
        draft.rename(self._folder / name)

    def _load(self) -> None:
        for path in sorted(filter(self._is_ours, self._folder.glob(f"*{_SUFFIX}"))):
            with pa.ipc.open_stream(path.read_bytes()) as reader:
                batch = reader.read_next_batch()
            path.unlink()
            for row, (partition, place) in enumerate(_places(batch)):
                self._held[partition].append((place, batch.slice(row, 1)))

    def _is_ours(self, path: Path) -> bool:
        number, stage, _ = path.name.split("-")
        if int(stage) == self._attempt.stage:
            return int(number) == self._attempt.number
        return self._attempt.is_first


def _places(batch: pa.RecordBatch) -> Iterator[tuple[str, _Place]]:
    columns = (batch.column(name).to_pylist() for name in ("partition", "cursor", "ordinal"))
    return ((partition, (cursor, ordinal)) for partition, cursor, ordinal in zip(*columns))  # noqa: B905


def _last_places(batch: pa.RecordBatch) -> dict[str, _Place]:
    last: dict[str, _Place] = {}
    for partition, place in _places(batch):
        last[partition] = max(place, last.get(partition, _BEFORE_ALL))
    return last


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
