"""How far what is durable is behind the server, by a scripted clock; and the oplog's window.

Cluster times follow src/mongo/db/pipeline/resume_token.cpp: a token is a KeyString that begins with
its timestamp. `operationTime` and `$clusterTime` of an idle server move every ten seconds
(src/mongo/db/repl/noop_writer.cpp).
"""

import gc
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.feeds.mongodb import lag
from penstock.feeds.mongodb.feed import PARTITION
from penstock.feeds.mongodb.lag import EVERY, FAILURES, Lag, OplogWindow, time_of_mark
from penstock.model.errors import PenstockError, Unavailable
from tests.mongodb.history import History
from tests.mongodb.reading import Read, Reading, Serve, feed_of
from tests.mongodb.server import ScriptedMongod
from tests.waiting import Clock, until

HOUR = 3600


def at(seconds: int, counter: int = 1) -> int:
    return seconds << 32 | counter


def mark(time: int) -> Mapping[str, Any]:
    """An idle token of MongoDB's: a high-water mark."""
    return {"token": {"_data": f"82{time:016X}2B0429296E1404"}}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_time_of_a_mark() -> None:
    assert time_of_mark(mark(at(1_700_000_000, 7))) == at(1_700_000_000, 7)
    assert time_of_mark({"time": [5, 2]}) == at(5, 2)
    assert time_of_mark({"token": {"_data": "68000000007365"}}) == 0, "of a stand-in"
    assert time_of_mark({}) == time_of_mark(None) == 0


def test_a_stream_that_is_hours_behind_says_so(clock: Clock) -> None:
    lag = Lag(at(1000), clock=clock)
    lag.answered(at(1000 + 3 * HOUR), mark(at(1001)), is_empty=False, is_stored=True)
    assert lag.seconds(0, is_stored=False) == 3 * HOUR
    assert lag.seconds(at(1001), is_stored=True) == 3 * HOUR - 1, "what was read is stored"


def test_the_lag_grows_while_nothing_is_read(clock: Clock) -> None:
    """The buffer is full, because the sink is away."""
    lag = Lag(at(1000), clock=clock)
    lag.answered(at(1000), mark(at(1000)), is_empty=True, is_stored=True)
    lag.answered(at(1001), mark(at(1001)), is_empty=False, is_stored=True)
    clock.now += HOUR
    assert lag.seconds(at(1000), is_stored=False) == HOUR + 1


def test_nothing_is_outstanding_after_an_empty_reply_that_reaches_the_server(clock: Clock) -> None:
    lag = Lag(at(1000), clock=clock)
    lag.answered(at(2000), mark(at(2000)), is_empty=False, is_stored=True)
    assert lag.seconds(at(2000), is_stored=True) != 0, "more may have come since"
    lag.answered(at(2000), mark(at(2000)), is_empty=True, is_stored=True)
    assert lag.seconds(at(2000), is_stored=True) == 0
    assert lag.seconds(at(1999), is_stored=False) != 0
    clock.now += HOUR
    assert lag.seconds(at(2000), is_stored=True) == HOUR, "an old answer proves nothing"


def test_an_empty_reply_that_does_not_reach_the_server_proves_nothing(clock: Clock) -> None:
    """mongos, while one of its shards has not answered."""
    lag = Lag(at(1000), clock=clock)
    lag.answered(at(2000), mark(at(1000)), is_empty=True, is_stored=True)
    lag.answered(at(2001), mark(at(1500)), is_empty=True, is_stored=True)
    assert lag.seconds(0, is_stored=True) == 501


def test_a_change_after_an_idle_night_is_not_a_night_old(clock: Clock) -> None:
    lag = Lag(at(1000), clock=clock)
    for _ in range(2):
        lag.answered(at(1000 + 9 * HOUR), mark(at(1000 + 9 * HOUR)), is_empty=True, is_stored=True)
    clock.now += 1
    lag.answered(at(1001 + 9 * HOUR), mark(at(1001 + 9 * HOUR)), is_empty=False, is_stored=True)
    assert lag.seconds(at(1000), is_stored=False) == 1


def test_tokens_without_a_time_are_judged_by_the_reply_before(clock: Clock) -> None:
    lag = Lag(0, clock=clock)
    none = {"token": {"_data": "68000000007365"}}
    lag.answered(at(2000), none, is_empty=True, is_stored=True)
    assert lag.seconds(0, is_stored=True) is None, "nothing is known of before"
    lag.answered(at(2003), none, is_empty=True, is_stored=True)
    assert lag.seconds(0, is_stored=True) == 0
    clock.now += 10
    assert lag.seconds(0, is_stored=True) == 13


def test_an_operation_time_that_is_behind_does_not_turn_the_clock_back(clock: Clock) -> None:
    """Of a primary that was just elected: src/mongo/db/service_entry_point_shard_role.cpp."""
    lag = Lag(at(1000), clock=clock)
    lag.answered(at(1100), mark(at(1001)), is_empty=False, is_stored=True)
    lag.answered(at(1050), mark(at(1002)), is_empty=False, is_stored=True)
    assert lag.seconds(0, is_stored=False) == 100


