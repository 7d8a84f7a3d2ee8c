"""The states of a run, and what holds in all of them; without servers."""

from itertools import product

import pytest

from penstock.snapshots.job import TABLE, RunControl, RunEvent, RunState
from tests.snapshots.pipeline import StatedPipeline


def control_of(*events: RunEvent) -> RunControl:
    made = RunControl(StatedPipeline())
    for event in events:
        made.on(event)
    return made


def test_every_state_can_be_cancelled_and_stays_so() -> None:
    cancelled = {RunState.CANCELLED, RunState.WITHDRAWN}
    for state in RunState:
        assert TABLE[state, RunEvent.CANCEL] in cancelled
    for state, event in product(cancelled, RunEvent):
        assert TABLE.get((state, event), state) is state


def test_once_the_meta_was_sent_it_may_be_stored_whatever_happens() -> None:
    """So that no chunk is deleted."""
    sent = {RunState.SENT, RunState.DOUBTFUL, RunState.WITHDRAWN}
    for (state, _), found in TABLE.items():
        assert state not in sent or found in sent


def test_a_run_that_is_cancelled_sends_no_meta() -> None:
    control = control_of(RunEvent.FINISH, RunEvent.CANCEL)
    assert control.on(RunEvent.SEND) is RunState.CANCELLED


def test_only_a_run_that_still_reads_goes_on_under_another_snapshot() -> None:
    assert control_of(RunEvent.FAIL).may_go_on
    assert not control_of(RunEvent.FINISH).may_go_on
    assert not control_of(RunEvent.CANCEL).may_go_on
    with pytest.raises(KeyError, match="RunState that is read cannot have go on"):
        control_of(RunEvent.FINISH).go_on()


def test_threads_end_after_a_failure_and_begin_again_with_the_next_snapshot() -> None:
    control = control_of()
    control.fail(ValueError("first"))
    control.fail(ValueError("second"))
    assert (control.is_over(), str(control.failure)) == (True, "first")
    control.go_on()
    assert (control.is_over(), control.failure) == (False, None)


def test_threads_end_once_the_pipeline_is_not_ours() -> None:
    pipeline = StatedPipeline()
    control = RunControl(pipeline)
    pipeline.is_ours = False
    assert (control.is_over(), control.may_go_on) == (True, False)
