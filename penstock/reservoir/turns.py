"""What a reader thread does in one turn: it reads one partition, or several over one connection."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.feeds import Following, SharedConnection
from penstock.page import Page
from penstock.position import PartitionId
from penstock.reservoir.part import PartitionReader

__all__ = ["FIRST_IDLE", "Turn", "turn_alone", "turn_together"]

# Seconds between two looks at a partition that has nothing, while threads have others to look at.
FIRST_IDLE, LONGEST_IDLE = 0.05, 0.5

_Read = Callable[[Following], Sequence[Page]]


class Turn(NamedTuple):
    """What a turn brought for one partition: pages, whether its connection was lost, and seconds
    until its next turn; or a failure that cannot be retried."""

    part: PartitionReader
    pages: Sequence[Page] = ()
    is_lost: bool = False
    wait: float = 0.0
    failure: PenstockError | None = None


def turn_alone(part: PartitionReader, timeout: float, *, full: bool) -> Turn:
    """Reads one partition, and waits at most `timeout` seconds for it; or, if the buffer is `full`,
    keeps its connection alive."""
    turn = _turn(part, _keep_alive if full else lambda following: following.read(timeout))
    if turn.is_lost or turn.pages or timeout:
        part.idle = 0.0
        return turn
    part.idle = min(max(FIRST_IDLE, 2 * part.idle), LONGEST_IDLE)
    return turn._replace(wait=part.idle)


def turn_together(
    shared: SharedConnection,
    reading: Sequence[PartitionReader],
    held: Collection[PartitionReader],
    timeout: float,
) -> list[Turn]:
    """Reads several partitions with one call, and waits at most `timeout` seconds for any of them;
    keeps those alive that are held back because the buffer is full."""
    turns = [_turn(part, _keep_alive) for part in held]
    turns += [_turn(part, None) for part in reading]
    ready = {part: part.following for part in reading if part.following is not None}
    if ready:
        pages_of = _read(shared, list(ready.values()), timeout)
        turns = [
            _turn(turn.part, pages_of(turn.part.partition)) if turn.part in ready else turn
            for turn in turns
        ]
    pause = 0.0 if timeout or any(turn.pages for turn in turns) else FIRST_IDLE
    return [turn._replace(wait=turn.wait or pause) for turn in turns]


def _keep_alive(following: Following) -> Sequence[Page]:
    return following.keep_alive()


def _read(
    shared: SharedConnection, followings: Sequence[Following], timeout: float
) -> Callable[[PartitionId], _Read]:
    """Reads once; each partition is given its own pages, or what the read raised."""
    found: dict[PartitionId, list[Page]] = {}
    failure: Exception | None = None
    try:
        for page in shared.read(followings, timeout):
            found.setdefault(page.partition, []).append(page)
    except Exception as error:
        failure = error

    def pages_of(partition: PartitionId) -> _Read:
        def read(_: Following) -> Sequence[Page]:
            if failure is not None:
                raise failure
            return found.get(partition, ())

        return read

    return pages_of


def _turn(part: PartitionReader, read: _Read | None) -> Turn:
    try:
        pages, wait = part.turn(read)
    except Exception as error:
        return Turn(part, failure=PenstockError.of(error, f"reading {part.partition}"))
    return Turn(part, pages, wait > 0, wait)
