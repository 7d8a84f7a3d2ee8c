"""What every sink promises: `CLAIMS`; `EXACT` of a sink that stores each change once; `LASTS` of
one that does so outside of its process; `KNOWS` of one that can say how far it is. Each claim is
called with a `StagedSink` of its own."""

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Protocol

import orjson
import ormsgpack
import pyarrow as pa

from penstock.model.change import Images, event_id, schema
from penstock.model.position import Bookmark, PartitionId, Place, Position
from penstock.sinks import Receipt, Record, ReportsPositions, Sink, ignore
from penstock.testing.child import Child
from penstock.testing.claims import NotTried, hold, same

COMMITTED = datetime(2026, 11, 21, 10, 2, 3, 4, UTC)
CAPTURED = datetime(2026, 11, 21, 10, 2, 4, 0, UTC)
SHOP = PartitionId("shop")
_PATIENCE = 60.0  # seconds


class StagedSink(Protocol):
    """An empty sink. Inherit from it."""

    sink: Sink

    def ids(self) -> list[str]:
        """The event ids that it stored, in order, read in another way than by the sink."""
        ...

    def again(self) -> Sink:
        """As another process would have it."""
        copy: Sink = pickle.loads(pickle.dumps(self.sink))  # noqa: S301
        return copy

    def for_partitions(self) -> Sink:
        """One that keeps partitions apart that are written at once, of the same store."""
        return self.sink


class Noted(list[Any]):
    """A `Progress` that is the list of its reports, keeps what is stored in `position`, and calls
    `then` with each report."""

    def __init__(self, then: Callable[[Any], object] = lambda _: None) -> None:
        super().__init__()
        self.position: dict[PartitionId, Place] = {}
        self._then = then

    @property
    def outages(self) -> list[str]:
        """The errors for which something was tried again."""
        return [note["error"] for note in list(self) if note.get("connected") is False]

    def stored(self, position: Position) -> None:
        """See `Progress`."""
        self.position |= position

    def report(self, status: Any) -> None:
        """See `Progress`."""
        self.append(status)
        self._then(status)


def batch_of(
    count: int,
    commit: int = 1,
    *,
    start: int = 0,
    images: Images = "json",
    backend: str = "default",
    partition: str = "shop",
    **columns: Any,
) -> pa.RecordBatch:
    """Changes with ordinals from `start` in one transaction; a column given by name has that value
    in every row, or a list of one for each."""
    places = [Place(f"00000000/{commit:08X}", start + n) for n in range(count)]
    pack = ormsgpack.packb if images == "msgpack" else lambda v: orjson.dumps(v).decode()
    values: dict[str, Any] = {
        "backend": backend, "partition": partition, "cursor": [place.cursor for place in places],
        "ordinal": [place.ordinal for place in places],
        "event_id": [event_id(backend, place) for place in places], "operation": "INSERT",
        "tenant": None, "database": "shop", "namespace": "public", "collection": "items",
        "relation_id": 16385, "schema_version": None,
        "document_id": [f'["{place.ordinal}"]' for place in places],
        "key": [pack({"id": place.ordinal}) for place in places], "before": None,
        "after": [pack({"id": place.ordinal, "name": f"n{place}"}) for place in places],
        "unchanged": [[]] * count, "transaction": str(commit), "committed_at": COMMITTED,
        "captured_at": CAPTURED, "delta": None, "mark": None, "route": None, **columns,
    }  # fmt: skip
    listed = {k: v if isinstance(v, list) else [v] * count for k, v in values.items()}
    return pa.RecordBatch.from_pydict(listed, schema=schema(images))


def ids_of(*batches: pa.RecordBatch) -> list[str]:
    return [str(one) for batch in batches for one in batch.column("event_id").to_pylist()]


def _stored(staged: StagedSink, *batches: pa.RecordBatch) -> None:
    same(staged.ids(), ids_of(*batches), "stored event ids")


def _counted(receipt: Receipt, published: int, duplicates: int) -> None:
    found = receipt.published, receipt.duplicates
    same(found, (published, duplicates), "published and duplicates of the receipt")


