"""When bytes of the stream are taken: a transaction at once, and no wake-up for each row."""

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.feeds.postgres import transport
from penstock.feeds.postgres.transport import Gatherer
from tests.feeds.postgres.loop import TABLE, framed, transaction
from tests.wire.pages import begin, commit, insert, keepalive

ROW = framed(insert(TABLE, [1]))
BEGIN, COMMIT = framed(begin(16)), framed(commit(16))
QUIET = keepalive(wal_end=24)
ASKING = keepalive(wal_end=24, reply=True)


class Wire:
    """A transport whose bytes come at times of a clock of its own, in milliseconds; `looks` and
    `waits` count what was asked."""

    def __init__(self, *coming: tuple[float, bytes]) -> None:
        self._coming, self.now = list(coming), 0.0
        self.looks = self.waits = 0
        self.cost = 0.0  # of a look

    def receive(self) -> bytes:
        self.looks += 1
        found = [data for at, data in self._coming if at <= self.now]
        self._coming = self._coming[len(found) :]
        self.now += self.cost
        return b"".join(found)

    def wait(self, timeout: float) -> bool:
        self.waits += 1
        until = self.now + max(0.0, timeout) * 1e3
        self.now = min([until, *(max(at, self.now) for at, _ in self._coming[:1])])
        return bool(self._coming) and self._coming[0][0] <= self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds * 1e3

    def monotonic(self) -> float:
        return self.now / 1e3


def gathering(monkeypatch: pytest.MonkeyPatch, *coming: tuple[float, bytes]) -> tuple[Wire, Any]:
    wire = Wire(*coming)
    monkeypatch.setattr(
        transport, "time", SimpleNamespace(monotonic=wire.monotonic, sleep=wire.sleep)
    )
    gatherer: Any = Gatherer(wire)  # type: ignore[arg-type]
    return wire, lambda rest, timeout: b"".join(gatherer.take(rest / 1e3, timeout / 1e3))


def test_a_transaction_that_comes_row_by_row_is_taken_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [(10 + number / 70, ROW) for number in range(100)]
    wire, take = gathering(monkeypatch, (10, BEGIN), *rows, (11.5, COMMIT), (50, ROW))
    assert take(0, 250) == BEGIN + 100 * ROW + COMMIT
    assert wire.waits == 1
    assert wire.looks < 11 < wire.now < 11.8


def test_the_next_one_of_its_kind_takes_fewer_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [10.0 * number for number in range(1, 6)]
    coming = [
        (at + offset, data)
        for at in times
        for offset, data in [(0, BEGIN), *((n / 100, ROW) for n in range(1, 100)), (1, COMMIT)]
    ]
    wire, take = gathering(monkeypatch, *coming)
    looks = []
    for at in times:
        before = wire.looks
        assert take(0, 250).endswith(COMMIT)
        assert at + 1 <= wire.now < at + 1.3
        looks.append(wire.looks - before)
    assert max(looks[1:]) <= 4 < looks[0]


def test_a_trickle_gathers_while_a_page_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    singles = [(number, transaction(16 * number, number)) for number in range(1, 10)]
    wire, take = gathering(monkeypatch, *singles)
    assert take(3.5, 0) == b"".join(data for _, data in singles[:3])
    assert (wire.looks, wire.waits, wire.now) == (2, 0, 3.5)
    assert take(0.4, 0) == b"" and wire.now == pytest.approx(3.9)


def test_a_keepalive_that_wants_no_answer_waits_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = transaction(16, 1)
    wire, take = gathering(monkeypatch, (1, QUIET + QUIET), (20, whole), (40, QUIET), (45, ASKING))
    assert take(0, 250) == QUIET + QUIET + whole and wire.now == 20
    assert take(0, 10) == b"" and wire.now == 30
    assert take(0, 12) == QUIET and wire.now == pytest.approx(42)
    assert take(0, 250) == ASKING and wire.now == 45


def test_keepalives_that_never_end_hold_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, take = gathering(monkeypatch, *((number / 10, QUIET) for number in range(10_000)))
    wire.cost = 0.2
    assert set(take(0, 250)[5::23]) == {ord("k")}
    assert wire.now == pytest.approx(250, abs=1)


def test_single_rows_between_do_not_hide_how_long_others_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def large(at: float) -> list[tuple[float, bytes]]:
        return [(at, BEGIN), *((at + n / 100, ROW) for n in range(1, 100)), (at + 1, COMMIT)]

    single = transaction(32, 1)
    wire, take = gathering(monkeypatch, *large(10), (20, single), *large(30))
    assert take(0, 250).endswith(COMMIT)
    assert take(0, 250) == single
    before = wire.looks
    assert take(0, 250).endswith(COMMIT) and wire.looks - before <= 4


def test_nothing_waits_for_a_server_that_stops_in_the_middle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire, take = gathering(monkeypatch, (1, BEGIN + ROW), (900, ROW))
    assert take(0, 250) == BEGIN + ROW
    assert wire.now < 2
    assert take(0, 5) == b"" and wire.now < 7


def test_much_is_taken_before_the_rest_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    block = 1000 * ROW
    wire, take = gathering(monkeypatch, *((number / 2, block) for number in range(100)))
    assert len(take(100, 0)) < 4 * len(block) and wire.now < 100


def test_a_look_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, take = gathering(monkeypatch, (1, ROW))
    assert take(0, 0) == b""
    assert take(-1, -1) == b""
    assert (wire.now, wire.waits) == (0, 0)


def test_data_that_only_looks_like_keepalives_is_none() -> None:
    assert transport._is_quiet(QUIET * 3)
    for data in (QUIET + ASKING, QUIET + COMMIT, QUIET[:-1], ROW, COMMIT):
        assert not transport._is_quiet(data)
    assert transport._is_end(ROW + COMMIT) and transport._is_end(COMMIT + QUIET)
    assert not any(map(transport._is_end, (ROW, BEGIN, COMMIT[:-1], b"d", COMMIT + ROW)))
