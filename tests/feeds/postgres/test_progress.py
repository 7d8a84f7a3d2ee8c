"""What may be acknowledged, and when it is said."""

import pytest

from penstock.feeds.postgres.progress import LogProgress
from penstock.model.position import Place


def place(cursor: int, ordinal: int) -> Place:
    return Place(f"{cursor:08d}", ordinal)


# Each step of a story: (what happens, its arguments) and the durable position behind it.
_STORIES = {
    "an idle slot follows the server": [
        (("keepalive", 10), 10),
        (("keepalive", 20), 20),
    ],
    "an empty transaction is done when it ends": [
        (("committed", None, 10), 10),
        (("committed", None, 20), 20),
    ],
    "a transaction is done when its last change is durable": [
        (("opened",), 0),
        (("committed", place(5, 2), 10), 0),
        (("acknowledged", place(5, 0)), 0),
        (("acknowledged", place(5, 2)), 10),
    ],
    "nothing passes a transaction in flight": [
        (("opened",), 0),
        (("committed", place(5, 0), 10), 0),
        (("keepalive", 20), 0),
        (("committed", None, 30), 0),
        (("acknowledged", place(5, 0)), 30),
    ],
    "nothing passes an open transaction": [
        (("opened",), 0),
        (("keepalive", 20), 0),
        (("acknowledged", place(5, 7)), 0),
        (("committed", place(5, 7), 30), 30),
    ],
    "what is durable before its commit is seen counts at the commit": [
        (("opened",), 0),
        (("acknowledged", place(5, 3)), 0),
        (("committed", place(5, 3), 10), 10),
    ],
    "a later place covers the earlier transactions": [
        (("opened",), 0),
        (("committed", place(5, 0), 10), 0),
        (("opened",), 0),
        (("committed", place(6, 0), 20), 0),
        (("opened",), 0),
        (("committed", place(7, 0), 30), 0),
        (("acknowledged", place(6, 0)), 20),
        (("acknowledged", place(7, 0)), 30),
    ],
    "an earlier place takes nothing back": [
        (("opened",), 0),
        (("committed", place(5, 0), 10), 0),
        (("acknowledged", place(5, 0)), 10),
        (("acknowledged", place(1, 0)), 10),
        (("keepalive", 5), 10),
    ],
    "a keepalive between transactions in flight counts with the one before it": [
        (("opened",), 0),
        (("committed", place(5, 0), 10), 0),
        (("keepalive", 15), 0),
        (("opened",), 0),
        (("committed", place(6, 0), 20), 0),
        (("acknowledged", place(5, 0)), 15),
    ],
}


@pytest.mark.parametrize("story", _STORIES)
def test_durable_is_below_the_first_change_that_is_not(story: str) -> None:
    progress = LogProgress()
    for (kind, *arguments), durable in _STORIES[story]:
        if kind == "keepalive":
            progress.keepalive(*arguments, asked=False)
        elif kind == "opened":
            progress.opened(1)
        else:
            getattr(progress, kind)(*arguments)
        assert progress.durable == durable, (kind, arguments)


def test_what_we_follow_from_is_in_flight_until_it_is_acknowledged() -> None:
    progress = LogProgress(durable=100, after=(place(150, 3), 150))
    progress.keepalive(200, asked=False)
    assert progress.durable == 100
    progress.acknowledged(place(150, 3))
    assert progress.durable == 200


def test_what_we_follow_from_may_lie_before_the_slot() -> None:
    progress = LogProgress(durable=100, after=(place(50, 0), 50))
    progress.acknowledged(place(50, 0))
    assert progress.durable == 100


def test_received_is_everything_that_came() -> None:
    progress = LogProgress()
    progress.opened(1)
    progress.committed(place(5, 0), 10)
    progress.keepalive(20, asked=False)
    assert progress.reporting(0.0) == (20, 0)


@pytest.mark.parametrize(
    ("asked", "moved", "seconds", "due"),
    [
        (True, False, 0.0, True),
        (False, True, 0.5, False),
        (False, True, 1.0, True),
        (False, False, 1.0, False),
        (False, False, 9.9, False),
        (False, False, 10.0, True),
    ],
)
def test_a_report_is_due_when_asked_for_and_by_the_clock(
    asked: bool, moved: bool, seconds: float, due: bool
) -> None:
    progress = LogProgress(durable=5, now=100.0)
    progress.reporting(100.0)
    progress.keepalive(6 if moved else 5, asked=asked)
    assert progress.due(100.0 + seconds) is due


def test_one_answer_is_enough() -> None:
    progress = LogProgress(now=0.0)
    progress.keepalive(0, asked=True)
    assert progress.due(0.0)
    progress.reporting(0.0)
    assert not progress.due(0.0)


def test_reports_come_three_times_within_the_silence_that_counts_as_death() -> None:
    progress = LogProgress(patience=6.0, now=0.0)
    progress.reporting(0.0)
    assert not progress.due(1.9)
    assert progress.due(2.0)


def test_the_age_of_the_oldest_commit_that_is_not_durable() -> None:
    progress = LogProgress()
    assert progress.oldest is None
    progress.opened(77)
    assert progress.oldest == 77
    progress.committed(place(5, 0), 10)
    progress.opened(99)
    assert progress.oldest == 77
    progress.stored = place(5, 0)  # durable, and its position is not saved yet
    assert progress.oldest == 99
    assert progress.in_flight == 2