def _cut_short(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise _BrokenSource


class _BrokenSource(OSError):
    pass


def _fail(sink: Sink, changes: Iterator[pa.RecordBatch], progress: Any = ignore) -> None:
    """Writes what ends with an error of the source, which must come out."""
    try:
        sink.write(changes, progress)
    except _BrokenSource:
        return
    hold(False, "a write of a source that broke has returned")


def what_was_written_is_stored_in_order(staged: StagedSink) -> None:
    staged.sink.prepare()
    batches = [batch_of(700, 1), batch_of(1, 2), batch_of(2500, 3)]
    receipt = staged.sink.write(batches, ignore)
    _stored(staged, *batches)
    _counted(receipt, 3201, 0)
    hold(receipt.size > 3201 * 50, f"the size of the receipt is {receipt.size}")


def a_sink_may_be_written_to_before_it_was_prepared(staged: StagedSink) -> None:
    _counted(staged.sink.write([batch_of(3)], ignore), 3, 0)
    staged.sink.prepare()
    same(len(staged.ids()), 3, "stored changes")


def nothing_written_is_an_empty_receipt(staged: StagedSink) -> None:
    staged.sink.prepare()
    for changes in ([], [batch_of(0)], iter(())):
        receipt = staged.sink.write(changes, ignore)
        _counted(receipt, 0, 0)
        same(dict(receipt.position), {}, "position")


def a_generator_is_written_as_a_list_is(staged: StagedSink) -> None:
    staged.sink.prepare()
    batches = [batch_of(3, n) for n in range(1, 60)]
    _counted(staged.sink.write((batch for batch in batches), ignore), 177, 0)
    _stored(staged, *batches)


def a_write_without_a_progress_is_a_type_error(staged: StagedSink) -> None:
    write: Any = staged.sink.write
    try:
        write([])
    except TypeError as error:
        hold("progress" in str(error), str(error))
    else:
        hold(False, "it was taken")


def progress_is_made_while_the_iterator_goes_on(staged: StagedSink) -> None:
    """That of an open micro-batch goes on for an hour, and the source must be acknowledged."""
    staged.sink.prepare()
    progress, until = Noted(), time.monotonic() + _PATIENCE

    def slow() -> Iterator[pa.RecordBatch]:
        for commit in (1, 2):
            yield batch_of(3, commit)
            while progress.position.get(SHOP) != Place(f"00000000/{commit:08X}", 2):
                hold(time.monotonic() < until, f"stored {progress.position}")
                yield batch_of(0)
                time.sleep(0.001)

    same(staged.sink.write(slow(), progress).position, progress.position, "position")


def nothing_counts_as_stored_before_it_is_durable(staged: StagedSink) -> None:
    staged.sink.prepare()
    batches = [batch_of(200, commit) for commit in range(1, 9)]
    ids = {
        Place(f"00000000/{commit:08X}", number): event
        for commit, batch in enumerate(batches, 1)
        for number, event in enumerate(ids_of(batch))
    }
    missing: list[set[str]] = []

    class Checked(Noted):
        def stored(self, position: Position) -> None:
            super().stored(position)
            due = {event for place, event in ids.items() if place <= position[SHOP]}
            missing.append(due.difference(staged.ids()))

    progress = Checked()

    def cut_short() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches[:6]):
            yield batch
            while number == 3 and not progress.position:
                yield batch_of(0)
        yield from _cut_short()

    _fail(staged.sink, cut_short(), progress)
    receipt = staged.sink.write(batches, progress)
    hold(missing, "nothing was reported as stored")
    same(missing, [set()] * len(missing), "what was reported and is not stored")
    # And what was not passed on is in the receipt.
    same(receipt.position, {SHOP: max(ids)}, "position of the receipt")
    hold(progress.position[SHOP] <= max(ids), "more is reported than was written")


def two_tasks_of_one_process_write_at_once(staged: StagedSink) -> None:
    sink = staged.for_partitions()
    sink.prepare()
    parts = [[batch_of(300, n, partition=p) for n in range(1, 9)] for p in ("a", "b")]
    parts = [
        [
            batch.set_column(
                4, "event_id", pa.array([f"{p}{one}" for one in ids_of(batch)], pa.string())
            ).cast(batch.schema)
            for batch in part
        ]
        for p, part in zip("ab", parts, strict=True)
    ]
    with ThreadPoolExecutor(2) as pool:
        receipts: list[Receipt] = list(pool.map(sink.write, parts, (ignore, ignore)))
    same([receipt.published for receipt in receipts], [2400, 2400], "published")
    ids = staged.ids()
    for p, part in zip("ab", parts, strict=True):
        same([one for one in ids if one.startswith(p)], ids_of(*part), f"stored of {p}")


def images_come_out_whichever_encoding_they_had(staged: StagedSink) -> None:
    staged.sink.prepare()
    changes = [batch_of(2, 1, images="json"), batch_of(2, 2, images="msgpack")]
    _counted(staged.sink.write(changes, ignore), 4, 0)


def a_sink_checks_itself_without_errors(staged: StagedSink) -> None:
    findings = staged.sink.check()
    hold(findings, "it finds nothing at all")
    same([each for each in findings if each.level == "error"], [], "errors")


def the_same_batch_twice_is_once(staged: StagedSink) -> None:
    staged.sink.prepare()
    first, second = batch_of(1500, 1), batch_of(40, 2)
    staged.sink.write([first, second], ignore)
    _counted(staged.sink.write([first, second], ignore), 0, 1540)
    _stored(staged, first, second)


