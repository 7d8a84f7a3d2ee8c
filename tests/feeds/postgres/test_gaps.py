"""Changes that a slot lost: noticed on real servers, never silent, and what comes behind it."""

import time
from typing import Any

import pytest

from penstock.feeds import HistoryLost
from penstock.feeds.postgres import PostgresFeed
from penstock.model.errors import PositionLost, Unavailable
from penstock.model.position import Bookmark
from penstock.reading.gaps import GapLog
from penstock.reading.reader import PartitionReader
from tests.feeds.postgres.story import SLOT, TABLE, feed_of, insert, server_of, started
from tests.servers import Postgres
from tests.slots import drop_slot
from tests.waiting import Clock


def test_a_place_and_its_mark_follow_on_without_a_gap(server: Postgres) -> None:
    story = started(server)
    insert(server, 11, 20)
    story.read(server, 10)
    server.kill()
    server.start()
    insert(server, 21, 30)
    story.read(server, 10)
    assert len({row["event_id"] for row in story.rows}) == 30


def test_a_position_without_a_mark_still_works(server: Postgres) -> None:
    story = started(server)
    story.mark = {}
    insert(server, 11, 20)
    story.read(server, 10)
    assert story.mark["timeline"] == 1


def test_a_slot_that_was_dropped_is_a_gap_and_made_anew(server: Postgres) -> None:
    story = started(server)
    drop_slot(server, SLOT)
    insert(server, 11, 20, "lost")
    gap = story.lost(server)
    assert (gap.cause, gap.policy) == ("slot_missing", "fail")
    assert story.lost(server, on_gap="continue").policy == "continue"
    assert story.lost(server).cause == "slot_missing"  # looking has made nothing
    with story.following(feed_of(server), despite=[gap]) as following:
        begins = following.begins
    insert(server, 21, 30, "found")
    # What happened in between is only told by the mark: nothing was stored with the new slot.
    assert story.lost(server).cause == "slot_recreated"
    found = story.read(server, 10, despite=[story.lost(server)])
    assert all("found" in row for row in found)
    assert story.rows[10]["cursor"] > begins > story.rows[9]["cursor"]
    insert(server, 31, 32)
    story.read(server, 2)  # and from here on all is well


@pytest.mark.parametrize("policy", ["fail", "continue", "resnapshot"])
def test_a_server_whose_pgoutput_is_away_for_a_while_has_lost_nothing(
    server: Postgres, policy: str
) -> None:
    """58P01, as while the server's package is replaced."""
    story, clock, gaps = started(server), Clock(), GapLog()
    insert(server, 11, 20)
    server.execute("ALTER DATABASE postgres SET dynamic_library_path = '/nowhere'")
    feed = feed_of(server, on_gap=policy)
    reader = PartitionReader(feed, SLOT, story.bookmark, gaps, clock=clock)
    until, refused, count = clock.now + 8.0, 0, 0
    deadline = time.monotonic() + 60
    while count < 10:
        assert time.monotonic() < deadline
        step = reader.step(0.2)
        assert step.error is None or isinstance(step.error, Unavailable), step.error
        refused += "pgoutput" in str(step.error)
        count += sum(page.count for page in step.pages)
        clock.now += step.wait or 0.1
        if clock.now > until:
            server.execute("ALTER DATABASE postgres RESET dynamic_library_path")
    reader.disconnect()
    assert refused > 3
    assert (count, gaps.rows()) == (10, {})


def test_a_slot_that_goes_while_we_connect_is_a_gap(server: Postgres) -> None:
    """We looked, and it was there."""
    story = started(server)

    class Slow(PostgresFeed):
        def _begin(self, *given: Any) -> Any:
            begin = super()._begin(*given)
            drop_slot(server, SLOT)
            return begin

    feed = feed_of(server)
    with pytest.raises(HistoryLost) as caught:
        Slow(feed.settings).follow(SLOT, Bookmark(story.after, story.mark))
    assert caught.value.gap.cause == "slot_missing"


def test_an_idle_slot_moves_as_far_as_was_stored_and_no_further(server: Postgres) -> None:
    story = started(server)
    feed = feed_of(server)
    with story.following(feed) as following:
        assert story.after is not None
        following.acknowledge(Bookmark(story.after, story.mark))
        before = confirmed(server)
        server.execute("CREATE TABLE noise (id int)")
        for _ in range(15):
            following.read(0.1)
        assert confirmed(server) == before
        deadline = time.monotonic() + 60
        while confirmed(server) == before:
            assert time.monotonic() < deadline
            story.store(following)
    assert story.read(server, 0) == []


def confirmed(server: Postgres) -> str:
    rows = server.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [SLOT]
    )
    return str(rows[0][0])


@pytest.mark.parametrize(("kept", "window"), [("1GB", 1 << 30), ("-1", None)])
def test_how_much_log_the_slot_has_left_is_told(
    kept: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.feeds.postgres.watch.INTERVAL", 0.1)
    with server_of(16, max_slot_wal_keep_size=kept) as server:
        server.execute(TABLE)
        feed_of(server).begin()
        with started(server).following(feed_of(server)) as following:
            for _ in range(10):
                following.read(0.2)
            found = following.status()
            assert found["window_bytes"] == window
            if window is None:
                assert found["window_left_bytes"] is None
            else:
                assert 0 <= window - found["window_left_bytes"] < 1 << 27


@pytest.mark.parametrize("version", [15, 16, 18])
def test_a_slot_that_lost_its_log_is_made_anew(version: int) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with server_of(version, **settings) as server:
        server.execute(TABLE)
        feed_of(server).begin()
        story = started(server)
        # While it is followed: the server ends the reader.
        with (
            story.following(feed_of(server)) as following,
            pytest.raises((Unavailable, PositionLost)),
        ):
            for _ in range(40):
                server.execute(
                    "CREATE TABLE noise AS SELECT repeat('x', 500) FROM generate_series(1, 40000)"
                )
                server.execute("DROP TABLE noise; SELECT pg_switch_wal(); CHECKPOINT")
                if server.execute("SELECT wal_status FROM pg_replication_slots")[0][0] == "lost":
                    break
            for _ in range(600):
                following.read(0.1)
        gap = story.lost(server)
        assert gap.cause == "slot_lost"
        for ask in (feed_of(server).begin, lambda: feed_of(server).follow(SLOT)):
            with pytest.raises(PositionLost, match=r"is lost .*anew.* max_slot_wal_keep_size"):
                ask()
        found = {each.subject: each.level for each in feed_of(server).check()}
        assert found[f"slot {SLOT}"] == "error"
        with story.following(feed_of(server), despite=[gap]) as following:
            story.store(following)
        insert(server, 21, 30, "found")
        assert all("found" in row for row in story.read(server, 10))
