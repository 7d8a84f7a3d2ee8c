"""What runs in Spark's tasks: decode, and write. Worker processes are reused between batches."""

import gc
import logging
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.change import COLUMNS, images_of, schema
from penstock.errors import SettingsError
from penstock.ops.board import Reporter
from penstock.page import Decoder, Page
from penstock.sinks import Receipt, Sink
from penstock.spark.folder import BOARD
from penstock.spark.options import read_sink, read_source
from penstock.spark.split import PACKED, Split, bounded, pack, unpack

__all__ = [
    "UNKNOWN_TYPES",
    "commit_receipts",
    "read_split",
    "require_columns",
    "settle_worker",
    "write_changes",
]

# The board's entry whose fields are the types that were delivered as their text.
UNKNOWN_TYPES = "unknown types"

log = logging.getLogger("penstock")
# What this process has said of its decoders' unknown types.
_told: set[str] = set()


@cache
def settle_worker() -> None:
    """Once in each of Spark's Python workers, behind all imports.

    Not in the planner, which is no worker and must collect its own garbage.
    """
    # PySpark's daemon collects garbage after every task. With all imports done, what is alive now
    # stays alive: frozen, it is not looked at again (measured: 92 % of a worker's busy time).
    gc.collect()
    gc.freeze()
    # The daemon's collection after each task is enough; more would scan a batch's young rows.
    gc.disable()


@cache
def _source(options: frozenset[tuple[str, str]]) -> tuple[str, bytes, Decoder, Reporter | None]:
    source, feed = read_source(dict(options))
    decoder = feed.decoder(source.images)
    return source.mode, pickle.dumps(decoder), decoder, _board(source.runtime)


@cache
def _decoder(pickled: bytes) -> Decoder:
    decoder: Decoder = pickle.loads(pickled)  # noqa: S301 - made by read_split, moved by Spark
    return decoder


@cache
def _sink(options: frozenset[tuple[str, str]]) -> tuple[Sink, str, Reporter | None]:
    chosen, sink = read_sink(dict(options))
    return sink, chosen.sink, _board(chosen.runtime)


def _board(runtime: str | None) -> Reporter | None:
    return Reporter(Path(runtime) / BOARD) if runtime else None


def read_split(options: Mapping[str, str], split: Split) -> Iterator[pa.RecordBatch]:
    """The changes of a split as batches; in packed mode its pages as they are."""
    mode, pickled, decoder, board = _source(frozenset(options.items()))
    settle_worker()
    if mode == "packed":
        yield from pack(split, pickled)
        return
    for page in split.pages:
        yield from bounded(page, _decoded(decoder, page, board), split.after, split.until)


def write_changes(options: Mapping[str, str], batches: Iterable[pa.RecordBatch]) -> Receipt:
    """Stores the changes of one task and reports how it goes."""
    sink, name, board = _sink(frozenset(options.items()))
    settle_worker()
    if board is None:
        return sink.write(_changes(batches, None))

    def notify(told: Mapping[str, Any]) -> None:
        if told.get("connected", True):
            board.report("sink", name, told)
        else:
            board.report("sink", name, {**told, "last_error": told.get("error", "")})
            board.add("sink", name, {"errors": 1})

    return sink.write(_changes(batches, board), notify)


def commit_receipts(options: Mapping[str, str], receipts: Sequence[Receipt]) -> None:
    """In the driver's commit process: the sink's own commit, and what was done is counted."""
    sink, name, board = _sink(frozenset(options.items()))
    sink.commit(receipts)
    if board is None or not receipts:
        return
    numbers = {key: value for receipt in receipts for key, value in receipt.numbers.items()}
    board.report("sink", name, {**numbers, "connected": True})
    published = sum(receipt.published for receipt in receipts)
    counts = {
        "published": published,
        "acknowledged": published,
        "duplicates": sum(receipt.duplicates for receipt in receipts),
        "bytes": sum(receipt.size for receipt in receipts),
    }
    board.add("sink", name, counts)


def _changes(batches: Iterable[pa.RecordBatch], board: Reporter | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.schema.names == PACKED.names:
            for packed in unpack(batch):
                decoded = _decoded(_decoder(packed.decoder), packed.page, board)
                yield from bounded(packed.page, decoded, packed.after, packed.until)
        elif batch.num_rows:
            yield _as_changes(batch)


def _decoded(decoder: Decoder, page: Page, board: Reporter | None) -> Sequence[pa.RecordBatch]:
    batches = decoder.decode(page)
    for name in decoder.unknown_types - _told:
        _told.add(name)
        if board is None:
            log.warning("the type %s is not known and is delivered as its text", name)
        else:  # the service logs it, once over all workers
            board.report("pipeline", UNKNOWN_TYPES, {name: True})
    return batches


def _as_changes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A DataFrame's batch with the columns of a change, in their order and exact types."""
    chosen = schema(images_of(batch.schema))
    columns = [batch.column(field.name).cast(field.type) for field in chosen]
    return pa.RecordBatch.from_arrays(columns, schema=chosen)


def require_columns(names: Sequence[str]) -> None:
    """Raises SettingsError unless these are packed pages or include every column of a change."""
    missing = [name for name in COLUMNS if name not in names]
    if missing and list(names) != PACKED.names:
        raise SettingsError(
            f"the DataFrame lacks the columns {', '.join(missing)}",
            hint="penstock's sink needs every column of the change: transform values, keep columns",
        )
