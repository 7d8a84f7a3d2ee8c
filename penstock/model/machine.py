"""State machines as tables: (state, event) -> state."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar


class MachineEnum(Enum):
    """States or events of a table with many steps: the hash is C's, where `Enum` has one in
    Python."""

    __hash__ = object.__hash__


State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


def step(table: Mapping[tuple[State, Event], State], state: State, event: Event) -> State:
    """The next state; raises KeyError, naming both, for an event that cannot happen in a state."""
    try:
        return table[state, event]
    except KeyError:
        what = type(state).__name__
        raise KeyError(f"{what} that is {state.value} cannot have {event.value}") from None
