"""What is news of a status, and how messages look."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.ops.board import Board
from penstock.ops.notifications import BETWEEN, Notification, StatusChanges, message, sample
from penstock.ops.reports import (
    GapReport,
    QueryReport,
    SinkReport,
    SnapshotsReport,
    SourceReport,
)
from penstock.ops.status import assess
from penstock.ops.thresholds import Thresholds
from tests.waiting import Clock

BEGAN = 1_800_000_000.0
BEFORE, AFTER = "2027-01-15T07:59:59.000+00:00", "2027-01-15T08:00:01.000+00:00"
FINE: dict[str, Any] = {"connected": True, "lag_bytes": 0, "buffered_events": 0}


class World:
    """A pipeline with the backend `a`, whose time the test advances."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.board = Board("/nowhere", clock=self.clock)
        self.changes = StatusChanges(host="h", settled=30, began=BEGAN)
        self.standby: str | None = None
        self.reads = True
        self.source: dict[str, Any] = dict(FINE)
        self.board.add("a", QueryReport(begun=True, blocked="", paused=None))

    def looks(self, seconds: float) -> list[Notification]:
        """What is reported in so many seconds, by a look each second."""
        found: list[Notification] = []
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += 1
            if self.reads:
                self.board.add("a", SourceReport(**self.source))
            status = assess(
                self.board.snapshot(),
                name="shop",
                version="1",
                backends=["a"],
                started=100.0,
                now=self.clock.now,
                thresholds=Thresholds(),
                standby=self.standby,
            )
            at = BEGAN + self.clock.now - 100
            found += self.changes.notifications(status, self.clock.now, at)
        return found

    def block(self, why: str) -> None:
        self.board.add("a", QueryReport(begun=True, blocked=why))


@pytest.fixture
def world() -> Iterator[World]:
    yield World()


def titles(found: list[Notification]) -> list[tuple[str, str]]:
    return [(each.level, each.title) for each in found]


def test_an_idle_pipeline_is_no_news(world: World) -> None:
    assert world.looks(600) == []


def test_health_that_turns_and_turns_back_is_news(world: World) -> None:
    world.looks(5)
    world.block("the slot is gone")
    assert world.looks(9) == []
    (bad,) = world.looks(60)
    assert (bad.kind, bad.level, bad.title) == ("health", "error", "health is unhealthy")
    (line,) = bad.lines
    assert line.startswith("backend a: stands still: the slot is gone. Remove the cause.")
    assert "https://" in line
    world.block("")
    (good,) = world.looks(1)
    assert (good.level, good.title, good.lines) == ("ok", "health is ok", [])


def test_degraded_is_news_once_it_has_lasted(world: World) -> None:
    world.looks(1)
    paused = {"since": "now", "by": "me", "until": None}
    world.board.add("a", QueryReport(paused=paused))
    assert world.looks(29) == []
    (bad,) = world.looks(100)
    assert (bad.level, bad.title) == ("warning", "health is degraded")
    world.board.add("a", QueryReport(paused=None))
    assert titles(world.looks(1)) == [("ok", "health is ok")]


def test_a_start_is_no_news_however_long_it_takes(world: World) -> None:
    world.board.add("a", QueryReport(begun=False))
    assert world.looks(300) == []
    world.board.add("a", QueryReport(begun=True))
    assert world.looks(300) == []


def test_a_reader_that_has_not_reported_yet_is_no_news(world: World) -> None:
    world.reads = False
    assert world.looks(19) == []
    world.reads = True
    assert world.looks(60) == []


def test_a_start_that_fails_is_news(world: World) -> None:
    world.board.add("a", QueryReport(begun=False, last_error="refused"))
    assert titles(world.looks(60)) == [("error", "health is unhealthy")]


def test_an_instance_that_loses_a_sick_pipeline_is_on_standby(world: World) -> None:
    world.block("gone")
    world.looks(80)
    world.standby = "another instance has it"
    assert titles(world.looks(1)) == [("ok", "health is standby")]


def test_flapping_is_one_notification_a_minute_and_a_summary(world: World) -> None:
    world.block("gone")
    assert len(world.looks(11)) == 1
    found = []
    for _ in range(10):  # ok for 2 s, unhealthy for 13 s
        world.block("")
        found += world.looks(2)
        world.block("gone")
        found += world.looks(13)
    assert [each.lines[0] for each in found] == [
        "this changed 8 times since the last notification",
        "this changed 8 times since the last notification",
    ]


