"""History that is lost, as a real server says it: with the first getMore, late, or not at all."""

import json
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from bson import ObjectId

from penstock.feeds import HistoryLost
from penstock.feeds.mongodb import lag
from penstock.feeds.mongodb.cluster import is_another
from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.errors import Unavailable
from penstock.model.position import Bookmark, Place
from tests.mongodb.history import History
from tests.mongodb.reading import Read, Serve, feed_of
from tests.mongodb.server import ScriptedMongod


def stored(server: ScriptedMongod, reading: Read, *ids: int) -> Bookmark:
    """The bookmark after these were read."""
    before = reading(feed_of(server))
    before.until(lambda: before.reader.is_connected)
    for each in ids:
        server.history.insert(each)
    before.read(len(ids))
    place = before.reader.read_to
    found = before.reader.bookmark(place)
    before.close()
    assert found is not None
    return found


def rolled_over(history: History) -> None:
    """The oplog loses what was read, and more; what it has left are 8 and 9."""
    history.insert(7)
    history.insert(8)
    history.insert(9)
    history.trim(2)


# Lost history is recorded, and its policy obeyed.


@pytest.mark.slow
def test_going_on_begins_at_the_oldest_entry_that_there_is(
    server: ScriptedMongod, reading: Read
) -> None:
    bookmark = stored(server, reading, 1, 2)
    rolled_over(server.history)
    again = reading(feed_of(server, on_gap="continue"), bookmark)
    assert again.read(2) == ["8", "9"]
    assert again.causes == ["oplog_rolled_over"]
    assert again.gaps[0].after == str(bookmark.place)
    assert "no longer be in the oplog" in again.gaps[0].detail
    assert "oldest entry" in again.gaps[0].detail
    assert again.ends == [again.rows[0]["cursor"]]
    assert bookmark.place is not None
    assert again.places[0] > bookmark.place
    server.history.insert(10)
    assert again.read(3)[2:] == ["10"]
    # What is stored after the gap leads on without it.
    third = reading(feed_of(server), again.bookmark())
    server.history.insert(11)
    assert third.read(1) == ["11"]
    assert not third.gaps


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mongos", "no right to read local"])
def test_where_the_oplog_may_not_be_read_it_goes_on_now_and_says_why(
    kind: str, serve: Serve, reading: Read
) -> None:
    history = History()
    server = serve(history, "mongos" if kind == "mongos" else "primary")
    bookmark = stored(server, reading, 1)
    rolled_over(history)
    server.denied.add("local.oplog.rs")
    again = reading(feed_of(server, on_gap="continue"), bookmark)
    again.until(lambda: len(again.causes) == 2 and again.reader.is_connected)
    history.insert(10)
    assert again.read(1) == ["10"]
    assert again.causes == 2 * ["oplog_rolled_over"]
    why = "through mongos" if kind == "mongos" else "not authorized"
    assert "the last change" in again.gaps[0].detail
    assert why in again.gaps[1].detail
    assert "now" in again.gaps[1].detail


@pytest.mark.slow
def test_a_live_cursor_that_the_oplog_overran_is_lost_history(
    server: ScriptedMongod, reading: Read
) -> None:
    live = reading(feed_of(server, on_gap="continue"))
    server.history.insert(1)
    live.until(lambda: live.reader.is_connected)
    server.history.insert(2)
    assert live.read(2) == ["1", "2"]
    rolled_over(server.history)
    assert live.read(4)[2:] == ["8", "9"]
    assert live.causes == ["oplog_rolled_over"]
    assert live.places == sorted(set(live.places))


@pytest.mark.slow
@pytest.mark.parametrize("code", [286, 280, 260, 136, 9])
def test_a_live_cursor_that_lost_nothing_goes_on(
    server: ScriptedMongod, reading: Read, code: int
) -> None:
    live = reading(feed_of(server))
    server.history.insert(0)
    live.read(1)
    server.fail("getMore", code)
    server.history.insert(1)
    assert live.read(2) == ["0", "1"]
    assert not live.gaps


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fail", "continue", "resnapshot"])
def test_a_start_before_the_oplog_is_lost_history(
    server: ScriptedMongod, reading: Read, policy: str
) -> None:
    server.history.insert(1)
    server.history.advance(3600)
    server.history.insert(2)
    server.history.trim(1)
    start = datetime.fromtimestamp(0x6B000000, UTC).isoformat()
    begun = reading(feed_of(server, start=start, on_gap=policy))
    if policy != "fail":
        assert begun.read(1) == ["2"]
        assert {gap.policy for gap in begun.gaps} == {policy}
    else:
        begun.loss()
    assert begun.causes == ["oplog_rolled_over"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["primary", "mongos"])
