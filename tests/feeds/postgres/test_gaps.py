"""Lost history on real servers: noticed, never silent, and what comes behind it."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.demo.programs import postgres_bin
from penstock.demo.servers import Postgres
from penstock.errors import PositionLost, SettingsError, Unavailable
from penstock.feeds import Following, Gap, HistoryLost, Mark
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.feeds.postgres.connect import connect_replication
from penstock.feeds.postgres.slot import identify_system
from penstock.position import PartitionId, Place
from tests.feeds.postgres.copies import backup_of, copy_of

pytestmark = pytest.mark.live

SLOT = PartitionId("s")
FAST = {"fsync": False, "full_page_writes": False}
TABLE = "CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t"


@pytest.fixture(params=[15, 16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A server of its own, because it is stopped and copied; with the table and the slot."""
    try:
        postgres_bin(request.param)
    except Unavailable as error:
        pytest.skip(str(error))
    with Postgres(version=request.param, settings=FAST) as made:
        made.execute(TABLE)
        feed_of(made).prepare()
        yield made


def feed_of(server: Postgres, **settings: Any) -> PostgresFeed:
    return PostgresFeed(
        PostgresSettings(connection=server.url, slot=SLOT, publication="p", silence=10, **settings)
    )


class Story:
    """One reader over all the servers that a test shows it: its place and mark are the stored ones
    of a pipeline, and every change that it got is in `rows`."""

    def __init__(self) -> None:
        self.after: Place | None = None
        self.mark: Mark = {}
        self.rows: list[dict[str, Any]] = []
        self.gaps: list[Gap] = []

    def read(
        self,
        server: Postgres | PostgresFeed,
        count: int,
        text: str = "",
        *,
        despite: Gap | None = None,
    ) -> list[str]:
        """Reads, stores and acknowledges `count` changes with this text in them, and what comes
        with them; the images of all."""
        feed = feed_of(server) if isinstance(server, Postgres) else server
        with self.following(feed, despite) as following:
            got: list[dict[str, Any]] = []
            deadline = time.monotonic() + 30
            while sum(text in row["after"] for row in got) < count:
                assert time.monotonic() < deadline, f"{len(got)}, but not {count}"
                for page in following.read(0.2):
                    for batch in feed.decoder("json").decode(page):
                        got += batch.to_pylist()
            self.rows += got
            if got:
                self.after = Place(got[-1]["cursor"], got[-1]["ordinal"])
                following.acknowledge(self.after)
            self.store(following)
        return [row["after"] for row in got]

    def store(self, following: Following) -> None:
        following.read(0.1)
        self.mark = following.mark(self.after) or self.mark
        following.settle(self.mark)

    @contextmanager
    def following(self, feed: PostgresFeed, despite: Gap | None = None) -> Iterator[Following]:
        following = patiently(lambda: feed.follow(SLOT, self.after, self.mark, despite=despite))
        try:
            yield following
        finally:
            following.close()

    def lost(self, server: Postgres, **settings: Any) -> Gap:
        """The gap that following fails with."""
        with pytest.raises(HistoryLost) as caught:
            patiently(lambda: feed_of(server, **settings).follow(SLOT, self.after, self.mark))
        assert caught.value.hint
        assert caught.value.gap.after == ("" if self.after is None else str(self.after))
        return caught.value.gap


def patiently(follow: Callable[[], Following]) -> Following:
    """Follows, once the server has noticed that the reader before is gone."""
    deadline = time.monotonic() + 15
    while True:
        try:
            return follow()
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def insert(server: Postgres, first: int, last: int, text: str = "x") -> None:
    server.execute(
        "INSERT INTO t SELECT g, %s FROM generate_series(%s::int, %s::int) g",
        (text, first, last),
    )


def drop_slot(server: Postgres) -> None:
    server.execute(f"SELECT pg_drop_replication_slot('{SLOT}')")


def started(server: Postgres) -> Story:
    """A story with ten changes read."""
    story = Story()
    insert(server, 1, 10)
    story.read(server, 10)
    return story


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
    drop_slot(server)
    insert(server, 11, 20, "lost")
    gap = story.lost(server)
    assert (gap.cause, gap.continues) == ("slot_missing", False)
    assert story.lost(server, on_gap="continue").continues
    assert story.lost(server).cause == "slot_missing"  # looking has made nothing
    with story.following(feed_of(server), despite=gap) as following:
        begins = following.begins
    insert(server, 21, 30, "found")
    # What happened in between is only told by the mark: nothing was stored with the new slot.
    assert story.lost(server).cause == "slot_recreated"
    found = story.read(server, 10, despite=story.lost(server))
    assert all("found" in row for row in found)
    assert story.rows[10]["cursor"] > begins > story.rows[9]["cursor"]
    insert(server, 31, 32)
    story.read(server, 2)  # and from here on all is well