def test_each_new_gap_is_news_once(world: World) -> None:
    def gaps(*at: str) -> None:
        rows = [{"id": each, "cause": "slot_lost", "at": each, "announced": True} for each in at]
        world.board.add("a/p", GapReport(stale=False, counts={"slot_lost": len(at)}, gaps=rows))

    gaps(BEFORE)
    assert world.looks(5) == []
    gaps(BEFORE, AFTER)
    (lost,) = world.looks(120)
    assert (lost.kind, lost.level) == ("gap", "error")
    assert lost.lines == ["backend a: partition p: slot_lost"]
    world.board.forget("a")
    assert [each.kind for each in world.looks(120)] == []


def test_dead_letters_are_counted_and_summed_up(world: World) -> None:
    world.board.add("s", SinkReport(connected=True, dead_letters={"too-large": 2}))
    (first,) = world.looks(1)
    assert (first.kind, first.level) == ("dead-letter", "warning")
    assert first.lines == ["sink s: too-large: 2 since the start"]
    for _ in range(30):
        world.board.add("s", SinkReport(dead_letters={"unfit": 50}))
        assert world.looks(1) == []
    (more,) = world.looks(BETWEEN)
    assert more.lines == ["sink s: unfit: 1,500 since the start"]


def test_changes_that_an_observer_failed_are_news(world: World) -> None:
    world.source["set_aside"] = 3
    (found,) = world.looks(1)
    assert found.lines == ["backend a: its observer failed: 3 since the start"]


def test_history_that_is_about_to_be_lost_is_news_and_so_is_its_end(world: World) -> None:
    world.source |= {"window_seconds": 86_400, "window_left_seconds": 3_600}
    risk = world.looks(1)
    assert titles(risk) == [("error", "changes may soon be lost")]
    assert "in 60 min" in risk[0].lines[0]
    world.source["window_left_seconds"] = 3_000  # another text, and no news
    assert [each.kind for each in world.looks(100)] == ["health"]
    world.source["window_left_seconds"] = 80_000
    found = {each.kind: each.title for each in world.looks(1)}
    assert found == {"at-risk": "changes are not at risk any more", "health": "health is ok"}


def test_a_snapshot_that_stores_nothing_for_ten_minutes_is_news(world: World) -> None:
    def reads(chunks: int, speed: int | None = 5) -> None:
        run = {"table": "public.t", "snapshot_id": "s1", "bytes_per_second": speed}
        world.board.add("a", SnapshotsReport(chunks=chunks, current=[run]))

    reads(0, None)  # it waits for its turn
    assert world.looks(900) == []
    reads(1)
    assert world.looks(599) == []
    reads(2)
    assert world.looks(600) == []
    (stuck,) = world.looks(100)
    assert (stuck.level, stuck.title) == ("warning", "a snapshot stores nothing")
    assert stuck.lines == ["backend a: nothing was stored of public.t for 10 min"]
    world.board.add("a", SnapshotsReport(current=[]))
    assert titles(world.looks(1)) == [("ok", "no snapshot is stuck any more")]


def test_a_notification_is_short(world: World) -> None:
    letters = {f"reason-{n:02}": 1 for n in range(30)}
    world.board.add("s", SinkReport(dead_letters=letters))
    (found,) = world.looks(1)
    assert len(found.lines) == 11
    assert found.lines[-1] == "and 20 more"
    world.block("x" * 10_000)
    (found,) = world.looks(11)
    assert len(found.lines[0]) == 501


NEWS = sample("shop", host="h<1>", at=BEGAN)


def test_json_has_the_fields() -> None:
    body = message(NEWS, "json")
    assert list(body) == ["kind", "level", "pipeline", "title", "lines", "see", "host", "at"]
    assert body["kind"] == "test"


def test_slack_takes_text_in_which_nothing_is_a_mention() -> None:
    (text,) = message(NEWS, "slack").values()
    assert text.startswith(
        ":large_green_circle: *shop: a test*\nnotifications come here\nh&lt;1&gt;"
    )


def test_teams_takes_an_adaptive_card() -> None:
    body = message(NEWS, "teams")
    (attachment,) = body["attachments"]
    assert body["type"] == "message"
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert (card["type"], card["actions"][0]["url"]) == ("AdaptiveCard", NEWS.see)
    runs = [run for block in card["body"] for run in block["inlines"]]
    assert runs[0] == {
        "type": "TextRun", "text": "shop: a test", "weight": "Bolder", "color": "good"
    }  # fmt: skip
