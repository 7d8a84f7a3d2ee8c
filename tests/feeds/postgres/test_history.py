"""Which history our position is on: one verdict for every state of server and slot."""

from dataclasses import replace

import pytest

from penstock.feeds.postgres.history import (
    CAUSES,
    KnownHistory,
    can_anchor,
    era_behind,
    judge,
    known_of,
    position_of,
)
from penstock.feeds.postgres.slot import Slot, System
from penstock.model.position import Place
from penstock.wire.pgoutput.lsn import format_lsn

SLOT = Slot(
    name="s",
    plugin="pgoutput",
    kind="logical",
    database="db",
    active_pid=None,
    confirmed=1000,
    restart=900,
    wal_status="reserved",
    two_phase=False,
    invalidation="",
    failover=False,
    server_version=160_000,
    connected_to="db",
    sender_timeout=60.0,
    current=5000,
)
KNOWN = KnownHistory(system="7", timeline=2, flushed=1200, publication="p")
HERE = System(identifier="7", timeline=2)
PROMOTED = System(identifier="7", timeline=3)


def at(lsn: int, era: str = "") -> Place:
    return Place(era + format_lsn(lsn), 3)


# name -> (what is stored, our place, slot, system, where the log ends, forks, diverged, the cause)
_CASES: dict[
    str, tuple[KnownHistory, Place | None, Slot | None, System, int, dict[int, int], bool, str]
]
_CASES = {
    "all is well": (KNOWN, at(1100), SLOT, HERE, 5000, {}, False, ""),
    "nothing was stored": (KnownHistory(), None, SLOT, HERE, 5000, {}, False, ""),
    "a position of an older penstock": (KnownHistory(), at(1100), SLOT, HERE, 5000, {}, False, ""),
    "an older position and a slot that is further": (
        KnownHistory(), at(900), SLOT, HERE, 5000, {}, False, "",
    ),
    "the slot is where we left it": (
        KNOWN, at(1100), replace(SLOT, confirmed=1200), HERE, 5000, {}, False, "",
    ),
    "a crash of the server took the slot back": (
        KNOWN, at(1100), replace(SLOT, confirmed=10), HERE, 5000, {}, False, "",
    ),
    "the log ends at our position": (KNOWN, at(1100), SLOT, HERE, 1100, {}, False, ""),
    "the slot is gone": (KNOWN, at(1100), None, HERE, 5000, {}, False, "slot_missing"),
    "the slot is gone, before anything came": (
        KNOWN, None, None, HERE, 5000, {}, False, "slot_missing",
    ),
    "the slot is gone, and nobody knows whose it was": (
        KnownHistory(), at(1100), None, HERE, 5000, {}, False, "slot_missing",
    ),
    "the slot's log was removed": (
        KNOWN, at(1100), replace(SLOT, wal_status="lost"), HERE, 5000, {}, False, "slot_lost",
    ),
    "the slot was invalidated": (
        KNOWN, at(1100), replace(SLOT, invalidation="idle_timeout"), HERE, 5000, {}, False,
        "slot_lost",
    ),
    "the slot is further than we let it": (
        KNOWN, at(1100), replace(SLOT, confirmed=1201), HERE, 5000, {}, False, "slot_recreated",
    ),
    "the slot was made anew before anything came": (
        KNOWN, None, replace(SLOT, confirmed=1201), HERE, 5000, {}, False, "slot_recreated",
    ),
    "another cluster": (
        KNOWN, at(1100), SLOT, System(identifier="8", timeline=2), 5000, {}, False, "other_system",
    ),
    "another cluster without our slot": (
        KNOWN, at(1100), None, System(identifier="8", timeline=2), 5000, {}, False, "other_system",
    ),
    "a promoted standby that has what we have": (
        KNOWN, at(1100), SLOT, PROMOTED, 5000, {1: 400, 2: 1150}, False, "",
    ),
    "a promoted standby that lacks our last commit": (
        KNOWN, at(1100), SLOT, PROMOTED, 5000, {1: 400, 2: 1100}, False, "other_timeline",
    ),
    "a timeline that does not come from ours": (
        KNOWN, at(1100), SLOT, PROMOTED, 5000, {1: 400}, False, "other_timeline",
    ),
    "an earlier timeline": (
        KNOWN, at(1100), SLOT, System(identifier="7", timeline=1), 5000, {}, False,
        "other_timeline",
    ),
    "a promoted standby that has the slot beyond the fork": (
        KNOWN, at(1100), replace(SLOT, confirmed=1180), PROMOTED, 5000, {2: 1150}, False,
        "slot_recreated",
    ),
    "a promoted standby, and nothing came yet": (
        KNOWN, None, SLOT, PROMOTED, 5000, {2: 1150}, False, "",
    ),
    "a promoted standby without the slot": (
        KNOWN, at(1100), None, PROMOTED, 5000, {2: 1150}, False, "slot_missing",
    ),
    "the log ends before our position": (
        KNOWN, at(1100), SLOT, HERE, 1099, {}, False, "server_behind",
    ),
    "the log ends long before what we acknowledged while idle": (
        replace(KNOWN, flushed=99_000), at(1100), SLOT, HERE, 5000, {}, False, "server_behind",
    ),
    "the log ends a page before what we acknowledged": (
        replace(KNOWN, flushed=9000), at(1100), SLOT, HERE, 5000, {}, False, "",
    ),
    "another transaction is at our place": (
        KNOWN, at(1100), SLOT, HERE, 5000, {}, True, "diverged",
    ),
    "our place is of the history before": (
        replace(KNOWN, era="e0001-"), at(9000), SLOT, HERE, 5000, {}, False, "",
    ),
    "our place is ahead, in the second history": (
        replace(KNOWN, era="e0001-"), at(9000, "e0001-"), SLOT, HERE, 5000, {}, False,
        "server_behind",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _CASES)
def test_every_state_has_one_verdict(name: str) -> None:
    known, after, slot, system, current, forks, diverged, cause = _CASES[name]
    verdict = judge(
        known, after, slot=slot, system=system, current=current, forks=forks, has_diverged=diverged
    )
    assert verdict.cause == cause
    assert bool(verdict.detail) == bool(cause)


def test_every_cause_is_in_the_table_and_has_a_remedy() -> None:
    assert {case[-1] for case in _CASES.values()} - {""} == set(CAUSES)
    assert all(hint for _, hint in CAUSES.values())


def test_a_promoted_standby_can_have_the_slot_up_to_the_fork_only() -> None:
    verdict = judge(KNOWN, at(1100), slot=SLOT, system=PROMOTED, current=5000, forks={2: 1150})
    assert verdict.flushed == 1150


def test_a_fork_that_is_known_is_where_to_go_on() -> None:
    verdict = judge(KNOWN, at(1100), slot=SLOT, system=PROMOTED, current=5000, forks={2: 1090})
    assert (verdict.cause, verdict.fork) == ("other_timeline", 1090)


@pytest.mark.parametrize("cause", CAUSES)
def test_another_log_begins_an_era_that_sorts_behind_all_before(cause: str) -> None:
    known = KNOWN
    for _ in range(12):
        before = Place(known.era + "FFFFFFFF/FFFFFFFF", 2**31 - 1)
        known = replace(known, era=era_behind(known, cause))
        after = Place(known.era + "00000000/00000000", 0)
        assert (after > before) == CAUSES[cause][0]


def test_a_mark_survives_its_store() -> None:
    known = replace(KNOWN, era="e0002-")
    assert known_of(known.to_json(), None) == known
    assert known_of({}, None) == known_of(None, None) == KnownHistory()


def test_a_position_tells_its_era_without_a_mark() -> None:
    known = known_of(None, at(1100, "e0003-"))
    assert known.era == "e0003-"
    assert position_of(known, at(1100, "e0003-")) == 1100
    assert position_of(known, at(1100, "e0002-")) is None
    assert position_of(known, at(1100)) is None


@pytest.mark.parametrize(
    ("position", "confirmed", "publication", "expected"),
    [
        pytest.param(1104, 1000, "p", True, id="it is sent again"),
        pytest.param(1104, 1104, "p", True, id="the slot is at it"),
        pytest.param(1104, 1105, "p", False, id="the slot is beyond it"),
        pytest.param(1104, 1000, "q", False, id="another publication"),
        pytest.param(1103, 1000, "p", False, id="inside a message's record"),
        pytest.param(None, 1000, "p", False, id="no position"),
    ],
)
def test_when_our_last_transaction_must_come_first(
    position: int | None, confirmed: int, publication: str, expected: bool
) -> None:
    slot = replace(SLOT, confirmed=confirmed)
    assert can_anchor(KNOWN, position, slot, publication) is expected
