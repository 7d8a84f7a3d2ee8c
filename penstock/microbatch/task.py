"""What runs in Spark's tasks: decode, write, and measure. Workers are reused between batches."""

import gc
import logging
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.microbatch.follower import Follower
from penstock.microbatch.late import Attempt, SideChannel, as_changes, columns_of, stub_schema
from penstock.microbatch.options import Reports, SinkOptions, read_sink, read_source
from penstock.microbatch.page_client import PageClient
from penstock.microbatch.page_times import PageTimes
from penstock.microbatch.rows import Batches, DecodedPage, read_rows
from penstock.microbatch.ticket import (
    TICKETS,
    Part,
    RowsSplit,
    Split,
    Ticket,
    bounded,
    ticket_row,
    tickets,
)
from penstock.model.change import OPTIONAL, Images, schema
from penstock.model.errors import SettingsError
from penstock.model.page import Decoder, Page
from penstock.model.position import PartitionId, Place, Position
from penstock.native.batch import Batch, NativeDecoder, TakesNative, backend_of, last_committed
from penstock.ops.reporter import Reporter, add_sink_report
from penstock.ops.reports import MeasureReport, ProcessReport
from penstock.process.histograms import observed
from penstock.sinks import Progress, Receipt, Sink
from penstock.typed import TypedRows
from penstock.wire.hash_partitions import hashing

# What a receipt counts.
_COUNTS = ("published", "duplicates", "size")

# Seconds between two collections of garbage in a task. Pages leave none behind (tests/work holds
# that), but an epoch may last for hours.
_COLLECT = 60.0
# And between two reports of what was measured.
_MEASURE = 0.5

log = logging.getLogger("penstock")
# What this process has reported of its decoders' unknown types.
_reported_types: set[str] = set()


@cache
def freeze_garbage() -> None:
    """Once in each of Spark's Python workers, after all imports. Not in the reader process, which
    is no worker and must collect its own garbage."""
    # PySpark's daemon collects garbage after every task. With all imports done, what is alive now
    # stays alive: frozen, it is not looked at again (measured: 92 % of a worker's busy time).
    gc.collect()
    gc.freeze()
    # The daemon's collection after each task is enough, with ours in a long one (`tidied`);
    # more would scan a batch's young rows.
    gc.disable()


@cache
def _source(
    options: frozenset[tuple[str, str]], images: Images | None
) -> tuple[bytes, Decoder, Reporter | None]:
    source, feed = read_source(dict(options))
    decoder = hashing(
        feed.decoder(images or source.images, source.on_error), source.hash_partitions
    )
    return pickle.dumps(decoder), decoder, source.reports.reporter(source.runtime)


def _side_channel(options: Mapping[str, str], attempt: Attempt) -> SideChannel | None:
    """If anything goes around the JVM."""
    if not options.get("side_channel"):
        return None
    return SideChannel(Path(options["side_channel"]), columns_of(options.get("late", "")), attempt)


@cache
def _decoder(pickled: bytes) -> Decoder:
    decoder: Decoder = pickle.loads(pickled)  # noqa: S301 - made by read_split, moved by Spark
    return decoder


@cache
def _sink(
    options: frozenset[tuple[str, str]], *, on_driver: bool = False
) -> tuple[Sink, SinkOptions, Reporter | None]:
    chosen, sink = read_sink(dict(options))
    reports = Reports() if on_driver else chosen.reports
    return sink, chosen, reports.reporter(chosen.runtime)


def read_split(
    options: Mapping[str, str], split: Part, attempt: Attempt, typed: TypedRows | None = None
) -> Iterator[pa.RecordBatch]:
    """The changes of a split as batches, or `typed` rows; a ticket as it is, or stubs of its
    changes."""
    pickled, decoder, board = _source(
        frozenset(options.items()), None if typed is None else typed.images
    )
    freeze_garbage()
    side_channel = _side_channel(options, attempt)
    if isinstance(split, Ticket) and side_channel is None:
        yield ticket_row(split, pickled)
        return
    changes = changes_of(split, decoder, typed, board)
    yield from changes if side_channel is None else side_channel.write(changes)


