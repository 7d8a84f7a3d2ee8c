"""A bounded run of scripts/chaos: faults under load, and every change exactly once."""

import os

import pytest

from tests.chaos.plan import CONSOLIDATE
from tests.chaos.story import chaos

pytestmark = [
    pytest.mark.live,
    pytest.mark.spark,
    pytest.mark.fault,
    pytest.mark.timeout(900),
]

SECONDS = float(os.environ.get("PENSTOCK_CHAOS_SECONDS", "60"))
SEED = int(os.environ.get("PENSTOCK_CHAOS_SEED", "20261121"))


def test_whatever_fails_every_change_is_stored_exactly_once_and_in_order() -> None:
    outcome = chaos(seed=SEED, seconds=SECONDS)
    assert outcome.faults >= SECONDS / 20
    assert outcome.changes > 1000


def test_whatever_fails_tables_equal_those_of_three_databases() -> None:
    kinds = ("pipeline-kill", "target-stop", "target-terminate", "target-unanswered")
    outcome = chaos(seed=SEED, seconds=25, pipeline=CONSOLIDATE, only=kinds)
    assert outcome.faults >= len(kinds)
    assert outcome.changes > 500


@pytest.mark.thorough
def test_tables_equal_those_of_three_databases_after_every_kind_of_fault() -> None:
    outcome = chaos(seed=SEED, seconds=300, pipeline=CONSOLIDATE, large=100_000)
    assert outcome.changes > 10_000
