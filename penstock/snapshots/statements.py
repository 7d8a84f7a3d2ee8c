"""A pipeline's `transform`, for rows of snapshots: changes with the operation READ, which take the
way of all others through its statements. What these mask is masked, what they drop is no row.
"""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.change import Images, Operation
from penstock.model.errors import Rejected, SettingsError
from penstock.sinks.messages.convert import Unconvertible, converted

_NEEDED = "operation", "namespace", "collection", "key", "after"
_ROWS = pa.array([Operation.READ, Operation.INSERT, Operation.UPDATE, Operation.REPLACE])
_HINT = "correct the statements of transform"


class RowTransform(Protocol):
    """Used by all workers of all runs."""

    @property
    def refusal(self) -> str:
        """Why they cannot take rows one by one; "" where they can."""

    @property
    def identity(self) -> str:
        """A text that differs between different statements."""

    def made(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
        """These columns of what they make of changes with JSON images: of at most one row for each.
        Raises SettingsError, Unavailable, without data of rows."""


def through(statements: RowTransform, batch: pa.RecordBatch, images: Images) -> pa.RecordBatch:
    """Changes of one table with JSON images -> what the statements make of them, with images as
    they are wanted. Raises SettingsError, Rejected, Unavailable."""
    if not batch.num_rows:
        return _images(batch, images)
    number = batch.schema.names.index("operation")
    read = pa.repeat(pa.scalar(Operation.READ.value), batch.num_rows)
    changes = batch.set_column(number, batch.schema.field(number), read)
    made = statements.made(changes, _NEEDED)
    table = batch["collection"][0].as_py()
    made = made.filter(pc.field("operation") != Operation.DELETE.value)
    if not pc.all(pc.is_in(made["operation"], _ROWS), min_count=0).as_py():
        raise SettingsError(
            f"transform gives rows of {table} an operation that rows do not have",
            "snapshots",
            hint=_HINT,
        )
    for name in ("namespace", "collection"):
        if pc.unique(made[name]).to_pylist() not in ([], [batch[name][0].as_py()]):
            raise SettingsError(
                f"transform gives rows of {table} another {name}, and a snapshot is of one table",
                "snapshots",
                hint="do not take snapshots of it, or leave the names to sink.subject",
            )
    for name in ("key", "after"):
        if made[name].null_count and not batch[name].null_count:
            raise SettingsError(
                f"transform leaves rows of {table} without `{name}`", "snapshots", hint=_HINT
            )
    try:
        return _images(made, images)
    except Unconvertible:
        raise Rejected(
            f"transform makes broken JSON of rows of {table}", "snapshots", hint=_HINT
        ) from None


def _images(made: pa.Table | pa.RecordBatch, images: Images) -> pa.RecordBatch:
    columns = {}
    for name in ("key", "after"):
        given = made[name].cast(pa.string())
        chunks = given.chunks if isinstance(given, pa.ChunkedArray) else [given]
        texts = pa.concat_arrays([pa.array([], pa.string()), *chunks])
        packed = converted(texts, "msgpack")  # which reads them: text may be no JSON
        columns[name] = packed if images == "msgpack" else texts
    return pa.RecordBatch.from_pydict(columns)