def test_a_saved_position_is_checked_with_a_getmore(serve: Serve, reading: Read, kind: Any) -> None:
    """A late shard is waited for."""
    server = serve(History(), kind)
    bookmark = stored(server, reading, 1, 2)
    server.history.noop()
    feed, server.late = feed_of(server), int(kind == "mongos")
    (fine,) = feed.check_bookmark(PARTITION, bookmark)
    assert fine.level == "ok"
    rolled_over(server.history)
    (finding,) = feed.check_bookmark(PARTITION, bookmark)
    assert finding.level == "error"
    assert "every member" in finding.remedy
    assert not server.cursors


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["primary", "mongos"])
def test_a_check_that_takes_too_long_proves_nothing(serve: Serve, reading: Read, kind: Any) -> None:
    server = serve(History(), kind)
    bookmark = stored(server, reading, 1)
    server.history.noop()
    if kind == "mongos":
        server.late = 1000
    else:
        server.scan = 3
    (finding,) = feed_of(server, silence=2).check_bookmark(PARTITION, bookmark)
    assert finding.level == "warning"
    assert "not known" in finding.message


# A mongos, whose first replies are empty while a shard has not answered.


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_a_position_that_is_refused_after_an_empty_answer_each_time_is_a_gap(
    server: ScriptedMongod, reading: Read, policy: str
) -> None:
    """A getMore with a time limit (internalOperationResponseMaxMS) on its way to the token."""
    bookmark = stored(server, reading, 1, 2)
    rolled_over(server.history)
    server.late = 1
    again = reading(feed_of(server, on_gap=policy), bookmark)
    if policy == "fail":
        again.loss()
    else:
        assert again.read(2) == ["8", "9"]
    assert again.causes[:1] == ["oplog_rolled_over"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fail", "continue", "resnapshot"])
@pytest.mark.parametrize("late", [0, 1])
def test_a_refusal_that_the_oplog_contradicts_is_no_gap_however_often(
    server: ScriptedMongod, reading: Read, policy: str, late: int
) -> None:
    """As of a member whose oplog is shorter, until another one is read."""
    bookmark = stored(server, reading, 1, 2)
    server.late = late
    server.fail("getMore", 286, times=5)
    again = reading(feed_of(server, on_gap=policy), bookmark)
    again.until(lambda: len(again.errors) == 4)
    server.history.insert(3)
    assert again.read(1) == ["3"]
    assert not again.gaps


@pytest.mark.slow
@pytest.mark.parametrize("code", [286, 136])
def test_a_mongos_that_refuses_a_token_takes_the_time_of_the_last_change(
    serve: Serve, reading: Read, code: int
) -> None:
    server = serve(History(), "mongos")
    bookmark = stored(server, reading, 1, 2)
    server.history.insert(3)
    server.fail("getMore", code, times=2)
    again = reading(feed_of(server, on_gap="continue"), bookmark)
    assert again.read(1) == ["3"]
    assert again.causes == ["oplog_rolled_over"]
    assert "the last change" in again.gaps[0].detail


def test_a_late_shard_that_lost_nothing_is_waited_for(serve: Serve, reading: Read) -> None:
    server = serve(History(), "mongos")
    bookmark = stored(server, reading, 1)
    server.late = 2
    again = reading(feed_of(server), bookmark)
    server.history.insert(2)
    assert again.read(1) == ["2"]
    assert not again.gaps


@pytest.mark.slow
@pytest.mark.parametrize(("late", "level"), [(0, "warning"), (1, "warning"), (1000, "unknown")])
def test_a_start_before_the_oplog_of_a_late_shard_is_found(
    serve: Serve, late: int, level: str
) -> None:
    server = serve(History(), "mongos")
    server.history.insert(1)
    server.history.advance(3600)
    server.history.insert(2)
    server.history.trim(1)
    server.late = late
    start = datetime.fromtimestamp(0x6B000000, UTC).isoformat()
    silence = 2 if level == "unknown" else 30
    found = feed_of(server, start=start, silence=silence).check()
    (finding,) = [each for each in found if each.subject == "start"]
    assert finding.level == "warning"
    assert "oplog" in finding.message
    assert ("not known" in finding.message) == (level == "unknown")


# A token that the server does not find.


@pytest.mark.slow
def test_a_token_that_is_not_found_goes_on_at_its_time_and_loses_nothing(
    server: ScriptedMongod, reading: Read
) -> None:
    """280 on the same cluster: an event that is not found again."""
    before = reading(feed_of(server))
    before.until(lambda: before.reader.is_connected)
    server.history.insert(1, 2, 3)
    before.read(3)
    second = Bookmark(before.places[1], json.loads(before.rows[1]["mark"]))
    before.close()
    server.history.insert(4)
    server.fail("getMore", 280, "cannot resume stream; the event {_id: 7} was not found", times=2)
    again = reading(feed_of(server, on_gap="continue"), second)
    assert again.read(2) == ["3", "4"]
    assert again.causes == ["token_unknown"]
    assert "was not found" in again.gaps[0].detail or "{...}" in again.gaps[0].detail
    assert "_id: 7" not in again.gaps[0].detail, "it names a document's key"
    assert [row["event_id"] for row in again.rows[:1]] == [before.rows[2]["event_id"]]
    assert again.places[0] == before.places[2]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_a_token_of_a_part_of_an_event_that_is_whole_by_now_is_no_gap(
    server: ScriptedMongod, reading: Read, policy: str
) -> None:
    """An event of more than 16 MB with a document that it looks up, which has shrunk."""
    bookmark = stored(server, reading, 1, 2)
    server.history.insert(3, 4)
    server.fail("getMore", 280, "the event in the resumed stream was not large enough to be split")
    again = reading(feed_of(server, on_gap=policy), bookmark)
    assert again.read(2) == ["3", "4"]
    assert not again.gaps


@pytest.mark.slow
def test_what_is_refused_again_at_its_time_is_passed(server: ScriptedMongod, reading: Read) -> None:
    bookmark = stored(server, reading, 1)
    server.fail("getMore", 280, "found more than one document", times=4)
    again = reading(feed_of(server, on_gap="continue"), bookmark)
    again.until(lambda: len(again.causes) == 2 and again.reader.is_connected)
    server.history.insert(2)
    assert again.read(1) == ["2"]
    assert again.causes == ["token_unknown", "token_unknown"]


def test_another_cluster_is_asked_about_only_where_its_id_is_not_known(
    server: ScriptedMongod, reading: Read
) -> None:
    bookmark = stored(server, reading, 1)
    hints = []
    for _ in range(2):
        server.fail("getMore", 280, "the resume token was not found")
        with (
            pytest.raises(HistoryLost) as lost,
        ):
            feed_of(server).follow(PARTITION, bookmark).read(0.1)
        assert "the resume token was not found" in lost.value.message
        hints.append(lost.value.hint)
        server.denied.add("local.system.replset")
    assert ["another cluster?" in hint for hint in hints] == [False, True]


# Another cluster, and a restored one.


def idle(server: ScriptedMongod, reading: Read) -> Bookmark:
    """A bookmark whose token is a time, which every cluster takes."""
    before = reading(feed_of(server))
    before.until(lambda: before.reader.is_connected)
    server.history.insert(1)
    before.read(1)
    last = before.bookmark()
    server.history.noop()
    before.until(lambda: before.bookmark() != last)
    before.close()
    return before.bookmark()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "clock", "kind"),
    [
        ("fail", 0x6A000000, "primary"), ("fail", 0x6C000000, "mongos"),
        ("continue", 0x6A000000, "primary"), ("continue", 0x6C000000, "primary"),
    ],
)  # fmt: skip
def test_an_idle_token_of_another_cluster_is_a_gap(
    serve: Serve, reading: Read, policy: str, clock: int, kind: Any
) -> None:
    server, other = serve(History(), kind), History(seconds=clock)
    bookmark = idle(server, reading)
    other.insert("a")
    second = serve(other, kind)
    there = reading(feed_of(second, on_gap=policy), bookmark)
    if policy == "fail":
        there.loss()
        assert str(server.history.id) in there.gaps[0].detail
        assert str(other.id) in there.gaps[0].detail
    else:
        assert there.read(1) == ["a"]
        assert bookmark.place is not None
        assert there.places[0] > bookmark.place
        assert there.rows[0]["event_id"].split(":")[1].startswith("e0001-")
        third = reading(feed_of(second), there.bookmark())
        other.insert("b")
        assert third.read(1) == ["b"]
        assert not third.gaps
    assert there.causes == ["other_cluster"]


