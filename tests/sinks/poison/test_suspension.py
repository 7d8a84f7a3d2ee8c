"""A table's state machine, and the holes that its record knows of."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from penstock.model.errors import Malformed
from penstock.model.position import Place
from penstock.sinks.poison.suspension import TRANSITIONS, Event, Hole, Suspension, SuspensionState

ARCHITECTURE = Path(__file__).parents[3] / "docs" / "explanation" / "poison.md"
FOLLOWING = Suspension(backend="b", schema="public", collection="t")


def suspended(*places: int) -> Suspension:
    record = FOLLOWING.after(Event.POISONED, "now", reason="no-key")
    return record.skip("p", [at(number) for number in places])


def at(number: int) -> Place:
    return Place(f"00000000/{number:08X}", 0)


@pytest.mark.parametrize(("state", "event"), list(product(SuspensionState, Event)))
def test_what_is_not_in_the_table_cannot_happen(state: SuspensionState, event: Event) -> None:
    record = replace(FOLLOWING, state=state)
    if (state, event) in TRANSITIONS:
        assert record.after(event, "now").state is TRANSITIONS[state, event]
    else:
        with pytest.raises(Malformed, match=rf"public\.t: .* is {state} cannot have {event}"):
            record.after(event, "now")


def test_the_diagram_is_the_table() -> None:
    drawn = {
        (SuspensionState(one), Event(event), SuspensionState(other))
        for one, other, events in re.findall(
            r"^    (\w+) --> (\w+): (.+)$", ARCHITECTURE.read_text(), re.M
        )
        for event in events.split(", ")
    }
    assert drawn == {(state, event, after) for (state, event), after in TRANSITIONS.items()}


def test_what_is_skipped_is_counted_once() -> None:
    record = suspended(1, 2, 5)
    assert record.skipped == 3
    again = record.skip("p", [at(2), at(5)])
    assert again is record
    more = record.skip("p", [at(5), at(6)])
    assert more.skipped == 4
    (hole,) = more.holes
    assert (hole.first, hole.last, hole.open) == (str(at(1)), str(at(6)), True)


def test_what_comes_again_from_before_the_suspension_is_not_hidden() -> None:
    record = suspended(3, 4)
    hidden = [number for number in range(1, 7) if record.hides("p", at(number))]
    assert hidden == [3, 4, 5, 6]
    following = record.after(Event.MENDED, "now")
    hidden = [number for number in range(1, 7) if following.hides("p", at(number))]
    assert hidden == [3, 4]


def test_each_suspension_has_a_hole_of_its_own() -> None:
    record = suspended(1).after(Event.ASKED, "1").after(Event.CHANGE, "2")
    record = record.after(Event.POISONED, "3", reason="too-large").skip("p", [at(4)])
    assert [(hole.first, hole.reason, hole.open) for hole in record.holes] == [
        (str(at(1)), "no-key", False),
        (str(at(4)), "too-large", True),
    ]
    assert [number for number in range(1, 6) if record.begins("p", at(number))] == [1, 4]
    assert not record.begins("q", at(1))


def test_partitions_have_holes_of_their_own() -> None:
    record = suspended(3).skip("q", [at(1)]).skip("p", [at(4)])
    assert {(hole.partition, hole.skipped) for hole in record.holes} == {("p", 2), ("q", 1)}
    assert record.hides("r", at(0))


def test_the_oldest_holes_are_forgotten_and_not_the_state() -> None:
    record = FOLLOWING
    for number in range(60):
        record = record.after(Event.POISONED, "now").skip("p", [at(number)])
        record = record.after(Event.MENDED, "now")
    assert len(record.holes) == 50
    assert record.holes[-1].first == str(at(59))


def test_a_record_reads_back() -> None:
    record = suspended(1, 2)
    assert Suspension.parse(record.to_json()) == record
    assert isinstance(Suspension.parse(record.to_json()).holes[0], Hole)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"state": "gone"}', b"\xff"])
def test_what_is_no_record_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        Suspension.parse(body)
