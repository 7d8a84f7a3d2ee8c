"""Reports from other processes: merged, bounded, and never in the sender's way."""

import multiprocessing
import os
import pickle
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import SettingsError
from penstock.ops.board import Board, Entry
from penstock.ops.reporter import Reporter, add_sink_report
from penstock.ops.reports import (
    GapReport,
    PartitionReport,
    ProcessReport,
    SinkReport,
    SourceReport,
    described,
)
from tests.waiting import Clock, until


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(tmp_path: Path, clock: Clock) -> Iterator[Board]:
    with Board(tmp_path / "run" / "board", clock=clock, bounds={"lag_bytes": 1000}) as found:
        yield found


def entry(board: Board, name: str = "a") -> Entry[SourceReport]:
    until(lambda: name in board.snapshot().of(SourceReport))
    return board.snapshot().of(SourceReport)[name]


def fields(board: Board, name: str = "a") -> Mapping[str, Any]:
    return entry(board, name).report.named


def settle(board: Board) -> None:
    """Waits until everything that was sent has arrived: datagrams keep their order."""
    Reporter(board.path).report("mark", ProcessReport())
    until(lambda: "mark" in board.snapshot().of(ProcessReport))


def test_a_report_arrives(board: Board) -> None:
    Reporter(board.path).report("a", SourceReport(connected=True, leases=5, current="é"))
    assert fields(board) == {"connected": True, "leases": 5, "current": "é"}


def test_reports_merge_field_by_field(board: Board) -> None:
    reporter = Reporter(board.path)
    reporter.report("a", SourceReport(events=1, current="x"))
    reporter.report("a", SourceReport(events=2))
    reporter.report("b", SourceReport(events=9))
    settle(board)
    assert fields(board) == {"events": 2, "current": "x"}
    assert fields(board, "b") == {"events": 9}


