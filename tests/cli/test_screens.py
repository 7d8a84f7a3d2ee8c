"""What `status` and `top` draw fits the terminal: nothing is folded in mid-word."""

import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from penstock.cli.fitting import Cells, bar, curve, fitted, number, seconds, size
from penstock.cli.screens import ORDERS, SCREENS, View
from penstock.ops.history import History
from penstock.ops.reports import (
    GapReport,
    PartitionReport,
    QueryReport,
    SinkReport,
    SnapshotsReport,
    SourceReport,
    TableStatus,
)
from tests.service.test_dashboard import Served

BLOCKED = "the slot is gone, and with it the changes since 0/16B3748 [postgres.slot-missing]"
RUNNING = {
    "snapshot_id": "new", "table": "a.public.orders", "state": "reading", "waiting": None,
    "ranges": 40, "done": 10, "chunks": 3, "rows": 1_234_567, "bytes": 3,
    "bytes_per_second": 4_200_000, "seconds_left": 133.0,
}  # fmt: skip
ENDED = {"snapshot_id": "old", "state": "done", "rows": 20_000, "at": "2026-11-29T03:05:01+00:00"}
LETTERS = [
    {"id": 7, "stored_at": "2026-11-29T03:05:01+00:00", "table": "public.orders",
     "reason": "too-large", "error": "a message of 2,000,000 bytes"},
    {"id": 9, "stored_at": "2026-11-29T03:05:02+00:00", "table": None,
     "reason": "malformed", "error": None},
]  # fmt: skip


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Everything that a status may have."""
    found = Served(tmp_path)
    board = found.board
    board.post("a", QueryReport(begun=True, blocked=BLOCKED))
    board.post("a", SourceReport(
        connected=True, events=12_345_678, lag_seconds=17.5, window_left_seconds=3e5,
        buffered_events=123_456, partition_count=2, last_error="the server closed the connection",
    ))  # fmt: skip
    for name, lag in (("slot_of_a_shop_with_a_name_that_is_long", 0.04), ("b", 90.0)):
        report = PartitionReport(place="00000000/016B3748:12", lag_seconds=lag, connected=True)
        board.post(f"a/{name}", report)
    board.post("a/b", GapReport(stale=True, counts={"slot-lost": 1}))
    board.post("a", SnapshotsReport(current=[RUNNING], last={"a.public.users": ENDED}))
    board.post("memory", SinkReport(
        connected=True, acknowledged=12_345_000, latency_p50_ms=38.2, latency_p99_ms=17_514.4,
        pressure="slow", dead_letters={"too-large": 3},
    ))  # fmt: skip
    for number_ in range(30):
        table = f"public.a_table_with_a_name_that_is_long_{number_}"
        applied = {"INSERT": 1000 * (30 - number_)}
        board.post(f"a/{table}", TableStatus(backend="a", table=table, applied=applied))
    found.history = History()
    for second in range(100):
        board.post("a", SourceReport(events=12_345_678 + second**2))
        found.history.record(board.snapshot(), 1e9 + second)
    return found


def view(served: Served, width: int = 80, **more: Any) -> View:
    history = served.history.shown("15m")
    known = [name for name in history["series"] if not name.startswith("latency")]
    history["series"] = {
        name: [None if value != value else value for value in history["series"][name]]
        for name in known
    }
    return View(status=served.status(None).to_json(), history=history, width=width, **more)


def drawn(shown: RenderableType, width: int) -> str:
    out = StringIO()
    Console(file=out, width=width).print(shown)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("screen", SCREENS)
def test_no_table_is_wider_than_the_terminal(screen: str, width: int, served: Served) -> None:
    shown = SCREENS[screen](view(served, width, letters=LETTERS))
    # With room to spare the same lines, but for those that are texts of several words.
    texts = [drawn(shown, width), drawn(shown, width + 40)]
    lines = [[one.rstrip() for one in text.splitlines() if one[:2] != "  "] for text in texts]
    assert lines[0] == lines[1]
    assert max(map(len, lines[0])) <= width


def test_history_is_told_as_the_source_bounds_it(served: Served) -> None:
    def history() -> str:
        lines = drawn(SCREENS["overview"](view(served, 120)), 120).splitlines()
        head = next(line for line in lines if line.startswith("source"))
        place = head.index("history")
        source = next(line for line in lines if line.startswith("a "))
        return source[: place + len("history")].split("  ")[-1].strip()

    assert history() == "3 d"
    served.board.post("a", SourceReport(window_bytes=50 << 30, window_left_bytes=3_200_000_000))
    assert history() == "3.2 GB"


def test_no_more_is_stored_than_was_read(served: Served) -> None:
    served.board.post("memory", SinkReport(acknowledged=99_999_999))
    assert drawn(SCREENS["overview"](view(served, 120)), 120).count("99,999,999") == 2


@pytest.mark.parametrize("width", [80, 120])
def test_an_overview_has_the_reasons_the_numbers_and_the_curves(width: int, served: Served) -> None:
    lines = drawn(SCREENS["overview"](view(served, width)), width).splitlines()
    text = "\n".join(lines)
    assert "stands still: the slot is gone" in text
    assert "see: penstock explain postgres.slot-missing" in text
    source = next(line for line in lines if line.startswith("a "))
    assert "stands still" in source and "12,355,479" in source and "17.5 s" in source
    assert re.search("[▁▂▃▄▅▆▇█]{12,60}$", source)
    sink = next(line for line in lines if line.startswith("memory"))
    assert "slow" in sink and "12,345,000" in sink and "17.5 s" in sink
    assert "by rate, 20 of 30" in text
    assert ("public.a_table_with_a_name_that_is_long_0 " in text) is (width == 120)


def test_the_other_screens_have_partitions_snapshots_and_letters(served: Served) -> None:
    shown = view(served, letters=LETTERS)
    sources = drawn(SCREENS["sources"](shown), 80)
    assert "a: 2 of 2 partitions, by attention" in sources
    assert "b: lost changes (slot-lost)" in sources
    assert "the server closed the connection" in sources
    snapshots = drawn(SCREENS["snapshots"](shown), 80)
    assert re.search(r"a.public.orders  reading  ███░+  1,234,567 .* 2 min", snapshots)
    assert re.search(r"a.public.users +done   20,000", snapshots)
    letters = drawn(SCREENS["letters"](shown), 80)
    assert "memory: 3 set aside since the start: too-large" in letters
    assert "2 dead letters, by age" in letters
    assert letters.index("too-large  a message") < letters.index("malformed")
    refused = drawn(SCREENS["letters"](view(served, letters="reading needs a token")), 80)
    assert "reading needs a token" in refused


def test_nothing_yet_is_said(tmp_path: Path) -> None:
    shown = view(Served(tmp_path))
    assert "no tables are known yet" in drawn(SCREENS["tables"](shown), 80)
    assert "no snapshot ran since the start" in drawn(SCREENS["snapshots"](shown), 80)
    assert "no dead letters" in drawn(SCREENS["letters"](shown), 80)


@pytest.mark.parametrize(
    ("screen", "order"), [(name, order) for name in SCREENS for order in ORDERS[name]]
)
def test_every_order_is_drawn_and_named(screen: str, order: str, served: Served) -> None:
    text = drawn(SCREENS[screen](view(served, 120, letters=LETTERS, order=order)), 120)
    assert f"by {order}" in text


def test_rows_are_in_the_order_that_was_chosen(served: Served) -> None:
    by_lag = drawn(SCREENS["sources"](view(served, order="lag")), 80)
    assert by_lag.index("\nb ") < by_lag.index("\nslot_of")
    by_name = drawn(SCREENS["tables"](view(served, 120, order="name")), 120)
    assert by_name.index("long_0 ") < by_name.index("long_10") < by_name.index("long_2 ")
    by_reason = drawn(SCREENS["letters"](view(served, letters=LETTERS, order="reason")), 80)
    assert by_reason.index("malformed") < by_reason.index("too-large  ")


def test_columns_of_the_highest_rank_go_first_and_names_are_shortened() -> None:
    columns = [
        Cells(head="name", cells=["x" * 30], least=10), number("a", ["1" * 10], rank=1),
        number("b", ["1" * 10], rank=2),
    ]  # fmt: skip
    assert [(c.head, w) for c, w in fitted(columns, 60)] == [("name", 30), ("a", 10), ("b", 10)]
    assert [(c.head, w) for c, w in fitted(columns, 40)] == [("name", 16), ("a", 10), ("b", 10)]
    assert [(c.head, w) for c, w in fitted(columns, 30)] == [("name", 18), ("a", 10)]
    assert [(c.head, w) for c, w in fitted(columns, 5)] == [("name", 10)]


def test_a_curve_goes_from_nothing_to_the_highest() -> None:
    assert curve([0, None, 5, 10]) == "▁ ▅█"
    assert curve([]) == ""
    assert curve([0.0, 0.0]) == "▁▁"
    assert curve([9, 0, 9], 2) == "▁█"


def test_numbers_are_as_a_person_says_them() -> None:
    times = [None, 0.0382, 17.5144, 300, 7300, 260_000]
    assert list(map(seconds, times)) == ["-", "38 ms", "17.5 s", "5 min", "2 h", "3 d"]
    sizes = [None, 310, 4_200_000, 5e13]
    assert list(map(size, sizes)) == ["-", "310 B", "4.2 MB", "50.0 TB"]
    assert (bar(0, 0, 4), bar(1, 2, 4), bar(3, 2, 4)) == ("░░░░", "██░░", "████")
