"""What tasks do beside decoding and writing."""

import gc
import pickle
import threading
import weakref
from collections.abc import Sequence

import pyarrow as pa
import pytest

from penstock.handover.ticket import Ticket, punch
from penstock.page import Page
from penstock.position import PartitionId, Place
from penstock.reading.assignments import Assignments
from penstock.reading.epochs import Epochs
from penstock.reading.page_server import PageServer
from penstock.reading.planner import ReadLimits
from penstock.reading.roster import Roster
from penstock.tasks.attempt import Attempt
from penstock.tasks.task import tidied, write_changes
from tests.reading.made import P0, Clock, feed_of, made, place, positions_of, until

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


@pytest.mark.parametrize("polled", [False, True])
def test_pages_without_a_change_for_the_sink_are_released_while_the_epoch_is_open(
    *, polled: bool
) -> None:
    """Of many times the buffer: reading must not wait for the end of the epoch."""
    feed = feed_of(changes=2000, page=10, polled=polled)
    buffer = 4096
    with made(feed, limits=ReadLimits(buffer=buffer), positions=positions_of()) as parts:
        assert parts.positions is not None
        reservoir = Assignments(buffer) if polled else parts.reservoir
        epochs = Epochs(reservoir, Roster(feed), parts.positions, seconds=3600.0, clock=Clock())
        epochs.begin(feed.begin())
        over = threading.Event()
        server = PageServer(
            "unix:",
            lambda request: epochs.draw(request.group, request.groups),
            stored=epochs.stored,
            marked=epochs.marked,
            stopping=over.is_set,
            watch=epochs.watch,
        )
        server.open()
        epochs.plan(1)
        ticket = Ticket(
            address=server.address,
            key=server.key,
            seconds=3600.0,
            most=3600.0,
            feed=pickle.dumps(feed) if polled else b"",
            buffer=buffer,
        )
        options = {"sink": "memory", "name": "nothing"}
        row = punch(ticket, pickle.dumps(LeavesNothing()))
        attempt = Attempt(stage=0, number=0, is_first=True)
        task = threading.Thread(target=write_changes, args=(options, [row], attempt), daemon=True)
        task.start()
        until(lambda: epochs.durable[P0].place == place(1999), 20.0)
        assert task.is_alive()
        over.set()
        task.join(20.0)
        assert not task.is_alive()
        server.close()