def changes_of(
    split: Part, decoder: Decoder, typed: TypedRows | None, board: Reporter | None = None
) -> Iterator[pa.RecordBatch]:
    """The changes of a split, as batches or as `typed` rows."""
    decode = partial(_decoded, decoder, board=board)
    pages = read_rows(split, decode) if isinstance(split, RowsSplit) else _pages(split, decode)
    for whole, kept in pages:
        yield from kept if typed is None else typed.of_page(whole, kept)


def _pages(split: Split | Ticket, decode: Callable[[Page], Batches]) -> Iterator[DecodedPage]:
    for page, after, until in _bounded_pages(split):
        batches = decode(page)
        yield batches, bounded(page, batches, after, until)


def _bounded_pages(split: Split | Ticket) -> Iterator[tuple[Page, Place | None, Place | None]]:
    """Pages, each with the places between which its changes are meant."""
    if isinstance(split, Ticket):
        bounds = {each.partition: (each.after, each.until) for each in split.request.ranges}
        with closing(PageClient(split)) as client:
            for page in client.pages():
                yield page, *bounds[page.partition]
            client.release()
    else:
        for pages, after, until in split.parts:
            for page in pages:
                yield page, after, until


def write_changes(
    options: Mapping[str, str], batches: Iterable[pa.RecordBatch], attempt: Attempt
) -> Receipt:
    """Stores the changes of one task and reports the progress. While an epoch runs, what is stored
    is reported to the reader process and counted here; the receipt counts the rest only."""
    sink, chosen, board = _sink(frozenset(options.items()))
    freeze_garbage()
    clients: list[PageClient] = []
    times = PageTimes(board) if board is not None and chosen.reports.spans else None
    progress = _Progress(clients, board, chosen.sink, times)
    side_channel = _side_channel(options, attempt)
    try:
        natively = isinstance(sink, TakesNative)
        changes = _changes(batches, board, clients, side_channel, times, natively=natively)
        receipt = sink.write(changes, progress)
        progress.stored(receipt.position)
        for client in clients:
            client.finish()
    finally:
        for client in clients:
            client.close()
        if side_channel is not None:
            side_channel.clear()
        if board is not None:
            board.flush()
    counted = progress.counted
    return replace(receipt, **{key: getattr(receipt, key) - counted[key] for key in _COUNTS})


class _Progress(Progress):
    """Places go to the reader process, reports to the board; `counted` of the running totals."""

    def __init__(
        self,
        clients: Sequence[PageClient],
        board: Reporter | None,
        name: str,
        times: PageTimes | None,
    ) -> None:
        self.counted: Counter[str] = Counter()
        self._clients, self._board, self._name = clients, board, name
        self._times = times

    def stored(self, position: Position) -> None:
        if self._times is not None:
            self._times.stored(position)
        for client in self._clients:
            client.stored(position)

    def began(self, partition: PartitionId) -> Place | None:
        return next(
            (each.began[partition] for each in self._clients if partition in each.began), None
        )

    def report(self, status: Mapping[str, Any]) -> None:
        if self._board is None:
            return
        rest = {key: value for key, value in status.items() if key not in _COUNTS}
        fresh = {key: status[key] - self.counted[key] for key in _COUNTS if key in status}
        self.counted.update(fresh)
        add_sink_report(self._board, self._name, rest | (_totals(**fresh) if fresh else {}))


def _totals(*, published: int, duplicates: int, size: int) -> dict[str, int]:
    """A sink's names for a receipt's counts."""
    return {
        "published": published,
        "acknowledged": published,
        "duplicates": duplicates,
        "bytes": size,
    }


def commit_receipts(options: Mapping[str, str], receipts: Sequence[Receipt]) -> None:
    """In the driver's commit process: what was done is counted."""
    _, chosen, board = _sink(frozenset(options.items()), on_driver=True)
    if board is None or not receipts:
        return
    for receipt in receipts:
        totals = _totals(**{key: getattr(receipt, key) for key in _COUNTS})
        add_sink_report(board, chosen.sink, {"connected": True, **totals, **receipt.numbers})


