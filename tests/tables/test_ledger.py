"""The states of a table in the ledger, without a database."""

from typing import Any

import pytest

from penstock.model.errors import Rejected, SettingsError
from penstock.tables.ledger import LedgerRow, State


def row_in(state: State, **fields: Any) -> LedgerRow:
    known = dict.fromkeys(("point", "last_point", "resumes", "losses", "reason", "detail"), "")
    usual = {"place": None, "is_ours": False, "is_again": False, "columns": "[]"}
    return LedgerRow(**{"id": 1, "state": state, **known, **usual, **fields})


REFUSED = Rejected("the destination refuses a row")
UNFIT = SettingsError("there is no table items")


@pytest.mark.parametrize(
    ("state", "then"), [("live", "loaded"), ("loaded", "loaded"), ("loading", "loading")]
)
def test_a_table_that_waits_goes_on_where_it_was_after_its_held_changes(
    state: State, then: State
) -> None:
    waits = row_in(state).become("waiting", UNFIT)
    again = waits.become("waiting", REFUSED)
    assert (waits.resumes, again.resumes) == (then, then)
    assert (waits.reason, again.reason) == ("unfit", "refused")
    resumed = again.become(then)
    assert (resumed.state, resumed.resumes, resumed.reason, resumed.detail) == (then, "", "", "")


@pytest.mark.parametrize(
    ("row", "is_again"),
    [
        (row_in("live"), True),
        (row_in("loading"), False),
        (row_in("loading").become("waiting", UNFIT), False),
        (row_in("live").become("waiting", UNFIT), True),
    ],
)
def test_a_load_is_another_one_where_all_rows_were_there(row: LedgerRow, is_again: bool) -> None:
    anew = row.begun_anew()
    assert (anew.state, anew.resumes, anew.is_again) == ("loading", "", is_again)
    assert anew.begun_anew().is_again is is_again


def test_a_row_that_was_refused_may_be_again_while_others_are_loaded() -> None:
    waits = row_in("loading").become("waiting", REFUSED)
    assert waits.at_points("1").state == "waiting"
    assert row_in("loading").become("waiting", UNFIT).at_points("1").state == "loading"
    assert not row_in("loading").at_points("1", is_ours=False).is_ours
    assert row_in("loading", is_ours=True).at_points("1", is_ours=False).is_ours