def a_receipt_says_how_far_it_is_even_when_all_were_there(staged: StagedSink) -> None:
    staged.sink.prepare()
    for _ in range(2):
        receipt = staged.sink.write([batch_of(5, 1), batch_of(7, 2)], ignore)
        same(receipt.position, {SHOP: Place("00000000/00000002", 6)}, "position")
        same(pickle.loads(pickle.dumps(receipt)), receipt, "a pickled copy")  # noqa: S301


def a_crash_after_a_write_is_once(staged: StagedSink) -> None:
    staged.sink.prepare()
    staged.sink.write([batch_of(1200, 1)], ignore)
    # The driver died; another process does the same micro-batch again, cut differently.
    again = staged.again()
    again.prepare()
    batches = [batch_of(500, 1), batch_of(700, 1, start=500), batch_of(10, 2)]
    _counted(again.write(batches, ignore), 10, 1200)
    _stored(staged, batch_of(1200, 1), batch_of(10, 2))


def a_write_that_was_cut_short_is_completed(staged: StagedSink) -> None:
    staged.sink.prepare()
    _fail(staged.sink, _cut_short(batch_of(1100, 1)))
    receipt = staged.sink.write([batch_of(1100, 1), batch_of(30, 2)], ignore)
    same(receipt.published + receipt.duplicates, 1130, "published and duplicates")
    _stored(staged, batch_of(1100, 1), batch_of(30, 2))


def a_process_that_is_killed_while_it_writes_is_completed_by_another(staged: StagedSink) -> None:
    staged.sink.prepare()
    batches = _many()
    with Child(_write_many, staged.sink) as child:
        until = time.monotonic() + _PATIENCE
        while not (found := staged.ids()):
            child.verify()
            hold(time.monotonic() < until, "nothing was written")
        child.kill()
    before = len(staged.ids())
    hold(len(found) <= before, "what was stored has gone")
    receipt = staged.again().write(batches, ignore)
    _counted(receipt, receipt.published, len(ids_of(*batches)) - receipt.published)
    _stored(staged, *batches)


def _many() -> list[pa.RecordBatch]:
    return [batch_of(20, commit) for commit in range(1, 101)]


def _write_many(_: Any, sink: Sink) -> None:
    """In a process that is killed: slowly, and without an end."""

    def slowly() -> Iterator[pa.RecordBatch]:
        for batch in _many():
            yield batch
            time.sleep(0.01)
        while True:
            yield batch_of(0)
            time.sleep(0.01)

    sink.write(slowly(), ignore)


def what_a_sink_knows_of_itself_is_a_bookmark(staged: StagedSink) -> None:
    """The place and the mark of the last change that is stored, as another process sees it."""
    other = PartitionId("other")
    staged.sink.prepare()
    same(_records(staged.sink, SHOP), {SHOP: Record()}, "of an empty sink")
    for commit in (1, 2):
        marks = [None, *(f'{{"token":"{commit}-{n}"}}' for n in range(1, 5))]
        staged.sink.write([batch_of(5, commit, mark=marks)], ignore)
        last = Bookmark(Place(f"00000000/{commit:08X}", 4), {"token": f"{commit}-4"})
        settings = getattr(staged.sink, "settings", None)
        exact = getattr(settings, "delivery", "auto") in ("auto", "exactly-once")
        expected = Record(bookmark=last if exact else None, begun=True)
        found = _records(staged.again(), SHOP, other)
        same(found, {SHOP: expected, other: Record()}, f"after commit {commit}")
    staged.sink.write([batch_of(1, 3)], ignore)
    bookmark = _records(staged.again(), SHOP)[SHOP].bookmark
    hold(bookmark in (None, Bookmark(Place("00000000/00000003", 0), {})), f"{bookmark} at last")


def _records(sink: Sink, *partitions: PartitionId) -> dict[PartitionId, Record]:
    if not isinstance(sink, ReportsPositions):
        raise NotTried("this sink does not say how far it is")
    return dict(sink.records("default", partitions))


CLAIMS: Sequence[Callable[[StagedSink], None]] = (
    what_was_written_is_stored_in_order,
    a_sink_may_be_written_to_before_it_was_prepared,
    nothing_written_is_an_empty_receipt,
    a_generator_is_written_as_a_list_is,
    a_write_without_a_progress_is_a_type_error,
    progress_is_made_while_the_iterator_goes_on,
    nothing_counts_as_stored_before_it_is_durable,
    two_tasks_of_one_process_write_at_once,
    images_come_out_whichever_encoding_they_had,
    a_sink_checks_itself_without_errors,
)

EXACT: Sequence[Callable[[StagedSink], None]] = (
    the_same_batch_twice_is_once,
    a_receipt_says_how_far_it_is_even_when_all_were_there,
    a_crash_after_a_write_is_once,
    a_write_that_was_cut_short_is_completed,
)

LASTS: Sequence[Callable[[StagedSink], None]] = (
    a_process_that_is_killed_while_it_writes_is_completed_by_another,
)

KNOWS: Sequence[Callable[[StagedSink], None]] = (what_a_sink_knows_of_itself_is_a_bookmark,)
