"""When a worker of a table sink prepares its next commit, and what is in it."""

from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

import pytest

from penstock.model.errors import Unavailable
from penstock.sinks.tables.commits import Commits, PreparedCommit, Work
from penstock.sinks.tables.settings import CommitSettings

SETTINGS = CommitSettings.model_validate({"rows": 10, "wait": "0ms"})


def work(rows: int) -> Work:
    return Work((), rows, 0.0, {3})


def is_waiting(found: "Future[object]") -> bool:
    with pytest.raises(NotYet):
        found.result(0.1)
    return True


def test_a_whole_commit_is_prepared_beside_one_that_is_written_and_a_small_one_after_it() -> None:
    commits = Commits(SETTINGS, 3)
    first, small, rest = work(2), work(4), work(7)
    commits.add(first)
    with ThreadPoolExecutor(1) as pool:
        found = commits.due()
        assert found == [first]
        commits.put(PreparedCommit(found, {}, {}))
        written = commits.take()
        assert written is not None
        due = pool.submit(commits.due)
        commits.add(small)
        assert is_waiting(due)
        commits.add(rest)
        assert due.result(60) == [small], "both are more than a commit"
        commits.put(PreparedCommit([small], {}, {}))
        due = pool.submit(commits.due)
        assert is_waiting(due), "one commit is prepared at most"
        commits.done(written)
        assert (first.pending, small.pending) == (set(), {3})
        assert commits.take() is not None
        assert is_waiting(due), "it is small, and one is being written"
        commits.done(PreparedCommit([small], {}, {}))
        assert due.result(60) == [rest]


def test_what_is_written_makes_room_and_a_failure_ends_all_waits() -> None:
    commits = Commits(SETTINGS, 3)
    commits.add(work(20))
    with ThreadPoolExecutor(3) as pool:
        added = pool.submit(commits.add, work(1))
        drained = pool.submit(commits.drain, 60.0)
        assert is_waiting(added)
        assert is_waiting(drained)
        found = commits.due()
        assert found is not None
        commits.put(PreparedCommit(found, {}, {}))
        assert is_waiting(added), "it is not written"
        written = commits.take()
        assert written is not None
        commits.done(written)
        added.result(60)
        assert is_waiting(pool.submit(commits.take))
        commits.fail(Unavailable("gone"))
        assert drained.result(60)
    assert commits.due() is None
    assert commits.take() is None
    assert commits.failure is not None
    assert commits.failure.message == "gone"