def test_counts_add_up_over_processes(board: Board) -> None:
    spawn = multiprocessing.get_context("spawn")
    children = [
        spawn.Process(target=Reporter(board.path).add, args=("a", SourceReport(events=5)))
        for _ in range(2)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    settle(board)
    assert fields(board) == {"events": 10}


def test_a_counter_is_the_sum_over_all_processes(board: Board) -> None:
    for sender, published in (("a", 5), ("b", 3), ("a", 7), ("b", 3), ("a", 7), ("c", 1)):
        board.post("s", SinkReport(published=published), sender=sender)
    assert board.snapshot().latest(SinkReport, "s").named == {"published": 11}


def test_a_counter_that_falls_belongs_to_a_new_process(board: Board) -> None:
    for published in (5, 9, 2, 3):
        board.post("s", SinkReport(published=published), sender="a")
    assert board.snapshot().latest(SinkReport, "s").named == {"published": 12}


@pytest.mark.slow
def test_counting_many_short_lived_processes_takes_bounded_memory(board: Board) -> None:
    for sender in range(60_000):
        board.post("s", SinkReport(), {"published": 1}, str(sender))
    assert board.snapshot().latest(SinkReport, "s").named == {"published": 60_000}
    assert len(board._counted) <= 50_000


def test_what_found_no_room_is_counted_later(tmp_path: Path) -> None:
    path = tmp_path / "board"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        reporter = Reporter(path)
        for _ in range(200):  # far more than there is room for, and nobody reads
            reporter.add("s", SinkReport(published=1))
        listener.setblocking(False)
        assert drained(listener) < 200
        reporter.report("s", SinkReport(connected=True))
        assert drained(listener) == 200


def drained(listener: socket.socket) -> int:
    """The total in the last of the datagrams."""
    total = 0
    with suppress(BlockingIOError):
        while True:
            _, _, _, totals, _ = orjson.loads(listener.recv(100_000))
            total = totals["published"]
    return total


@pytest.mark.slow
def test_a_report_waits_a_moment_for_room(board: Board) -> None:
    """A burst, while the board's thread is busy elsewhere."""
    reporter = Reporter(board.path)
    for _ in range(5_000):
        reporter.add("s", SinkReport(published=1))
    until(lambda: board.snapshot().latest(SinkReport, "s").published == 5_000)


def test_an_entry_of_nobody_is_empty(board: Board) -> None:
    assert board.snapshot().latest(SourceReport, "nobody") == SourceReport()


def test_a_forked_child_reports_on_its_own_socket(board: Board) -> None:
    reporter = Reporter(board.path)
    reporter.report("a", SourceReport(leases=1))
    pid = os.fork()
    if pid == 0:
        reporter.report("a", SourceReport(unowned=2))
        os._exit(0)
    os.waitpid(pid, 0)
    settle(board)
    assert fields(board) == {"leases": 1, "unowned": 2}


def test_a_reporter_pickles(board: Board) -> None:
    reporter = Reporter(board.path)
    reporter.report("a", SourceReport(leases=1))
    pickle.loads(pickle.dumps(reporter)).report("a", SourceReport(leases=2))
    settle(board)
    assert fields(board) == {"leases": 2}


def test_nobody_listening_is_nothing(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path / "none")
    reporter.report("a", SourceReport(leases=1))
    with Board(tmp_path / "none") as board:
        reporter.report("a", SourceReport(leases=2))
        assert fields(board) == {"leases": 2}


def test_a_board_that_comes_back_hears_the_old_reporters(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path / "b")
    for n in range(3):
        with Board(tmp_path / "b") as board:
            reporter.report("a", SourceReport(leases=n))
            assert fields(board) == {"leases": n}


@pytest.mark.slow
def test_a_full_socket_drops_and_does_not_block(tmp_path: Path) -> None:
    deaf = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    deaf.bind(str(tmp_path / "deaf"))
    reporter = Reporter(tmp_path / "deaf")
    for n in range(5000):
        reporter.report("a", SourceReport(leases=n))
    deaf.close()


@pytest.mark.parametrize(
    "large",
    [
        {"last_error": "x" * 1_000_000},
        {"details": {"list": list(range(100_000))}},
        {"details": {f"k{i}": "y" * 900 for i in range(500)}, "at_risk": "x"},
    ],
)
def test_what_is_too_large_is_cut_and_the_rest_arrives(board: Board, large: dict[str, Any]) -> None:
    Reporter(board.path).report("a", SourceReport(leases=1, **large))
    assert fields(board)["leases"] == 1


def test_a_long_text_is_cut_and_not_left_out(board: Board) -> None:
    Reporter(board.path).report("a", SourceReport(last_error="x" * 1_000_000))
    assert fields(board)["last_error"] == "x" * 1000 + "…"


@pytest.mark.parametrize("value", [object(), {1: 2}, float("nan"), b"\xff", Path("/x"), 2**70])
def test_a_report_of_anything_never_raises(board: Board, value: Any) -> None:
    Reporter(board.path).report("a", SourceReport(current=value))
    Reporter(board.path).report("a", SourceReport(stopped=True))
    until(lambda: "stopped" in fields(board))


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"[]",
        b'["source","a",5,5,5]',
        b'["source","a",{"lagg":1},{},""]',
        b'["sauce","a",{},{},""]',
        b"\xff\xfe",
        b"{}",
        b"null",
    ],
)
def test_a_datagram_that_is_no_report_is_ignored(board: Board, data: bytes) -> None:
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.sendto(data, str(board.path))
    sender.close()
    settle(board)
    assert not board.snapshot().of(SourceReport)
    assert board.ignored == 1


def test_an_entry_knows_when_each_field_changed(board: Board, clock: Clock) -> None:
    reports = SourceReport(leases=1, unowned=1), SourceReport(unowned=2), SourceReport(leases=1)
    for now, report in enumerate(reports, start=1):
        clock.now = float(now)
        board.post("a", report)
    found = entry(board)
    assert found.changed == {"leases": 1.0, "unowned": 2.0}
    assert (found.since, found.at) == (1.0, 3.0)


