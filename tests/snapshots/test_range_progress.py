"""What is done and what is left of a snapshot; pure."""

from typing import Any

import orjson
import pytest

from penstock.model.errors import Malformed
from penstock.snapshots.range_progress import (
    PartReading,
    RangeProgress,
    SnapshotPart,
    SnapshotPlan,
    header_of,
    read_header,
)

PLAN = SnapshotPlan(
    ranges=["a", "b", "c"], version="v", mark="7", lsn="0/1", position="1:0", start=1
)


def chunk(number: int, rows: int = 1) -> dict[str, Any]:
    return {"chunk": number, "rows": rows, "bytes": 1, "crc32": 0, "lsn": "0/1", "position": "1:0"}


def read(ranges: RangeProgress, part: SnapshotPart, count: int) -> PartReading:
    """Reads a part to its end, with so many chunks."""
    reading = PartReading()
    for _ in range(count):
        number, _ = ranges.number(reading)
        reading.chunks.append(chunk(number))
    ranges.finish(part, reading, ("1:0", "0/1"))
    return reading


def test_a_part_that_was_not_finished_is_read_from_its_beginning() -> None:
    ranges = RangeProgress()
    ranges.plan = PLAN
    parts = ranges.set_parts()
    read(ranges, parts[0], 2)
    reading = PartReading()
    ranges.number(reading)
    ranges.abandon(reading)
    assert (ranges.abandoned, ranges.done) == ({2}, {0})
    again = ranges.set_parts(["a since 7"])
    assert again == [SnapshotPart(1, "b"), SnapshotPart(2, "c"), SnapshotPart(None, "a since 7")]
    ranges.discarded()
    assert ranges.holes == 0, "no later chunk is there"
    for part in again:
        read(ranges, part, 1)
    assert [one["chunk"] for one in ranges.all_chunks()] == [0, 1, 2, 3, 4]


def test_what_is_read_again_with_fewer_chunks_leaves_holes_to_fill() -> None:
    ranges = RangeProgress()
    ranges.plan = PLAN
    first, second, third = ranges.set_parts()
    reading = PartReading()
    for _ in range(3):
        ranges.number(reading)
    ranges.abandon(reading)
    read(ranges, second, 1)
    read(ranges, third, 1)
    ranges.set_parts()
    ranges.discarded()
    read(ranges, first, 1)
    assert ranges.holes == 2
    for _ in range(2):
        number, was_used = ranges.number(PartReading())
        assert was_used
        ranges.add(chunk(number, 0))
    assert [one["chunk"] for one in ranges.all_chunks()] == [0, 1, 2, 3, 4]
    assert ranges.holes == 0


def stored(part: int | None, *numbers: int, last: bool) -> tuple[Any, Any]:
    """The last chunk of a reading that has taken these numbers, with its header."""
    header = header_of(
        SnapshotPart(part, ""), PartReading(numbers=[*numbers]), rows=1, place=("0/1", "1:0"),
        is_last=last,
    )  # fmt: skip
    return chunk(numbers[-1]), read_header(header.decode())


def test_chunks_of_another_process_are_taken_by_their_headers() -> None:
    ranges = RangeProgress()
    ranges.restore(
        PLAN,
        [
            stored(0, 0, last=False), stored(0, 0, 2, last=True),  # whole
            stored(1, 1, last=False),  # in the middle of a reading ...
            stored(1, 3, last=True),  # ... and another one of the same range, which is whole
            stored(2, 4, last=False),
            stored(None, 5, last=True),  # under a snapshot that is gone
        ],
    )  # fmt: skip
    assert ranges.done == {0, 1}
    assert sorted(one["chunk"] for one in ranges.chunks) == [0, 2, 3]
    assert ranges.abandoned == {1, 4, 5}
    assert ranges.set_parts() == [SnapshotPart(2, "c")]


def test_a_reading_of_which_chunks_are_gone_is_not_whole() -> None:
    ranges = RangeProgress()
    lost_first = stored(0, 0, 1, 2, last=True), stored(0, 0, 1, last=False)
    lost_middle = stored(1, 3, last=False), stored(1, 3, 4, 5, last=True)
    ranges.restore(PLAN, [*lost_first, *lost_middle, stored(2, 6, last=True)])
    assert (ranges.done, ranges.abandoned) == ({2}, {1, 2, 3, 5})


def test_chunks_that_go_on_after_another_process_are_numbered_without_a_hole() -> None:
    ranges = RangeProgress()
    ranges.restore(
        PLAN, [stored(0, 1, last=True), stored(1, 3, last=False), stored(2, 5, last=True)]
    )
    assert ranges.holes == 3
    (left,) = ranges.set_parts()
    ranges.discarded()
    assert read(ranges, left, 3).numbers == [0, 2, 3]
    while ranges.holes:
        ranges.add(chunk(ranges.number(PartReading())[0], 0))
    assert [one["chunk"] for one in ranges.all_chunks()] == [0, 1, 2, 3, 4, 5]


def test_a_header_that_is_not_ours_is_malformed() -> None:
    for text in ("", "x", "{}", orjson.dumps({"range": 1}).decode(), "[]"):
        with pytest.raises(Malformed):
            read_header(text)


def test_a_plan_that_does_not_fit_is_forgotten() -> None:
    ranges = RangeProgress()
    ranges.plan = PLAN
    read(ranges, ranges.set_parts()[0], 2)
    ranges.forget()
    assert (ranges.plan, ranges.done, ranges.all_chunks(), ranges.abandoned) == (
        None,
        set(),
        [],
        {0, 1},
    )


def test_its_place_is_the_first_of_what_is_left() -> None:
    """A range without rows has one, too: a change of it may come after that."""
    ranges = RangeProgress()
    ranges.plan = PLAN
    first, second, third = ranges.set_parts()
    assert ranges.place == ("1:0", "0/1")
    ranges.finish(first, PartReading(), ("3:0", "0/3"))
    ranges.finish(second, PartReading(), ("2:0", "0/2"))
    ranges.finish(third, PartReading(), ("4:0", "0/4"))
    assert ranges.place == ("2:0", "0/2")
    ranges.forget()
    ranges.plan = PLAN
    ranges.finish(third, PartReading(), ("4:0", "0/4"))
    assert ranges.place == ("4:0", "0/4")
