"""What is done and what is left of a snapshot; pure."""

from typing import Any

import orjson
import pytest

from penstock.model.errors import Malformed
from penstock.snapshots.work import (
    PartReading,
    SnapshotPart,
    SnapshotPlan,
    Work,
    header_of,
    read_header,
)

PLAN = SnapshotPlan(
    ranges=["a", "b", "c"], version="v", mark="7", lsn="0/1", position="1:0", start=1
)


def chunk(number: int, rows: int = 1) -> dict[str, Any]:
    return {"chunk": number, "rows": rows, "bytes": 1, "crc32": 0, "lsn": "0/1", "position": "1:0"}


def read(work: Work, part: SnapshotPart, count: int) -> PartReading:
    """Reads a part to its end, with so many chunks."""
    reading = PartReading()
    for _ in range(count):
        number, _ = work.number(reading)
        reading.chunks.append(chunk(number))
    work.finish(part, reading, ("1:0", "0/1"))
    return reading


def test_a_part_that_was_not_finished_is_read_from_its_beginning() -> None:
    work = Work()
    work.plan = PLAN
    parts = work.set_parts()
    assert [work.take() for _ in range(4)] == [*parts, None]
    read(work, parts[0], 2)
    reading = PartReading()
    work.number(reading)
    work.abandon(reading)
    assert (work.abandoned, work.done, work.is_complete) == ({2}, {0}, False)
    again = work.set_parts(["a since 7"])
    assert again == [SnapshotPart(1, "b"), SnapshotPart(2, "c"), SnapshotPart(None, "a since 7")]
    work.discarded()
    assert work.holes == 0, "no later chunk is there"
    for part in again:
        read(work, part, 1)
    assert work.is_complete
    assert [one["chunk"] for one in work.all_chunks()] == [0, 1, 2, 3, 4]


def test_what_is_read_again_with_fewer_chunks_leaves_holes_to_fill() -> None:
    work = Work()
    work.plan = PLAN
    first, second, third = work.set_parts()
    reading = PartReading()
    for _ in range(3):
        work.number(reading)
    work.abandon(reading)
    read(work, second, 1)
    read(work, third, 1)
    work.set_parts()
    work.discarded()
    read(work, first, 1)
    assert work.holes == 2
    for _ in range(2):
        number, was_used = work.number(PartReading())
        assert was_used
        work.add(chunk(number, 0))
    assert [one["chunk"] for one in work.all_chunks()] == [0, 1, 2, 3, 4]
    assert (work.holes, work.is_complete) == (0, True)


def stored(part: int | None, *numbers: int, last: bool) -> tuple[Any, Any]:
    """The last chunk of a reading that has taken these numbers, with its header."""
    header = header_of(
        SnapshotPart(part, ""), PartReading(numbers=[*numbers]), rows=1, place=("0/1", "1:0"),
        is_last=last,
    )  # fmt: skip
    return chunk(numbers[-1]), read_header(header.decode())


def test_chunks_of_another_process_are_taken_by_their_headers() -> None:
    work = Work()
    work.restore(
        PLAN,
        [
            stored(0, 0, last=False), stored(0, 0, 2, last=True),  # whole
            stored(1, 1, last=False),  # in the middle of a reading ...
            stored(1, 3, last=True),  # ... and another one of the same range, which is whole
            stored(2, 4, last=False),
            stored(None, 5, last=True),  # under a snapshot that is gone
        ],
    )  # fmt: skip
    assert work.done == {0, 1}
    assert sorted(one["chunk"] for one in work.chunks) == [0, 2, 3]
    assert work.abandoned == {1, 4, 5}
    assert work.set_parts() == [SnapshotPart(2, "c")]


def test_a_reading_of_which_chunks_are_gone_is_not_whole() -> None:
    work = Work()
    lost_first = stored(0, 0, 1, 2, last=True), stored(0, 0, 1, last=False)
    lost_middle = stored(1, 3, last=False), stored(1, 3, 4, 5, last=True)
    work.restore(PLAN, [*lost_first, *lost_middle, stored(2, 6, last=True)])
    assert (work.done, work.abandoned) == ({2}, {1, 2, 3, 5})


def test_chunks_that_go_on_after_another_process_are_numbered_without_a_hole() -> None:
    work = Work()
    work.restore(PLAN, [stored(0, 1, last=True), stored(1, 3, last=False), stored(2, 5, last=True)])
    assert work.holes == 3
    (left,) = work.set_parts()
    work.discarded()
    assert read(work, left, 3).numbers == [0, 2, 3]
    while work.holes:
        work.add(chunk(work.number(PartReading())[0], 0))
    assert [one["chunk"] for one in work.all_chunks()] == [0, 1, 2, 3, 4, 5]


def test_a_header_that_is_not_ours_is_malformed() -> None:
    for text in ("", "x", "{}", orjson.dumps({"range": 1}).decode(), "[]"):
        with pytest.raises(Malformed):
            read_header(text)


def test_a_plan_that_does_not_fit_is_forgotten() -> None:
    work = Work()
    work.plan = PLAN
    read(work, work.set_parts()[0], 2)
    work.forget()
    assert (work.plan, work.done, work.all_chunks(), work.abandoned) == (None, set(), [], {0, 1})


def test_its_place_is_the_first_of_what_is_left() -> None:
    """A range without rows has one, too: a change of it may come after that."""
    work = Work()
    work.plan = PLAN
    first, second, third = work.set_parts()
    assert work.place == ("1:0", "0/1")
    work.finish(first, PartReading(), ("3:0", "0/3"))
    work.finish(second, PartReading(), ("2:0", "0/2"))
    work.finish(third, PartReading(), ("4:0", "0/4"))
    assert work.place == ("2:0", "0/2")
    work.forget()
    work.plan = PLAN
    work.finish(third, PartReading(), ("4:0", "0/4"))
    assert work.place == ("4:0", "0/4")
