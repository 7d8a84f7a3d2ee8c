"""The plan of faults is a pure function of its seed."""

from itertools import islice

import pytest

from tests.chaos.faults import _FAULTS, _WEATHER
from tests.chaos.plan import KINDS, STEPS_A_ROUND, kinds, plan, steps

ALL = tuple(KINDS)


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_a_seed_gives_the_same_plan_and_another_one_another(seed: int) -> None:
    assert [*plan(seed, 600, ALL)] == [*plan(seed, 600, ALL)]
    assert [*plan(seed, 600, ALL)] != [*plan(seed + 1, 600, ALL)]


def test_a_longer_plan_begins_as_a_shorter_one() -> None:
    short = [step for round_ in plan(7, 100, ALL) for step in round_]
    assert [step for round_ in plan(7, 900, ALL) for step in round_][: len(short)] == short


def test_every_kind_comes_before_any_comes_again() -> None:
    names = [name for step in islice(steps(3, ALL), len(KINDS)) for name in step.faults]
    assert set(names[: len(KINDS)]) == set(KINDS)


def test_some_steps_have_two_faults_and_never_of_one_target() -> None:
    twos = [step.faults for step in islice(steps(4, ALL), 200) if len(step.faults) == 2]
    assert len(twos) > 10
    assert all(KINDS[one].target != KINDS[other].target for one, other in twos)


def test_only_some_kinds_when_asked_for() -> None:
    found = {
        name for step in islice(steps(5, ("nats-kill", "jvm-kill")), 50) for name in step.faults
    }
    assert found == {"nats-kill", "jvm-kill"}


def test_a_pipeline_has_one_kind_of_sink() -> None:
    assert set(kinds("default")) | set(kinds("consolidate")) == set(KINDS)
    assert not {KINDS[name].target for name in kinds("default")} & {"target"}
    assert not {KINDS[name].target for name in kinds("consolidate")} & {"nats"}


@pytest.mark.parametrize("seconds", [1, 100, 3600])
def test_it_is_about_as_long_as_asked_for(seconds: int) -> None:
    rounds = [*plan(6, seconds, ALL)]
    assert seconds <= sum(step.cost for round_ in rounds for step in round_) < seconds + 40
    assert all(1 <= len(round_) <= STEPS_A_ROUND for round_ in rounds)


def test_every_kind_can_be_done() -> None:
    for name in KINDS:
        what = name.partition("-")[2]
        assert name in _FAULTS or what in _WEATHER or what == "freeze", name
