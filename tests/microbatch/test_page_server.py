"""Page server and client over real sockets: pages for a ticket, reports of what is stored."""

import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import pytest

from penstock.feeds import Following, Gap
from penstock.microbatch import page_server
from penstock.microbatch.draw import Draw, OpenDraw, PlannedDraw
from penstock.microbatch.epochs import BufferedEpochs, Lengths
from penstock.microbatch.open import OpenReading
from penstock.microbatch.page_client import Handed, PageClient, _idle
from penstock.microbatch.page_server import PAUSE, PageServer
from penstock.microbatch.run_folder import stop_queries
from penstock.microbatch.ticket import (
    PAGE,
    FoundGap,
    Range,
    Report,
    ReportedPlaces,
    Request,
    Signal,
    Ticket,
    ticket_row,
    tickets,
)
from penstock.model.change import Passed
from penstock.model.errors import LeaseLost, Malformed, SettingsError, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.process.connections import Server
from penstock.reading.roster import Roster
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.microbatch.opened import Opened
from tests.reading.made import P0, Made, options_of, positions_of
from tests.waiting import until

CHANGES = 500
END = Place("p0-000000000499", 0)


def asking(server: PageServer | Opened | Server, **asked: Any) -> Ticket:
    return Ticket(request=Request(**asked), address=server.address, key=server.key)


class Served:
    """A reservoir over a memory feed with its page server open: its `Pages`."""

    def __init__(self, address: str, feed: StagedFeed) -> None:
        self.told: list[Place] = []
        self.failure: LeaseLost | None = None
        self.begins: dict[PartitionId, Place] = {}
        self.stopping = threading.Event()
        self.parts = Made(feed)
        self.server = PageServer(address, self)
        self.server.open()
        self.parts.open()

    def draw(self, request: Request) -> OpenDraw | PlannedDraw:
        reservoir = self.parts.reservoir
        if request.ranges:
            return PlannedDraw(reservoir, request.ranges)
        return OpenDraw(reservoir, lambda _: None, begins=self.begins)

    def take(self, report: Report) -> None:
        assert isinstance(report, ReportedPlaces)
        if self.failure is not None:
            raise self.failure
        self.told += report.places.values()

    def check(self) -> None:
        """Saving does not fail."""

    def is_over(self) -> bool:
        return self.stopping.is_set()

    def ticket(
        self, *, after: Place | None = None, until: Place | None = None, seconds: float = 0.0
    ) -> Ticket:
        ranges = () if until is None else (Range(P0, after, until),)
        return asking(self.server, ranges=ranges, seconds=seconds)


@contextmanager
def serving(address: str = "unix:", feed: StagedFeed | None = None) -> Iterator[Served]:
    """With everything read, unless the feed is one of the test's own."""
    served = Served(address, feed or StagedFeed(StagedSettings(changes=CHANGES, page=64, unit=1)))
    if feed is None:
        until(lambda: served.parts.row()["buffered_events"] == CHANGES)
    try:
        yield served
    finally:
        served.server.close()
        served.parts.reservoir.stop(5.0)


def count(client: PageClient) -> int:
    """How many changes it gets; its connection is free then for the next one."""
    found = sum(page.count for page in client.pages())
    client.release()
    return found


def test_a_ticket_crosses_as_a_row_and_hides_its_key() -> None:
    request = Request(ranges=(Range(P0, None, END),))
    ticket = Ticket(request=request, address="unix:/x", key=b"secret")
    assert list(tickets(ticket_row(ticket, b"decoder"))) == [(ticket, b"decoder")]
    assert "secret" not in repr(ticket)


@pytest.mark.parametrize("address", ["unix:", "tcp:127.0.0.1"])
def test_a_ticket_with_an_end_gets_every_page_up_to_it_and_no_more(address: str) -> None:
    with serving(address) as served:
        pages = list(PageClient(served.ticket(until=Place("p0-000000000299", 0))).pages())
        # Pages are whole: the last one may reach beyond the end, and is bounded by the task.
        assert [page.first for page in pages] == [
            Place(f"p0-{n:012d}", 0) for n in range(0, 300, 64)
        ]
        rest = PageClient(served.ticket(after=pages[-1].last, until=END))
        assert sum(page.count for page in pages) + count(rest) == CHANGES