def _changes(
    batches: Iterable[pa.RecordBatch],
    board: Reporter | None,
    clients: list[PageClient],
    side_channel: SideChannel | None,
    times: PageTimes | None,
    *,
    natively: bool,
) -> Iterator[Any]:
    """Rows with late columns; of tickets their pages' changes, which may be `natively` as they are.
    `clients` gets one for each."""
    for batch in batches:
        if batch.schema.names == TICKETS.names:
            for ticket, decoder in tickets(batch):
                client = Follower(ticket) if ticket.feed else PageClient(ticket)
                clients.append(client)
                yield from _from_pages(client, _decoder(decoder), board, times, natively=natively)
        elif batch.num_rows:
            yield from [as_changes(batch)] if side_channel is None else side_channel.join(batch)
    if side_channel is not None:
        yield from side_channel.remaining()


def _from_pages(
    client: PageClient,
    decoder: Decoder,
    board: Reporter | None,
    times: PageTimes | None,
    *,
    natively: bool,
) -> Iterator[Batch]:
    measures = Measures(board)
    decode: Callable[[Page], Sequence[Batch]] = decoder.decode
    if natively and isinstance(decoder, NativeDecoder):
        decode = decoder.decode_natively
    for page in tidied(client.pages()):
        handed = time.time_ns() if times is not None else 0
        changes = decode(page)
        _report_types(decoder, board)
        if times is not None:
            times.decoded(page, changes, handed)
        client.handed_on(page, changes)
        measures.page(page, changes)
        yield from changes
        if not any(batch.num_rows for batch in changes):
            client.stored({})  # the sink never reports a page of which it gets nothing
        measures.report()  # not while the page waits
    measures.report_now()


def tidied(pages: Iterable[Page], every: float = _COLLECT) -> Iterator[Page]:
    """The pages as they come; garbage is collected between two of them, every so many seconds."""
    collected = time.monotonic()
    for page in pages:
        yield page
        if time.monotonic() - collected > every:
            gc.collect()
            collected = time.monotonic()


def _decoded(decoder: Decoder, page: Page, board: Reporter | None) -> Sequence[pa.RecordBatch]:
    batches = decoder.decode(page)
    _report_types(decoder, board)
    return batches


def _report_types(decoder: Decoder, board: Reporter | None) -> None:
    for name in decoder.unknown_types - _reported_types:
        _reported_types.add(name)
        if board is None:
            log.warning("the type %s is not known and is delivered as its text", name)
        else:  # the service logs it, once over all workers
            board.add("", ProcessReport(unknown_types={name: 1}))


def require_columns(names: Sequence[str], options: Mapping[str, str]) -> None:
    """Raises SettingsError unless these are tickets, or lack only late and optional columns."""
    needed = stub_schema(schema(), columns_of(options.get("late", ""))).names
    missing = [name for name in needed if name not in OPTIONAL.union(names)]
    if missing and list(names) != TICKETS.names:
        raise SettingsError(
            f"the DataFrame lacks the columns {', '.join(missing)}",
            "microbatch",
            hint="penstock's sink needs every column of the change: transform values, keep columns",
        )


class Measures:
    """Of one ticket, whose pages are of one backend. A page only leaves numbers behind: what
    becomes of them is computed when they are reported. The last change stands for its page."""

    def __init__(self, board: Reporter | None) -> None:
        self._board = board
        self._backend = ""
        # Of each page: changes, and seconds from the commit until it was read.
        self._sizes: list[int] = []
        self._delays: list[float] = []
        self._sent = 0.0

    def page(self, page: Page, batches: Sequence[Batch]) -> None:
        rows = sum(batch.num_rows for batch in batches)
        if self._board is None or not rows:
            return
        last = next(batch for batch in reversed(batches) if batch.num_rows)
        if not self._backend:
            self._backend = backend_of(last)
        self._sizes.append(rows)
        if (committed := last_committed(last)) is not None:
            self._delays.append((page.captured_at - committed) / 1e6)

    def report(self) -> None:
        if time.monotonic() - self._sent >= _MEASURE:
            self.report_now()

    def report_now(self) -> None:
        if self._board is not None and self._sizes:
            counts = {**observed("batch", self._sizes), **observed("ingest", self._delays)}
            self._board.add(self._backend, MeasureReport(histograms=counts))
        self._sizes, self._delays = [], []
        self._sent = time.monotonic()
