"""Which history our position is on: one verdict for every state of server and slot."""

from dataclasses import replace
from typing import Any

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
    name="s", plugin="pgoutput", kind="logical", database="db", active_pid=None, confirmed=1000,
    restart=900, wal_status="reserved", two_phase=False, invalidation="", failover=False,
    server_version=160_000, connected_to="db", sender_timeout=60.0, current=5000,
)  # fmt: skip
KNOWN = KnownHistory(system="7", timeline=2, flushed=1200, publication="p")
HERE = System(identifier="7", timeline=2)
PROMOTED = System(identifier="7", timeline=3)
OTHER = System(identifier="8", timeline=2)


def at(lsn: int, era: str = "") -> Place:
    return Place(era + format_lsn(lsn), 3)


# What is so unless a case says something else.
_USUAL: dict[str, Any] = {
    "known": KNOWN, "after": at(1100), "slot": SLOT, "system": HERE, "current": 5000, "forks": {},
}  # fmt: skip
_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "all is well": ("", {}),
    "nothing was stored": ("", {"known": KnownHistory(), "after": None}),
    "a position of an older penstock": ("", {"known": KnownHistory()}),
    "an older position and a slot that is further": (
        "", {"known": KnownHistory(), "after": at(900)},
    ),
    "the slot is where we left it": ("", {"slot": replace(SLOT, confirmed=1200)}),
    "a crash of the server took the slot back": ("", {"slot": replace(SLOT, confirmed=10)}),
    "the log ends at our position": ("", {"current": 1100}),
    "the slot is gone": ("slot_missing", {"slot": None}),
    "the slot is gone, before anything came": ("slot_missing", {"slot": None, "after": None}),
    "the slot is gone, and nobody knows whose it was": (
        "slot_missing", {"slot": None, "known": KnownHistory()},
    ),
    "the slot's log was removed": ("slot_lost", {"slot": replace(SLOT, wal_status="lost")}),
    "the slot was invalidated": ("slot_lost", {"slot": replace(SLOT, invalidation="idle_timeout")}),
    "the slot is further than we let it": (
        "slot_recreated", {"slot": replace(SLOT, confirmed=1201)},
    ),
    "the slot was made anew before anything came": (
        "slot_recreated", {"slot": replace(SLOT, confirmed=1201), "after": None},
    ),
    "the sink went back, and the slot is further": (
        "sink_went_back",
        {"slot": replace(SLOT, confirmed=1201), "known": replace(KNOWN, is_behind=True)},
    ),
    "the sink went back, and the slot has all since": (
        "", {"known": replace(KNOWN, is_behind=True)},
    ),
    "another cluster": ("other_system", {"system": OTHER}),
    "another cluster without our slot": ("other_system", {"system": OTHER, "slot": None}),
    "a promoted standby that has what we have": (
        "", {"system": PROMOTED, "forks": {1: 400, 2: 1150}},
    ),
    "a promoted standby that lacks our last commit": (
        "other_timeline", {"system": PROMOTED, "forks": {1: 400, 2: 1100}},
    ),
    "a timeline that does not come from ours": (
        "other_timeline", {"system": PROMOTED, "forks": {1: 400}},
    ),
    "an earlier timeline": ("other_timeline", {"system": System(identifier="7", timeline=1)}),
    "a promoted standby that has the slot beyond the fork": (
        "slot_recreated",
        {"slot": replace(SLOT, confirmed=1180), "system": PROMOTED, "forks": {2: 1150}},
    ),
    "a promoted standby, and nothing came yet": (
        "", {"after": None, "system": PROMOTED, "forks": {2: 1150}},
    ),
    "a promoted standby without the slot": (
        "slot_missing", {"slot": None, "system": PROMOTED, "forks": {2: 1150}},
    ),
    "the log ends before our position": ("server_behind", {"current": 1099}),
    "the log ends long before what we acknowledged while idle": (
        "server_behind", {"known": replace(KNOWN, flushed=99_000)},
    ),
    "the log ends a page before what we acknowledged": (
        "", {"known": replace(KNOWN, flushed=9000)},
    ),
    "another transaction is at our place": ("diverged", {"has_diverged": True}),
    "our place is of the history before": (
        "", {"known": replace(KNOWN, era="e0001-"), "after": at(9000)},
    ),
    "our place is ahead, in the second history": (
        "server_behind", {"known": replace(KNOWN, era="e0001-"), "after": at(9000, "e0001-")},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _CASES)
def test_every_state_has_one_verdict(name: str) -> None:
    cause, given = _CASES[name]
    verdict = judge(**_USUAL | given)
    assert verdict.cause == cause
    assert bool(verdict.detail) == bool(cause)


def test_every_cause_is_in_the_table_and_has_a_remedy() -> None:
    # The feed itself finds that its publication is gone.
    found = {cause for cause, _ in _CASES.values()} | {"publication_missing"}
    assert found - {""} == set(CAUSES)
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