def test_a_connection_serves_one_ticket_after_the_other() -> None:
    with serving() as served:
        before = threading.active_count()
        for _ in range(5):
            assert count(PageClient(served.ticket(until=END))) == CHANGES
        until(lambda: threading.active_count() <= before + 1)


def test_a_task_knows_how_far_all_was_durable_before_its_pages() -> None:
    with serving() as served:
        planned = PageClient(served.ticket(after=Place("p0-000000000063", 0), until=END))
        assert planned.began == {P0: Place("p0-000000000063", 0)}
        served.begins = {P0: END}
        opened = PageClient(served.ticket(seconds=0.2))
        for page in opened.pages():
            assert opened.began == {P0: END}, page.first
        assert PageClient(served.ticket(until=END)).began == {}


def test_a_page_that_ends_with_what_was_passed_over_waits_for_the_sink() -> None:
    page = StagedFeed(StagedSettings(changes=8, page=8)).follow(P0, Bookmark()).read(1.0)[0]
    passed = Passed("b", P0, page.last, "")
    for batches, is_done in (([], True), ([passed.batch], False)):
        handed = Handed()
        handed.note(page, batches)
        assert handed.done({}) == ({P0: page.last} if is_done else {})
        assert is_done or handed.done({P0: page.last}) == {P0: page.last}


def test_pages_that_come_later_are_waited_for() -> None:
    feed = StagedFeed(StagedSettings(changes=CHANGES, page=50, unit=1, fail_at=(0, 100, 200)))
    with serving(feed=feed) as served:
        assert count(PageClient(served.ticket(until=END))) == CHANGES
    assert len(feed.failures) == 3


def test_an_epoch_ends_after_its_time() -> None:
    with serving() as served:
        begun = time.monotonic()
        client = PageClient(served.ticket(seconds=2.0))
        assert count(client) == CHANGES
        assert 2.0 <= time.monotonic() - begun < 30