def test_an_entry_knows_until_when_a_number_was_calm(board: Board, clock: Clock) -> None:
    reports = ((1.0, 0, 900), (2.0, 5, 1000), (3.0, 6, 5000), (4.0, 7, 6000))
    for now, buffered, lag in reports:
        clock.now = now
        board.post("a", SourceReport(buffered_events=buffered, lag_bytes=lag))
    # Buffered was nothing until the report at 2; the lag was within its bound until the one at 3.
    assert entry(board).calm == {"buffered_events": 2.0, "lag_bytes": 3.0}


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["leases", "unowned", "set_aside"]), st.integers(-2, 2)),
        max_size=9,
    )
)
def test_merging_keeps_the_latest_of_each_field(reports: list[dict[str, Any]]) -> None:
    found = Entry(report=SourceReport(), at=0, since=0, changed={}, calm={})
    latest: dict[str, int] = {}
    for now, fields in enumerate(reports, start=1):
        found = found.merged(SourceReport(**fields), {}, now, {})
        latest |= fields
    assert found.report.named == latest
    assert set(found.changed) == set(latest)


def test_an_unknown_field_is_an_error_where_it_is_reported(board: Board) -> None:
    with pytest.raises(TypeError, match="conected"):
        add_sink_report(Reporter(board.path), "s", {"conected": True})
    with pytest.raises(TypeError, match="lagg"):
        SourceReport(lagg=1)  # type: ignore[call-arg]


def test_counters_of_a_mapping_add_up_by_key_and_are_integers(board: Board) -> None:
    reporter = Reporter(board.path)
    for letters in ({"no-key": 1}, {"too.large": 2, "no-key": 3}):
        reporter.add("s", SinkReport(dead_letters=letters, published=2))
    settle(board)
    found = board.snapshot().latest(SinkReport, "s")
    assert found.dead_letters == {"no-key": 4, "too.large": 2}
    assert repr(found.published) == "4"


def test_a_sinks_own_terms_are_the_latest_of_each(board: Board) -> None:
    board.add("s", SinkReport(details={"server": "a", "reason": "x"}))
    board.add("s", SinkReport(details={"reason": "y"}))
    assert board.snapshot().latest(SinkReport, "s").details == {"server": "a", "reason": "y"}


def test_what_is_not_followed_any_more_is_forgotten(board: Board) -> None:
    for name, report in [
        ("a", SourceReport()), ("ab", SourceReport()), ("a/eu", PartitionReport()),
        ("a/eu", GapReport()), ("a", SinkReport()),
    ]:  # fmt: skip
        board.post(name, report)
    board.forget("a")
    found = board.snapshot()
    assert [*found.of(SourceReport), *found.of(SinkReport)] == ["ab", "a"]
    assert not found.of(PartitionReport)
    assert not found.of(GapReport)


def test_the_socket_is_the_users_alone_and_goes_with_the_board(tmp_path: Path) -> None:
    with Board(tmp_path / "run" / "board") as board:
        assert stat.S_IMODE(board.path.parent.stat().st_mode) == 0o700
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("path", ["/proc/penstock/board", "/tmp/" + "x" * 120 + "/board"])
def test_a_path_that_can_not_be_a_socket_is_a_clear_error(path: str) -> None:
    with pytest.raises(SettingsError, match="name another state folder"), Board(path):
        pass


def test_a_report_costs_less_than_fifty_microseconds(board: Board) -> None:
    reporter = Reporter(board.path)
    report = SinkReport(**dict.fromkeys(described(SinkReport), 1000))
    best = min(_seconds(reporter, report) for _ in range(200))
    assert best < 50e-6


def _seconds(reporter: Reporter, report: SinkReport) -> float:
    start = time.perf_counter()
    reporter.report("s", report)
    return time.perf_counter() - start