@pytest.mark.slow
def test_going_on_is_remembered_before_anything_was_read(
    server: ScriptedMongod, serve: Serve, reading: Read
) -> None:
    """The place is still one of the other cluster, and after everything in this one."""
    bookmark = idle(server, reading)
    other = History(seconds=0x6A000000)
    second = serve(other)
    there = reading(feed_of(second, on_gap="continue"), bookmark)
    there.until(lambda: there.reader.is_connected)
    kept = there.bookmark()
    there.close()
    assert kept.place == bookmark.place
    third = reading(feed_of(second), kept)
    other.insert("a")
    assert third.read(1) == ["a"]
    assert not third.gaps


@pytest.mark.slow
def test_files_that_were_restored_have_the_same_id_and_are_a_gap(
    server: ScriptedMongod, serve: Serve, reading: Read
) -> None:
    """Its oplog goes on after the backup, with the clock, so that every token is accepted."""
    backup = len(server.history.entries)
    bookmark = idle(server, reading)
    restored = server.history.copy(entries=backup)
    restored.advance(3600)
    restored.insert("new")
    second = serve(restored)
    feed = feed_of(second)
    there = reading(feed, bookmark)
    there.loss()
    assert there.causes == ["other_cluster"]
    assert "restored" in there.gaps[0].detail
    (finding,) = feed.check_bookmark(PARTITION, bookmark)
    assert finding.level == "error"