def test_the_window_is_what_the_oplog_has_before_us(clock: Clock) -> None:
    lag = Lag(at(10 * HOUR), clock=clock)
    assert lag.window(at(HOUR), None) == {"window_seconds": None, "window_left_seconds": None}
    lag.answered(at(13 * HOUR), mark(at(10 * HOUR)), is_empty=False, is_stored=False)
    found = lag.window(at(9 * HOUR), lag.seconds(0, is_stored=False))
    assert found == {"window_seconds": 4 * HOUR, "window_left_seconds": HOUR}
    assert lag.window(0, 5) == {"window_seconds": None, "window_left_seconds": None}
    assert lag.window(at(12 * HOUR), 3 * HOUR)["window_left_seconds"] == 0


def test_an_oldest_entry_that_cannot_be_asked_for_any_more_is_unknown() -> None:
    """It moves meanwhile: the window would be shown longer than it is."""
    window, gone = OplogWindow(Any), Unavailable("gone")  # type: ignore[arg-type]
    assert window.take((at(5), "")) == EVERY
    for _ in range(2):
        for _ in range(FAILURES - 1):
            assert window.take(gone) == EVERY
            assert (window.oldest, window.unknown) == (at(5), "")
        window.take((at(5), ""))
    for _ in range(FAILURES):
        window.take(gone)
    assert (window.oldest, window.unknown) == (0, "gone")
    assert window.take((0, "no")) > EVERY, "a right may be granted"
    assert (window.oldest, window.unknown) == (0, "no")
    window.take((at(9), ""))
    assert (window.oldest, window.unknown) == (at(9), "")


def test_the_oldest_entry_is_asked_for_until_nothing_refers_to_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task that is killed closes nothing."""
    answers: list[tuple[int, str] | PenstockError] = [(at(5), ""), Unavailable("gone"), (at(7), "")]

    def ask(_: Any) -> tuple[int, str]:
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, PenstockError):
            raise found
        return found

    monkeypatch.setattr(lag, "reach", ask)
    monkeypatch.setattr(lag, "EVERY", 0.001)

    def opened() -> threading.Thread:
        window = OplogWindow(Any)  # type: ignore[arg-type]
        before = set(threading.enumerate())
        window.open()
        window.open()
        more = set(threading.enumerate()) - before  # clients of other tests start some, too
        (thread,) = [each for each in more if each.name == "oplog-window"]
        until(lambda: window.oldest == at(7))
        return thread

    thread = opened()
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


# Through a whole following, at a scripted server.


def status_of(there: Reading) -> Mapping[str, Any]:
    return there.reader.status()


def test_a_following_that_catches_up_says_how_far_it_is_behind(
    server: ScriptedMongod, reading: Read
) -> None:
    server.history.insert(1)
    begun = feed_of(server).begin("beginning")[PARTITION]
    server.history.insert(2)
    server.history.advance(3 * HOUR)
    server.history.insert(3)
    there = reading(feed_of(server, page_rows=1), begun)
    there.read(1)
    assert 3 * HOUR <= status_of(there)["lag_seconds"] < 3 * HOUR + 60
    there.read(3)
    assert 3 * HOUR <= status_of(there)["lag_seconds"] < 3 * HOUR + 60, "read is not stored"
    last = str(there.places[-1])
    assert (status_of(there)["current"], status_of(there)["confirmed"]) == (last, None)
    there.reader.acknowledge(there.bookmark())
    assert status_of(there)["confirmed"] == last
    assert status_of(there)["lag_seconds"] != 0, "it has not been asked since"

    def proven() -> bool:
        there.step()
        return bool(status_of(there)["lag_seconds"] == 0)

    there.until(proven)
    server.history.insert(4)
    there.read(4)
    assert status_of(there)["lag_seconds"] > 0, "it is not stored"


def test_a_following_knows_when_its_position_leaves_the_oplog(
    server: ScriptedMongod, reading: Read
) -> None:
    server.history.advance(HOUR)
    server.history.insert(1)
    begun = feed_of(server).begin("now")[PARTITION]
    server.history.advance(3 * HOUR)
    server.history.insert(2)
    there = reading(feed_of(server), begun)
    there.read(1)
    until(lambda: status_of(there)["window_seconds"] is not None)
    found = status_of(there)
    assert 4 * HOUR <= found["window_seconds"] < 4 * HOUR + 60
    assert HOUR - 60 < found["window_left_seconds"] <= HOUR
    asked = [each for each in server.asked("find") if each["find"] == "oplog.rs"]
    assert len(asked) == 1, "not for each page"


@pytest.mark.parametrize("kind", ["primary", "mongos"])
def test_where_the_oplog_may_not_be_read_the_window_is_unknown_and_says_why(
    kind: Any, serve: Serve, reading: Read
) -> None:
    server = serve(History(), kind)
    server.denied = {"local.oplog.rs"}
    there = reading(feed_of(server))
    server.history.insert(1)
    there.read(1)
    why = until(lambda: status_of(there)["details"]["window"])
    assert ("mongos" in why) == (kind == "mongos")
    assert status_of(there)["window_seconds"] is None
    assert status_of(there)["window_left_seconds"] is None
