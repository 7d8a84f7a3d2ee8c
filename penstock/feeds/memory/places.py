"""The memory feed's changes: a number in a partition gives a change's place, key and time."""

from datetime import UTC, datetime
from typing import Any

from penstock.feeds.memory.settings import MemoryFeedSettings
from penstock.model.errors import Malformed
from penstock.model.position import Bookmark, Place

KEYS = 7  # documents per partition
COMMITTED = datetime(2026, 1, 1, tzinfo=UTC)  # change 0; each further one a millisecond later


def place_of(settings: MemoryFeedSettings, partition: str, number: int) -> Place:
    """The place of a partition's change; with its name, because event ids are unique in a
    backend."""
    return Place(f"{partition}-{number // settings.unit:012d}", number % settings.unit)


def number_of(settings: MemoryFeedSettings, place: Place) -> int:
    """The inverse; raises Malformed."""
    _, _, unit = place.cursor.rpartition("-")
    if not unit.isdecimal():
        raise Malformed(f"{place} is no place of the memory feed")
    return int(unit) * settings.unit + place.ordinal


def bookmark_at(settings: MemoryFeedSettings, place: Place | None, *, since: int = 0) -> Bookmark:
    """What to store when everything up to a place is durable. `since`: the first change, of every
    partition, that belongs to a start at "now" or at a time; children inherit it."""
    mark: dict[str, Any] = {}
    if place is not None and settings.tokens:
        mark["token"] = token_of(number_of(settings, place))
    if since:
        mark["since"] = since
    if settings.history:
        mark["history"] = settings.history
    return Bookmark(place, mark)


# Numbers are scrambled, so that the order of tokens says nothing.
_TOKENS, _FACTOR = 1 << 48, 0x5DEECE66D


def token_of(number: int) -> str:
    """A change's opaque token."""
    return f"{number * _FACTOR % _TOKENS:012x}"


def number_of_token(token: str) -> int | None:
    """The inverse; None for what is no token."""
    try:
        return int(token, 16) * pow(_FACTOR, -1, _TOKENS) % _TOKENS
    except ValueError:
        return None
