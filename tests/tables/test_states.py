"""The states of a table at a destination: one table, and nothing besides."""

from itertools import product
from typing import Any

import pytest

from penstock.model.errors import PenstockError, Rejected, SettingsError, Unavailable
from penstock.tables.ledger_rows import LedgerRow
from penstock.tables.staged import UnsentValue
from penstock.tables.states import (
    TRANSITIONS,
    WAITING,
    RowsChanged,
    SuspendedByHand,
    TableEvent,
    TableState,
)

LIVE, LOADING, LOADED, UNFIT, REFUSED, STOPPED, LEFT = TableState
NO_ROW = Rejected("the destination refuses a row")
NO_TABLE = SettingsError("there is no table items")
BY_HAND = SuspendedByHand("suspended by hand")


def row_in(state: TableState, **fields: Any) -> LedgerRow:
    known = dict.fromkeys(("point", "last_point", "losses", "reason", "detail"), "")
    usual = {"place": None, "is_ours": False, "is_again": False, "columns": "[]", "resumes": None}
    return LedgerRow(**{"id": 1, "state": state, **known, **usual, **fields})


def test_each_state_is_entered_and_left_by_what_happens() -> None:
    assert set(product(TableState, TableEvent)) > TRANSITIONS.keys()
    for state in TableState:
        others = {now or LOADED for (before, _), now in TRANSITIONS.items() if before is not state}
        assert state in others
        assert {now for (before, _), now in TRANSITIONS.items() if before is state} - {state}
    assert {event for _, event in TRANSITIONS} == set(TableEvent)


def test_a_table_that_is_not_followed_comes_back_by_the_map_alone() -> None:
    back = {event: now for (state, event), now in TRANSITIONS.items() if state is LEFT}
    assert back == {
        TableEvent.FOLLOWED: LIVE, TableEvent.AWAITED: LOADING, TableEvent.EARLY: LOADED,
    }  # fmt: skip


def test_a_table_is_stopped_until_an_operator_acts_or_it_is_loaded_anew() -> None:
    leaves = {
        event for (state, event), now in TRANSITIONS.items()
        if state is STOPPED and now is not STOPPED
    }  # fmt: skip
    assert leaves == {TableEvent.RESUMED, TableEvent.ANEW, TableEvent.LEFT}
    stopped = row_in(LOADED).wait(BY_HAND)
    for event in (TableEvent.FILLED, TableEvent.SETTLED):
        with pytest.raises(Unavailable):
            stopped.become(event)
    with pytest.raises(Unavailable):
        stopped.wait(NO_ROW)
    assert stopped.at_points("1").reason == "by-hand"


def test_a_table_is_live_once_its_rows_and_its_held_changes_are_there() -> None:
    to_live = {(state, event) for (state, event), now in TRANSITIONS.items() if now is LIVE}
    settled = {(state, TableEvent.SETTLED) for state in (LOADED, UNFIT, REFUSED)}
    assert to_live == {(LEFT, TableEvent.FOLLOWED), *settled}


@pytest.mark.parametrize(("state", "then"), [(LIVE, LOADED), (LOADED, LOADED), (LOADING, LOADING)])
def test_a_table_that_waits_goes_on_where_it_was_after_its_held_changes(
    state: TableState, then: TableState
) -> None:
    waits = row_in(state).wait(NO_TABLE)
    again = waits.wait(NO_ROW)
    assert (waits.resumes, again.resumes) == (then, then)
    assert (waits.state, again.state) == (UNFIT, REFUSED)
    resumed = again.become(TableEvent.RESUMED)
    assert (resumed.state, resumed.resumes, resumed.reason, resumed.detail) == (then, None, "", "")


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (NO_ROW, REFUSED, "refused"),
        (UnsentValue("not sent"), REFUSED, "unsent-value"),
        (NO_TABLE, UNFIT, "unfit"),
        (Unavailable("away"), UNFIT, "unfit"),
        (RowsChanged("truncated"), STOPPED, "changed"),
        (BY_HAND, STOPPED, "by-hand"),
    ],
    ids=str,
)
def test_why_a_table_waits_says_who_goes_on_with_it(
    error: PenstockError, state: TableState, reason: str
) -> None:
    row = row_in(LIVE).wait(error)
    assert (row.state, row.reason, row.detail) == (state, reason, str(error))
    stored = row.stored
    assert (stored["state"], stored["resumes"]) == ("waiting", "loaded")
    assert state in WAITING
    assert LedgerRow.of(*(stored[name] for name in LedgerRow.__slots__)) == row


@pytest.mark.parametrize(
    ("row", "is_again"),
    [
        (row_in(LIVE), True),
        (row_in(LOADING), False),
        (row_in(LOADING).wait(NO_TABLE), False),
        (row_in(LIVE).wait(NO_TABLE), True),
    ],
)
def test_a_load_is_another_one_where_all_rows_were_there(row: LedgerRow, is_again: bool) -> None:
    anew = row.begun_anew()
    assert (anew.state, anew.resumes, anew.is_again) == (LOADING, None, is_again)
    assert anew.begun_anew().is_again is is_again


def test_a_row_that_was_refused_may_be_again_while_others_are_loaded() -> None:
    waits = row_in(LOADING).wait(NO_ROW)
    assert waits.at_points("1").state is REFUSED
    assert row_in(LOADING).wait(NO_TABLE).at_points("1").state is LOADING
    assert not row_in(LOADING).at_points("1", is_ours=False).is_ours
    assert row_in(LOADING, is_ours=True).at_points("1", is_ours=False).is_ours
