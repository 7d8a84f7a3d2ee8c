"""What tasks do beside decoding and writing."""

import gc
import pickle
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pytest

from penstock.microbatch import task as module
from penstock.microbatch.assignments import Assignments
from penstock.microbatch.epochs import AssignedEpochs, BufferedEpochs, Epochs, Lengths
from penstock.microbatch.late import Attempt
from penstock.microbatch.options import SinkOptions
from penstock.microbatch.task import require_columns, tidied, write_changes
from penstock.microbatch.ticket import Request, Ticket, ticket_row
from penstock.model.change import schema
from penstock.model.errors import Malformed, SettingsError
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.reading.gaps import GapLog
from penstock.reading.reservoir import Reservoir
from penstock.reading.roster import Roster
from penstock.sinks import Progress, Receipt, ignore
from penstock.sinks.memory import MemorySink, MemorySinkSettings
from tests.microbatch.opened import Opened
from tests.reading.made import P0, Made, feed_of, made, options_of, place, positions_of
from tests.waiting import until

PLACE = Place("1", 0)
PAGE = Page(
    partition=PartitionId("p"),
    first=PLACE,
    last=PLACE,
    count=1,
    captured_at=0,
    context=b"",
    payload=b"",
)


class Cycle:
    """What only the collector frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.slow
@pytest.mark.parametrize(("every", "is_freed"), [(0.0, True), (60.0, False)])
def test_a_long_task_collects_its_garbage_now_and_then(every: float, is_freed: bool) -> None:
    gc.disable()
    try:
        garbage = weakref.ref(Cycle())
        assert list(tidied([PAGE, PAGE], every)) == [PAGE, PAGE]
        assert (garbage() is None) == is_freed
    finally:
        gc.enable()


class LeavesNothing:
    """The decoder of a page whose tables are all filtered out."""

    unknown_types: frozenset[str] = frozenset()

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        return []


class Task:
    """A task of an open epoch over a real page server, which ends when the test says so."""

    def __init__(self, parts: Made, decoder: object, *, buffer: int, polled: bool = False) -> None:
        assert parts.positions is not None
        feed, lengths = parts.feed, Lengths(options_of(epoch=3600.0))
        self.error: BaseException | None = None
        roster, positions = Roster(feed), parts.positions
        reader: Assignments | Reservoir
        if polled:
            reader, gaps = Assignments(buffer), GapLog(positions)
            self.epochs: Epochs = AssignedEpochs(reader, roster, positions, lengths, gaps=gaps)
        else:
            reader = parts.reservoir
            self.epochs = BufferedEpochs(reader, roster, positions, lengths)
        self.epochs.begin(feed.begin())
        self.reading = Opened(self.epochs)
        ticket = Ticket(
            request=Request(seconds=3600.0, most=3600.0),
            address=self.reading.address,
            key=self.reading.key,
            feed=pickle.dumps(feed) if polled else b"",
            buffer=buffer,
        )
        self._row = ticket_row(ticket, pickle.dumps(decoder))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        attempt = Attempt(stage=0, number=0, is_first=True)
        try:
            write_changes({"sink": "memory", "name": "nothing"}, [self._row], attempt)
        except BaseException as error:
            self.error = error

    @property
    def durable(self) -> Place | None:
        return self.epochs.durable[P0].place

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self.reading.over.set()
        self._thread.join(20.0)
        assert not self.is_running
        self.reading.stop(5.0)


@pytest.mark.slow
@pytest.mark.parametrize("polled", [False, True])
def test_pages_without_a_change_for_the_sink_are_released_while_the_epoch_is_open(
    *, polled: bool
) -> None:
    """Of many times the buffer: reading must not wait for the end of the epoch."""
    feed = feed_of(changes=2000, page=10, polled=polled)
    with made(feed, buffer=4096, positions=positions_of()) as parts:
        task = Task(parts, LeavesNothing(), buffer=4096, polled=polled)
        until(lambda: task.durable == place(1999))
        assert task.is_running
        task.end()
        assert task.error is None


class Sink(MemorySink):
    """Reports no progress; its receipt has what it was given, if it is `honest`."""

    def __init__(self, *, honest: bool) -> None:
        super().__init__(MemorySinkSettings(keep=False))
        self.honest = honest
        self.taken = 0

    def write(self, changes: Iterable[pa.RecordBatch], progress: Progress) -> Receipt:
        def counted() -> Iterator[pa.RecordBatch]:
            for batch in changes:
                self.taken += batch.num_rows
                yield batch

        receipt = super().write(counted(), ignore)
        return receipt if self.honest else Receipt()


@pytest.mark.slow
@pytest.mark.parametrize("polled", [False, True])
@pytest.mark.parametrize("honest", [True, False])
def test_a_receipt_says_what_is_acknowledged_at_the_end_of_an_epoch(
    monkeypatch: pytest.MonkeyPatch, *, polled: bool, honest: bool
) -> None:
    """Without a place for what was written the task fails: the source would never be acknowledged,
    or of what may be lost."""
    sink = Sink(honest=honest)
    monkeypatch.setattr(module, "_sink", lambda _: (sink, SinkOptions(sink="quiet"), None))
    feed = feed_of(changes=200, page=10, polled=polled)
    with made(feed, positions=positions_of()) as parts:
        task = Task(parts, feed.decoder("json"), buffer=1 << 20, polled=polled)
        until(lambda: sink.taken == 200)
        assert task.durable is None
        task.end()
        if honest:
            assert task.error is None
            until(lambda: task.durable == place(199))
        else:
            assert isinstance(task.error, Malformed)
            assert "without a place for p0" in str(task.error)
            assert task.durable is None


def test_a_dataframe_without_the_version_of_the_schema_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a transform makes it that lists its columns, and is older than this one."""
    taken: list[pa.RecordBatch] = []

    class Keeping(MemorySink):
        def write(self, changes: Iterable[pa.RecordBatch], progress: Progress) -> Receipt:
            taken.extend(changes)
            return Receipt()

    sink = Keeping(MemorySinkSettings(keep=False))
    monkeypatch.setattr(module, "_sink", lambda _: (sink, SinkOptions(sink="quiet"), None))
    row = {"backend": "b", "partition": "p", "cursor": "1", "ordinal": 0, "event_id": "b:1:0"}
    whole = pa.RecordBatch.from_pylist(
        [{**row, "operation": "INSERT", "schema_version": "v"}], schema=schema()
    )
    listed = whole.drop_columns(["schema_version"])
    require_columns(listed.schema.names, {})
    write_changes({}, [listed], Attempt(stage=0, number=0, is_first=True))
    assert [batch.schema for batch in taken] == [schema()]
    assert taken[0].to_pylist() == [{**whole.to_pylist()[0], "schema_version": None}]
    with pytest.raises(SettingsError, match="lacks the columns key"):
        require_columns(listed.drop_columns(["key"]).schema.names, {})