@pytest.mark.slow
def test_an_election_and_a_rolled_over_oplog_are_no_other_cluster(
    server: ScriptedMongod, reading: Read
) -> None:
    bookmark = idle(server, reading)
    server.history.noop()
    server.history.noop()
    server.history.trim(3)  # the token's time is the oldest entry; the place's is gone
    again = reading(feed_of(server), bookmark)
    server.history.insert(2)
    assert again.read(1) == ["2"]
    assert not again.gaps


def test_a_replica_set_that_becomes_a_sharded_cluster_is_another() -> None:
    assert is_another("rs0/6b", "mongos/6c")
    assert is_another("rs0/", "mongos/6c")
    assert is_another("rs0/6b", "mongos/")


def test_a_mark_without_a_cluster_is_accepted_once_and_completed(
    server: ScriptedMongod, reading: Read
) -> None:
    bookmark = idle(server, reading)
    assert bookmark.mark is not None
    cluster = f"rs0/{server.history.id}"
    assert bookmark.mark["cluster"] == cluster
    assert bookmark.mark["database"] == f"{feed_of(server).settings.database}/"
    old = {name: value for name, value in bookmark.mark.items() if name != "cluster"}
    again = reading(feed_of(server), bookmark._replace(mark=old))
    server.history.insert(2)
    again.read(1)
    assert json.loads(again.rows[0]["mark"])["cluster"] == cluster
    assert json.loads(again.rows[0]["mark"])["database"] == bookmark.mark["database"]
    assert (again.bookmark().mark or {})["cluster"] == cluster


