"""What goes around the JVM in a pipeline with a transform: late columns, and undecodable changes.

Two tasks share a folder: the one that decodes, before the transform, and the one that writes.
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from penstock.microbatch.late import Attempt
from penstock.microbatch.late.errors import ErrorFiles
from penstock.microbatch.late.side_files import SideFiles
from penstock.model.change import OPTIONAL, images_of, schema


class SideChannel:
    """One task's side of `folder`. Without `late` columns, changes go through the JVM whole."""

    def __init__(self, folder: Path, late: Collection[str], attempt: Attempt) -> None:
        self._folder = folder
        self._attempt = attempt
        self._errors = ErrorFiles(folder, attempt)
        self._files = SideFiles(folder, late, attempt.number) if late else None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Before the transform: what goes through Spark of these changes."""
        changes = self._errors.write(batches)
        yield from changes if self._files is None else self._files.write(changes)

    def join(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """After the transform: the changes of these rows. Raises Malformed, Unavailable."""
        whole = [as_changes(rows)] if self._files is None else self._files.fetch(rows)
        for batch in whole:
            yield self._errors.merge(batch)

    def remaining(self) -> Iterator[pa.RecordBatch]:
        """After the last rows: what they do not lead to."""
        yield from self._errors.remaining()

    def clear(self) -> None:
        """Removes what this task left, and no row led to."""
        for path in self._folder.glob(f"{self._attempt.number}-*"):
            path.unlink(missing_ok=True)


def as_changes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A DataFrame's batch with the columns of a change, in their order and exact types."""
    chosen = schema(images_of(batch.schema))
    absent = OPTIONAL.difference(batch.schema.names)
    columns = [
        pa.nulls(batch.num_rows, field.type)
        if field.name in absent
        else batch.column(field.name).cast(field.type)
        for field in chosen
    ]
    return pa.RecordBatch.from_arrays(columns, schema=chosen)
