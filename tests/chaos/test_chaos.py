"""A bounded run of scripts/chaos: faults under load, and every change exactly once."""

import os

import pytest

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