def test_a_slot_that_was_made_anew_is_a_gap(server: Postgres) -> None:
    story = started(server)
    drop_slot(server)
    insert(server, 11, 20, "lost")
    feed_of(server).prepare()
    insert(server, 21, 30, "found")
    gap = story.lost(server)
    assert gap.cause == "slot_recreated"
    assert all("found" in row for row in story.read(server, 10, despite=gap))


def test_a_slot_that_somebody_else_read_is_a_gap(server: Postgres) -> None:
    story = started(server)
    insert(server, 11, 20, "taken")
    server.execute(f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_insert_lsn())")
    assert story.lost(server).cause == "slot_recreated"


def test_an_idle_slot_moves_as_far_as_was_stored_and_no_further(server: Postgres) -> None:
    story = started(server)
    feed = feed_of(server)
    with story.following(feed) as following:
        assert story.after is not None
        following.acknowledge(story.after)
        before = confirmed(server)
        server.execute("CREATE TABLE noise (id int)")
        for _ in range(15):
            following.read(0.1)
        assert confirmed(server) == before
        deadline = time.monotonic() + 15
        while confirmed(server) == before:
            assert time.monotonic() < deadline
            story.store(following)
    assert story.read(server, 0) == []


def confirmed(server: Postgres) -> str:
    rows = server.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [SLOT]
    )
    return str(rows[0][0])


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
        found = story.read(restored, 10, "anew", despite=gap)
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
        with story.following(feed) as following, pytest.raises(Unavailable, match="none at our"):
            for _ in range(100):
                following.read(0.1)
        with pytest.raises(HistoryLost) as caught:
            patiently(lambda: feed.follow(SLOT, story.after, story.mark))
        gap = caught.value.gap
        assert gap.cause == "diverged"
        found = story.read(feed, 381, "another", despite=gap)
        assert not any("undone" in row for row in found)
    assert len({row["event_id"] for row in story.rows}) == len(story.rows)


def test_another_cluster_is_a_gap(server: Postgres) -> None:
    story = started(server)
    with Postgres(version=server.version, settings=FAST) as other:
        other.execute(TABLE)
        gap = story.lost(other)
        assert gap.cause == "other_system"
        insert(other, 1, 5, "before the slot")
        with story.following(feed_of(other), despite=gap) as following:
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
    deadline = time.monotonic() + 30
    query = "SELECT coalesce(pg_last_wal_replay_lsn() >= %s::pg_lsn, false)"
    while standby.execute(query, [lsn]) != [(True,)]:
        assert time.monotonic() < deadline, standby.log[-2000:]
        time.sleep(0.05)


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
        making = thread.submit(feed_of(standby).prepare)
        while not making.done():
            primary.execute("SELECT pg_log_standby_snapshot()")
            time.sleep(0.1)
        making.result()


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


@pytest.fixture(params=[15, 16, 18])
def recovered(request: pytest.FixtureRequest) -> Iterator[tuple[Postgres, Postgres]]:
    """(a server, a base backup of it that comes up on a timeline of its own)."""
    try:
        postgres_bin(request.param)
    except Unavailable as error:
        pytest.skip(str(error))
    with Postgres(version=request.param, settings=FAST) as server:
        server.execute(TABLE)
        feed_of(server).prepare()
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
        with story.following(feed_of(backup), despite=gap) as following:
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
        feed.prepare()  # made without, and altered at the next start
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
    try:
        server = Postgres(version=version, settings=FAST)
    except Unavailable as error:
        pytest.skip(str(error))
    with server:
        server.execute(TABLE)
        with pytest.raises(SettingsError, match="needs PostgreSQL 17") as caught:
            feed_of(server, failover=True).prepare()
        assert "leave `failover` out" in caught.value.hint
        feed_of(server).prepare()
        with pytest.raises(SettingsError, match="needs PostgreSQL 17"):
            feed_of(server, failover=True).follow(SLOT, None)


@pytest.mark.parametrize("version", [15, 16, 18])
def test_a_slot_that_lost_its_log_is_made_anew(version: int) -> None:
    settings = {
        **FAST, "max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"
    }  # fmt: skip
    try:
        server = Postgres(version=version, settings=settings)
    except Unavailable as error:
        pytest.skip(str(error))
    with server:
        server.execute(TABLE)
        feed_of(server).prepare()
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
            for _ in range(100):
                following.read(0.1)
        gap = story.lost(server)
        assert gap.cause == "slot_lost"
        with story.following(feed_of(server), despite=gap) as following:
            story.store(following)
        insert(server, 21, 30, "found")
        assert all("found" in row for row in story.read(server, 10))


def test_a_frozen_server_is_not_waited_for_without_limit(server: Postgres) -> None:
    """It accepts connections, by the kernel's queue, and never says a word."""
    feed = PostgresFeed(
        PostgresSettings(connection=server.url, slot=SLOT, publication="p", connect_timeout=2)
    )
    with connect_replication(feed._settings) as connection:
        pid = connection.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            before = time.monotonic()
            with pytest.raises(Unavailable, match="no answer"):
                identify_system(connection)
            assert time.monotonic() - before < 5
        finally:
            os.kill(pid, signal.SIGCONT)
