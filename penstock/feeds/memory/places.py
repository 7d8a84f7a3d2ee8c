"""The memory feed's changes: a number in a partition gives a change's place, key and time."""

from datetime import UTC, datetime

from penstock.errors import Malformed
from penstock.feeds.memory.settings import MemoryFeedSettings
from penstock.position import Place

__all__ = ["COMMITTED", "KEYS", "number_of", "place_of"]

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
