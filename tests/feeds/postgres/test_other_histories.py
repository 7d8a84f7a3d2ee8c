"""A server with another history than ours: restored, promoted, or another one altogether."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.feeds import HistoryLost, SnapshotWait
from penstock.feeds.postgres import PostgresFeed
from penstock.model.errors import SettingsError
from penstock.model.position import Place
from tests.feeds.postgres.copies import backup_of, copy_of
from tests.feeds.postgres.story import (
    FAST,
    SLOT,
    TABLE,
    Story,
    feed_of,
    insert,
    server_of,
    started,
)
from tests.servers import Postgres
from tests.waiting import until


def test_older_data_files_are_behind_us_and_begin_an_era(server: Postgres) -> None:
    story = started(server)
    server.stop()
    with_old_files = copy_of(server)
    server.start()
    insert(server, 11, 500, "undone")
    story.read(server, 490)
    server.stop()
    with with_old_files as restored:
        gap = story.lost(restored)
        assert gap.cause == "server_behind"
        insert(restored, 11, 20, "anew")
        # Older servers do not keep, over a stop, how far their slots are: some comes again.
        found = story.read(restored, 10, "anew", despite=[gap])
        assert not any("undone" in row for row in found)
        insert(restored, 501, 510, "later")
        assert all("later" in row for row in story.read(restored, 10))
    places = [Place(row["cursor"], row["ordinal"]) for row in story.rows]
    assert places == sorted(set(places)), "a sink would drop what it takes for old"
    assert {row["cursor"][:6] for row in story.rows[500:]} == {"e0001-"}
    assert len({row["event_id"] for row in story.rows}) == len(story.rows)


def test_older_data_files_that_were_written_to_since_have_diverged(server: Postgres) -> None:
    story = started(server)
    server.stop()
    with_old_files = copy_of(server)
    server.start()
    insert(server, 11, 20, "undone")
    story.read(server, 10)
    server.stop()
    with with_old_files as restored:
        # Past our position, with a transaction that is not where ours was.
        insert(restored, 11, 11, "another")
        insert(restored, 20, 399, "another")
        restored.execute("CREATE TABLE more AS SELECT generate_series(1, 9999)")
        feed = feed_of(restored)
        # Reading finds it, and finds it again: nothing is kept of it in between.
        for _ in range(2):
            with story.following(feed) as following, pytest.raises(HistoryLost) as caught:
                for _ in range(600):
                    following.read(0.1)
        gap = caught.value.gap
        assert gap.cause == "diverged"
        found = story.read(feed, 381, "another", despite=[gap])
        assert not any("undone" in row for row in found)
    assert len({row["event_id"] for row in story.rows}) == len(story.rows)


def test_another_cluster_is_a_gap(server: Postgres) -> None:
    story = started(server)
    with Postgres(version=server.version, settings=FAST) as other:
        other.execute(TABLE)
        gap = story.lost(other)
        assert gap.cause == "other_system"
        insert(other, 1, 5, "before the slot")
        with story.following(feed_of(other), despite=[gap]) as following:
            story.store(following)
        insert(other, 6, 10, "found")
        assert all("found" in row for row in story.read(other, 5))
    assert story.rows[-1]["cursor"].startswith("e0001-")
    assert story.lost(server).cause == "other_system"  # and never silently back


@contextmanager
def promoted(standby: Postgres) -> Iterator[Postgres]:
    """The standby, as a primary."""
    standby.execute("SELECT pg_promote()")
    yield standby


def replayed(standby: Postgres, lsn: str) -> None:
    query = "SELECT coalesce(pg_last_wal_replay_lsn() >= %s::pg_lsn, false)"
    until(lambda: standby.execute(query, [lsn])[0][0], problem=lambda: standby.log[-2000:])


def end_of(server: Postgres) -> str:
    return str(server.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])


@pytest.fixture(params=[16, 18])
def standby(request: pytest.FixtureRequest) -> Iterator[tuple[Postgres, Postgres]]:
    """(primary, standby) with the table; the slot is on the standby, and followed there."""
    with Postgres(version=request.param, settings=FAST) as primary:
        primary.execute(TABLE)
        made = backup_of(
            primary, "-R", "-C", "-S", "physical", settings={"hot_standby_feedback": True}
        )
        with made:
            replayed(made, end_of(primary))
            prepare_on_standby(made, primary)
            yield primary, made


def prepare_on_standby(standby: Postgres, primary: Postgres) -> None:
    """A slot on a standby waits until the primary logs which transactions run."""
    with ThreadPoolExecutor(1) as thread:
        making = thread.submit(feed_of(standby).begin)
        while not making.done():
            primary.execute("SELECT pg_log_standby_snapshot()")
            time.sleep(0.1)
        making.result()


def test_rows_are_read_from_a_standby_which_takes_no_heartbeat(
    standby: tuple[Postgres, Postgres],
) -> None:
    primary, second = standby
    insert(primary, 1, 5, "a")
    replayed(second, end_of(primary))
    feed = feed_of(second)
    with ThreadPoolExecutor(1) as thread:
        taken = thread.submit(rows_of_table, feed)
        while not taken.done():
            primary.execute("SELECT pg_log_standby_snapshot()")
            time.sleep(0.1)
    assert taken.result() == 5
    found = feed_of(second, heartbeat=10.0).check()
    assert [each.code for each in found if each.level == "error"] == ["postgres.standby-heartbeat"]
    assert not [each for each in feed.check() if each.level == "error"]


def rows_of_table(feed: PostgresFeed) -> int:
    wait = SnapshotWait(patience=30.0)
    with feed.snapshot("public", "t", None, wait) as snapshot, snapshot.source.opened() as pages:
        return sum(
            page.count for part in snapshot.plan(100, 2**19) for page in pages(part, 100, 2**19)
        )


def test_a_promotion_with_all_that_we_have_is_no_gap(standby: tuple[Postgres, Postgres]) -> None:
    primary, second = standby
    story = Story()
    insert(primary, 1, 10)
    story.read(second, 10)
    assert story.mark["timeline"] == 1
    primary.stop()
    with promoted(second):
        insert(second, 11, 20)
        story.read(second, 10)
    assert story.mark["timeline"] == 2
    assert len({row["event_id"] for row in story.rows}) == 20


@pytest.fixture(params=[*(pytest.param(one, marks=pytest.mark.thorough) for one in (15, 16)), 18])
def recovered(request: pytest.FixtureRequest) -> Iterator[tuple[Postgres, Postgres]]:
    """(a server, a base backup of it that comes up on a timeline of its own)."""
    with server_of(request.param) as server:
        server.execute(TABLE)
        feed_of(server).begin()
        yield server, backup_of(server, "-R")


def test_a_backup_that_was_recovered_is_another_timeline(
    recovered: tuple[Postgres, Postgres],
) -> None:
    server, backup = recovered
    with backup:
        replayed(backup, end_of(server))
        backup.execute("SELECT pg_promote()")
        story = started(server)
        gap = story.lost(backup)
        assert gap.cause == "other_timeline"
        with story.following(feed_of(backup), despite=[gap]) as following:
            story.store(following)
        insert(backup, 11, 20, "anew")
        assert all("anew" in row for row in story.read(backup, 10))
    places = [Place(row["cursor"], row["ordinal"]) for row in story.rows]
    assert places == sorted(set(places))


def test_a_promoted_standby_without_the_slot_is_a_gap(
    recovered: tuple[Postgres, Postgres],
) -> None:
    server, backup = recovered
    with backup:
        story = started(server)
        replayed(backup, end_of(server))
        server.stop()
        backup.execute("SELECT pg_promote()")
        assert story.lost(backup).cause == "slot_missing"


def test_a_failover_slot_is_kept_by_the_standby_and_promoted_with_it() -> None:
    settings = {**FAST, "wal_level": "logical"}
    with Postgres(version=18, settings=settings) as primary:
        primary.execute(TABLE)
        feed = feed_of(primary)
        feed.begin()  # made without, and altered at the next start
        story = started_with(primary, failover=True)
        backup = backup_of(
            primary, "-R", "-C", "-S", "physical",
            settings={"hot_standby_feedback": True, "sync_replication_slots": True},
        )  # fmt: skip
        with backup:
            synced = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary"
            deadline = time.monotonic() + 60
            number = 100
            while backup.execute(synced) != [(1,)]:
                assert time.monotonic() < deadline, backup.log[-2000:]
                # A copy is kept once the slot needs no log from before the standby was made.
                primary.execute("SELECT pg_log_standby_snapshot()")
                insert(primary, number, number)
                story.read(feed_of(primary, failover=True), 1)
                number += 1
            replayed(backup, end_of(primary))
            primary.stop()
            backup.execute("SELECT pg_promote()")
            insert(backup, 11, 20)
            story.read(backup, 10)
        assert story.mark["timeline"] == 2
        assert len({row["event_id"] for row in story.rows}) == len(story.rows)


def started_with(server: Postgres, **settings: Any) -> Story:
    story = Story()
    insert(server, 1, 10)
    story.read(feed_of(server, **settings), 10)
    ((failover,),) = server.execute("SELECT failover FROM pg_replication_slots")
    assert failover is True
    return story


@pytest.mark.parametrize("version", [15, 16])
def test_failover_on_an_older_server_is_refused_with_the_remedy(version: int) -> None:
    with server_of(version) as server:
        server.execute(TABLE)
        with pytest.raises(SettingsError, match="needs PostgreSQL 17") as caught:
            feed_of(server, failover=True).begin()
        assert "leave `failover` out" in caught.value.hint
        feed_of(server).begin()
        with pytest.raises(SettingsError, match="needs PostgreSQL 17"):
            feed_of(server, failover=True).follow(SLOT)