@pytest.mark.slow
def test_without_the_right_the_name_of_the_set_is_compared(
    server: ScriptedMongod, serve: Serve, reading: Read
) -> None:
    server.denied.add("local.system.replset")
    feed = feed_of(server)
    assert (feed.begin()[PARTITION].mark or {})["cluster"] == "rs0/"
    (finding,) = [each for each in feed.check() if each.subject == "identity"]
    assert finding.level == "warning"
    assert "system.replset" in finding.remedy
    bookmark = idle(server, reading)
    same = History(seconds=0x6C000000)
    other = History(name="rs1", seconds=0x6C000000)
    for history, causes in ((same, []), (other, ["other_cluster"])):
        second = serve(history)
        second.denied |= {"local.oplog.rs", "local.system.replset"}
        there = reading(feed_of(second), Bookmark(bookmark.place, bookmark.mark))
        there.loss()
        assert there.causes == (causes or ["oplog_rolled_over"])


def test_a_right_that_is_taken_away_loses_no_id(server: ScriptedMongod, reading: Read) -> None:
    bookmark = idle(server, reading)
    server.denied.add("local.system.replset")
    again = reading(feed_of(server), bookmark)
    server.history.insert(2)
    again.read(1)
    assert (again.bookmark().mark or {})["cluster"] == f"rs0/{server.history.id}"


# A server that is behind.


def test_an_operation_time_before_the_token_is_no_lost_history(
    server: ScriptedMongod, reading: Read
) -> None:
    """A primary that was just elected: its majority snapshot is older, its cluster time is not."""
    bookmark = stored(server, reading, 1, 2)
    server.committed = server.history.oldest
    again = reading(feed_of(server, on_gap="continue"), bookmark)
    server.history.insert(3)
    assert again.read(1) == ["3"]
    assert not again.gaps
    assert not again.errors


@pytest.mark.slow
def test_a_secondary_that_lags_is_followed_when_it_has_caught_up(
    server: ScriptedMongod, serve: Serve, reading: Read
) -> None:
    bookmark = stored(server, reading, 1, 2)
    history = server.history
    second = serve(history, "secondary")
    server.others, second.others = [second], [server]
    second.applied = history.oldest
    feed = feed_of(server, connection=f"{server.url}&readPreference=secondary")
    again = reading(feed, bookmark)
    history.insert(3)
    for _ in range(3):
        assert again.step() is None
    assert not again.rows
    second.applied = None
    assert again.read(1) == ["3"]
    assert not again.gaps


@pytest.mark.slow
def test_a_server_that_is_behind_is_waited_for_and_then_told(
    server: ScriptedMongod, reading: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    bookmark = stored(server, reading, 1, 2)
    later = 0.0
    monkeypatch.setattr(lag, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later))
    server.committed = server.cluster_time = server.history.oldest
    feed = feed_of(server, on_gap="continue")
    again = reading(feed, bookmark)
    assert isinstance(again.step(), Unavailable)
    assert "so far" not in again.errors[-1].message
    assert not feed.status()
    later = 75.0
    again.step()
    assert "75 s" in again.errors[-1].message
    assert "75 s" in again.reader.status()["last_error"]
    assert feed.status()["state"] == "behind"
    assert not again.gaps
    server.committed = server.cluster_time = None
    server.history.insert(3)
    assert again.read(1) == ["3"]
    assert not again.gaps
    assert not feed.status()


@pytest.mark.slow
def test_a_place_is_never_used_twice(serve: Serve, reading: Read) -> None:
    """Over three clusters, each with an earlier clock than the one before."""
    bookmark: Bookmark | None = None
    places: list[Place] = []
    for number in range(3):
        history = History(seconds=0x6B000000 - number, id=ObjectId())
        history.insert(f"old{number}")
        server = serve(history)
        if bookmark is None:
            bookmark = feed_of(server).begin("beginning")[PARTITION]
        there = reading(feed_of(server, on_gap="continue"), bookmark)
        there.read(1)
        places += there.places
        bookmark = there.bookmark()
        there.close()
    assert places == sorted(set(places))
    assert len(places) == 3


def test_a_decoded_mark_is_the_one_that_is_saved(server: ScriptedMongod, reading: Read) -> None:
    there = reading(feed_of(server))
    there.until(lambda: there.reader.is_connected)
    server.history.insert(1, 2)
    there.read(2)
    first = there.reader.bookmark(there.places[0])
    assert first is not None
    assert first.mark is not None
    assert json.loads(there.rows[0]["mark"]) == {
        name: value for name, value in first.mark.items() if name not in ("place", "filter")
    }