class Flowing(Draw):
    """Pages, and their one draw, that has one more every 20 ms, so many in all."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.number = 0
        self.told = threading.Event()

    def draw(self, request: Request) -> "Flowing":
        return self

    def take(self, report: Report) -> None:
        self.told.set()

    def check(self) -> None:
        """Nothing is saved."""

    def is_over(self) -> bool:
        return False

    def next(self, wait: float) -> tuple[list[Page], bool]:
        time.sleep(0.02)
        made = self.page()
        return [made] if self.number <= self.pages else [], False

    def page(self, payload: bytes = b"") -> Page:
        place = Place("p0", self.number)
        self.number += 1
        given = {"captured_at": 0, "context": b"", "payload": payload}
        return Page(partition=P0, first=place, last=place, count=1, **given)  # type: ignore[arg-type]

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def flowing(pages: Flowing) -> Iterator[PageServer]:
    server = PageServer("unix:", pages)
    server.open()
    try:
        yield server
    finally:
        server.close()


class Watched(BufferedEpochs):
    """Epochs of a feed that gives no page; `watch` calls what a test gives."""

    def __init__(self, parts: Made, watch: Callable[[], None]) -> None:
        positions = positions_of()
        super().__init__(
            parts.reservoir, Roster(parts.feed), positions, Lengths(options_of(epoch=3600.0))
        )
        self._watch = watch

    def watch(self, timeout: float = 0.0) -> None:
        self._watch()


def test_an_epoch_does_not_wait_for_what_is_saved() -> None:
    watching, over = threading.Event(), threading.Event()

    def watch() -> None:
        watching.set()
        over.wait(60)

    parts = Made(StagedFeed(StagedSettings(changes=5, page=1, unit=1)))
    reading = Opened(Watched(parts, watch))
    ticket = asking(reading, seconds=60.0, most=60.0)
    pages = PageClient(ticket).pages()
    assert [next(pages).count for _ in range(5)] == [1] * 5
    assert watching.wait(60)
    reading.over.set()
    assert list(pages) == []
    over.set()
    reading.stop(5.0)


@pytest.mark.parametrize(
    ("met", "told"),
    [
        (LeaseLost("somebody else saved"), LeaseLost),
        (ZeroDivisionError("somebody else divided"), Malformed),
    ],
)
def test_what_saving_fails_with_ends_an_epoch(met: Exception, told: type[Exception]) -> None:
    def watch() -> None:
        raise met

    parts = Made(StagedFeed(StagedSettings(changes=5, page=1, unit=1)))
    reading = Opened(Watched(parts, watch))
    ticket = asking(reading, seconds=60.0)
    with pytest.raises(told, match="somebody else"):
        count(PageClient(ticket))
    reading.stop(5.0)


def test_an_epoch_goes_on_while_more_waits() -> None:
    with flowing(Flowing(40)) as server:
        ticket = asking(server, seconds=0.1, most=60.0)
        assert len(list(PageClient(ticket).pages())) == 40


def test_an_epoch_goes_on_no_longer_than_it_may() -> None:
    with flowing(Flowing(10_000)) as server:
        ticket = asking(server, seconds=0.1, most=0.4)
        begun = time.monotonic()
        assert len(list(PageClient(ticket).pages())) < 100
        assert time.monotonic() - begun >= 0.4


def test_an_epoch_ends_when_the_service_stops() -> None:
    with serving() as served:
        begun, found = time.monotonic(), 0
        pages = PageClient(served.ticket(seconds=60)).pages()
        while found < CHANGES:
            found += next(pages).count
        served.stopping.set()
        assert list(pages) == []
        assert time.monotonic() - begun < 30


def test_an_epoch_ends_when_the_service_stops_though_pages_keep_coming() -> None:
    """The file system is asked ten times a second, and not for each page."""

    class Stopped(Flowing):
        asked = 0

        def is_over(self) -> bool:
            self.asked += 1
            return self.asked > 3

    pages = Stopped(10_000)
    with flowing(pages) as server:
        begun = time.monotonic()
        assert len(list(PageClient(asking(server, seconds=3600.0)).pages())) > pages.asked
        assert 3 * PAUSE <= time.monotonic() - begun < 30


class Quiet(OpenReading):
    """In which nothing comes, for an hour; `waits` is set when the epoch waits for that long."""

    def __init__(self, folder: Path) -> None:
        feed = StagedFeed(StagedSettings(changes=0))
        made = Made(feed, positions=positions_of(), runtime=str(folder), epoch=3600.0)
        super().__init__(made.options, made.epochs(), lambda: None, "memory")
        self.waits, wake = threading.Event(), self.reader.wake
        plain = wake.wait

        def wait(timeout: float | None = None) -> bool:
            # Whoever wakes it has to have the lock, which is held here.
            if timeout is not None and timeout > 1000:
                self.waits.set()
            return plain(timeout)

        wake.wait = wait  # type: ignore[method-assign]
        (self.ticket,) = self.parts({"epoch": "3"}, {"epoch": "4"})


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Quiet]:
    monkeypatch.setattr(page_server, "QUIET", 3600.0)
    made = Quiet(tmp_path)
    yield made
    made.stop(5.0)


def test_an_epoch_in_which_nothing_comes_is_woken_for_a_stop(quiet: Quiet, tmp_path: Path) -> None:
    def stop() -> None:
        until(quiet.waits.is_set)
        stop_queries(tmp_path)

    threading.Thread(target=stop).start()
    assert count(PageClient(quiet.ticket)) == 0


def test_an_epoch_in_which_nothing_comes_is_woken_when_saving_fails(
    quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(_: BufferedEpochs, timeout: float) -> None:
        until(quiet.waits.is_set)
        raise LeaseLost(f"somebody else saved within {timeout} s")

    monkeypatch.setattr(BufferedEpochs, "watch", watch)
    with pytest.raises(LeaseLost, match="somebody else"):
        count(PageClient(quiet.ticket))


def test_what_saving_fails_with_is_seen_at_the_next_page() -> None:
    class Failing(Flowing):
        def check(self) -> None:
            if self.number == 2:
                raise LeaseLost("somebody else saved")

    pages = Failing(10_000)
    with flowing(pages) as server, pytest.raises(LeaseLost, match="somebody else"):
        count(PageClient(asking(server, seconds=3600.0)))
    assert pages.number == 2


def test_the_planner_hears_what_is_stored_while_the_epoch_runs() -> None:
    with serving() as served:
        client = PageClient(served.ticket(seconds=60))
        pages = client.pages()
        first = next(pages)
        decoder = StagedFeed(StagedSettings()).decoder("json")
        client.handed_on(first, list(decoder.decode(first)))
        client.stored({P0: first.first})  # not all of the page
        client.stored({P0: first.last})
        until(lambda: served.told)
        assert served.told == [first.last]


def test_pages_without_a_change_for_the_sink_are_done_when_those_before_them_are() -> None:
    with serving() as served:
        client = PageClient(served.ticket(seconds=2.0))
        decoder = StagedFeed(StagedSettings()).decoder("json")
        pages = list(client.pages())
        client.handed_on(pages[0], [])
        client.handed_on(pages[1], list(decoder.decode(pages[1])))
        client.handed_on(pages[2], [])
        client.stored({})
        client.stored({P0: pages[1].last})
        client.handed_on(pages[3], list(decoder.decode(pages[3])))
        client.stored({P0: pages[3].last})
        client.finish()
        assert served.told == [pages[0].last, pages[2].last, pages[3].last]
        # And the connection is good for the next one.
        assert count(PageClient(served.ticket(until=END))) == CHANGES


@pytest.mark.slow
def test_what_reading_failed_with_reaches_the_task() -> None:
    class Gone(StagedFeed):
        def follow(self, *args: object, **more: object) -> Following:
            raise SettingsError("the slot is of another server", "memory", hint="look at it")

    with serving(feed=Gone(StagedSettings())) as served, pytest.raises(SettingsError) as caught:
        count(PageClient(served.ticket(until=END)))
    assert caught.value.hint == "look at it"


def test_a_defect_of_the_reader_reaches_the_task() -> None:
    class Broken(Flowing):
        def next(self, wait: float) -> tuple[list[Page], bool]:
            raise KeyError("p7")

    with flowing(Broken(0)) as server:
        ticket = asking(server, seconds=20.0)
        with pytest.raises(Malformed, match="serving pages failed: KeyError: 'p7'"):
            count(PageClient(ticket))


def test_a_range_of_a_partition_that_is_not_read_is_unavailable() -> None:
    with serving() as served:
        ticket = served.ticket(until=END)
        ranges = (Range(PartitionId("gone"), None, END),)
        with pytest.raises(Unavailable, match="partition gone"):
            count(PageClient(replace(ticket, request=Request(ranges=ranges))))


def test_a_position_that_somebody_else_saved_ends_the_epoch() -> None:
    with serving() as served:
        served.failure = LeaseLost("somebody else saved")
        client = PageClient(served.ticket(seconds=0.1))
        for page in client.pages():
            client.handed_on(page, [])
        client.stored({})
        with pytest.raises(LeaseLost, match="somebody else"):
            client.finish()


def test_a_planner_that_is_gone_is_unavailable() -> None:
    with serving("tcp:127.0.0.1") as served:
        ticket = served.ticket(until=END)
    with pytest.raises(Unavailable, match="can't be reached"):
        count(PageClient(replace(ticket, key=b"another process's door")))


def test_a_connection_that_its_server_closed_is_not_used_again() -> None:
    def serve_once(connection: Connection) -> None:
        connection.recv()
        connection.send(Signal.END)

    server, other = Server("unix:", serve_once), Server("unix:", serve_once)
    addresses = {}
    for each in (server, server, other):
        each.open()
        addresses[each.address] = each
        ticket = asking(each, ranges=(Range(P0, None, END),))
        assert count(PageClient(ticket)) == 0
        (kept,) = [found for (_, address, _), found in _idle.items() if address in addresses]
        until(kept.poll)
    for each in (server, other):
        each.close()


def test_nobody_comes_in_without_the_key(tmp_path: Path) -> None:
    with serving(f"unix:{tmp_path}/server") as served:
        with pytest.raises(Unavailable, match="can't be reached"):
            count(PageClient(replace(served.ticket(until=END), key=b"guessed")))
        # One who says nothing keeps nobody from the door.
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(f"{tmp_path}/server")
            assert count(PageClient(served.ticket(until=END))) == CHANGES


def test_nonsense_ends_the_conversation_and_nothing_else() -> None:
    with serving() as served:
        path = served.server.address.removeprefix("unix:")
        with Client(path, "AF_UNIX", authkey=served.server.key) as connection:
            connection.send("?")
            assert isinstance(connection.recv(), Malformed)
        assert count(PageClient(served.ticket(until=END))) == CHANGES


def test_what_is_stored_is_taken_in_while_no_page_comes() -> None:
    """A full buffer gives no page until something is released: nobody waits for a clock then."""

    class Waiting(Flowing):
        def next(self, wait: float) -> tuple[list[Page], bool]:
            if self.number == 1:
                assert self.told.wait(60)  # the conversation's own thread is busy here
                return [], True
            return super().next(wait)

    server = PageServer("unix:", Waiting(1))
    server.open()
    ticket = asking(server, seconds=60.0)
    client = PageClient(ticket)
    pages = client.pages()
    first = next(pages)
    client.handed_on(first, [])
    client.stored({})
    assert list(pages) == []
    server.close()


def test_a_ticket_of_several_partitions_gets_the_pages_of_each_in_order() -> None:
    feed = StagedFeed(StagedSettings(changes=CHANGES, page=50, unit=1, partitions=7))
    with serving(feed=feed) as served:
        names = [PartitionId(f"p{n}") for n in range(7)]
        for name in names:
            served.parts.open(name)
        ranges = tuple(Range(name, None, Place(f"{name}-000000000499", 0)) for name in names)
        pages = list(PageClient(replace(served.ticket(), request=Request(ranges=ranges))).pages())
        assert sum(page.count for page in pages) == 7 * CHANGES
        for name in names:
            mine = [page.first for page in pages if page.partition == name]
            assert mine == sorted(mine)


def test_a_client_that_died_is_served_no_longer() -> None:
    """Its epoch may have an hour left."""
    closed = threading.Event()

    class Waiting(Flowing):
        def next(self, wait: float) -> tuple[list[Page], bool]:
            time.sleep(0.01)
            return [], False

        def close(self) -> None:
            closed.set()

    server = PageServer("unix:", Waiting(0))
    server.open()
    path = server.address.removeprefix("unix:")
    with Client(path, "AF_UNIX", authkey=server.key) as connection:
        connection.send(Request(seconds=3600.0, most=3600.0))
        assert not closed.wait(0.3)
    assert closed.wait(60)
    server.close()


def test_an_answer_does_not_come_between_a_pages_head_and_its_payload() -> None:
    class Large(Flowing):
        def next(self, wait: float) -> tuple[list[Page], bool]:
            return [self.page(b"x" * 300_000)], self.number >= 60

    server = PageServer("unix:", Large(60))
    server.open()
    path = server.address.removeprefix("unix:")
    gap = Gap(cause="c", after="")
    with Client(path, "AF_UNIX", authkey=server.key) as connection:
        connection.send(Request(seconds=3600.0, most=3600.0))
        for _ in range(40):
            connection.send(FoundGap(P0, gap, Bookmark(), ""))
        pages = recorded = 0
        while pages < 60 or recorded < 40:
            message = connection.recv_bytes()
            if message[:1] == PAGE:
                assert connection.recv_bytes() == b"x" * 300_000
                pages += 1
            else:
                recorded += pickle.loads(message) is Signal.RECORDED
    server.close()
