"""State machines as tables: every one of them, and what their common step refuses."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from penstock.model.machine import step
from penstock.sinks.jetstream.publishing import flight
from penstock.sinks.poison import suspension
from penstock.sinks.rows.flow import BREAKERS, PRESSURES

TABLES: Mapping[str, Mapping[tuple[Any, Any], Any]] = {
    "breaker": BREAKERS,
    "pressure": PRESSURES,
    "sending": flight.TABLE,
    "suspension": suspension.TRANSITIONS,
}


class Light(Enum):
    GREEN = "green"
    RED = "red"


class Turn(Enum):
    STOP = "stop"


def test_a_step_gives_the_state_of_the_table() -> None:
    assert step({(Light.GREEN, Turn.STOP): Light.RED}, Light.GREEN, Turn.STOP) is Light.RED


def test_an_event_that_cannot_happen_is_named_with_the_state() -> None:
    with pytest.raises(KeyError, match="Light that is red cannot have stop"):
        step({(Light.GREEN, Turn.STOP): Light.RED}, Light.RED, Turn.STOP)


@pytest.mark.parametrize("name", TABLES)
def test_every_state_can_be_reached_and_left(name: str) -> None:
    table = TABLES[name]
    kinds = {type(state) for state, _ in table}
    (states_of,) = kinds
    assert {state for state, _ in table} == set(states_of), "a state without a way out"
    first = next(iter(states_of))
    assert {*table.values(), first} == set(states_of), "a state that nothing leads to"


@pytest.mark.parametrize("name", TABLES)
def test_every_event_can_happen(name: str) -> None:
    events = {event for _, event in TABLES[name]}
    assert events == set(type(next(iter(events))))
