"""Key ranges as partitions, as pure code: names, cuts, and who descends from whom.

A partition is a range of hashed partition keys, named `MIN-MAX` ("0" for the lowest key): not a
physical partition, whose id a split takes away. A range that the service splits ends; its children
are its own pieces, also where it had been a part of a physical partition. A merge ends nothing: the
ranges go on as parts of the merged partition.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock.feeds import Lineage
from penstock.feeds.cosmos.marks import CUTS, child_mark
from penstock.model.errors import Malformed
from penstock.model.position import Bookmark, Bookmarks, PartitionId

_WIDTH = 32  # hexadecimal digits of a hash; of a hierarchical key's, two or three times as many


class KeyRange(NamedTuple):
    """From `min` to below `max`: hexadecimal text that compares as the hashes do."""

    min: str
    max: str

    @property
    def name(self) -> PartitionId:
        return PartitionId(f"{self.min or '0'}-{self.max}")

    @classmethod
    def of(cls, partition: PartitionId) -> "KeyRange":
        """The inverse of `name`; raises Malformed."""
        low, dash, high = partition.partition("-")
        found = cls("" if low == "0" else low, high)
        if not dash or not _is_hex(low) or not _is_hex(high) or found.min >= found.max:
            raise Malformed(f"{partition!r} is not a key range (MIN-MAX)")
        return found

    def holds(self, other: "KeyRange") -> bool:
        """Whether all of the other is in it."""
        return self.min <= other.min and other.max <= self.max

    def cuts(self, physical: Iterable["KeyRange"]) -> list[str]:
        """Where boundaries of physical partitions are inside it."""
        return sorted({each.min for each in physical if self.min < each.min < self.max})

    def cut(self, at: Sequence[str]) -> list["KeyRange"]:
        """The pieces between these boundaries."""
        edges = [self.min, *at, self.max]
        return [KeyRange(low, high) for low, high in pairwise(edges)]

    @property
    def middle(self) -> str:
        """A boundary that halves it."""
        width = max(_WIDTH, *map(len, self))
        low, high = (int(each.ljust(width, "0"), 16) for each in self)
        return f"{(low + high) // 2:0{width}X}"


def _is_hex(text: str) -> bool:
    return bool(text) and all(each in "0123456789ABCDEF" for each in text)


def lineages(physical: Sequence[KeyRange], known: Bookmarks) -> list[Lineage]:
    """The partitions, parents first: those that are known, children of those that have ended, and
    the service's own where nothing is known of their keys. Not those that have ended and whose
    children are known."""
    if not known:
        return [Lineage(partition=each.name) for each in physical]
    ranges = {KeyRange.of(name) for name in known}
    for each in _outer_first(ranges):
        if known[each.name].ended:
            ranges.update(_children(each, known[each.name], ranges, physical))
    for gap in uncovered(KeyRange(physical[0].min, physical[-1].max), ranges):
        ranges.update(gap.cut(gap.cuts(physical)))
    found, around = [], list[KeyRange]()
    for each in _outer_first(ranges):
        while around and not around[-1].holds(each):
            around.pop()
        if not _is_replaced(each, known):
            found.append(_lineage(each, around[-1] if around else None, known))
        around.append(each)
    return found


def _is_replaced(each: KeyRange, known: Bookmarks) -> bool:
    """Whether the range has ended, and ranges that are known cover it: nothing needs it."""
    if each.name not in known or not known[each.name].ended:
        return False
    inside = [KeyRange.of(name) for name in known if name != each.name]
    return not uncovered(each, [other for other in inside if each.holds(other)])


def _outer_first(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    widest_first = sorted(ranges, key=lambda each: each.max, reverse=True)
    return sorted(widest_first, key=lambda each: each.min)


def _lineage(each: KeyRange, parent: KeyRange | None, known: Bookmarks) -> Lineage:
    if parent is None:
        return Lineage(partition=each.name)
    found = known.get(parent.name, Bookmark())
    first = Bookmark(mark=child_mark(found, each)) if found.ended else None
    return Lineage(partition=each.name, parents=(parent.name,), first=first)


def _children(
    each: KeyRange,
    bookmark: Bookmark,
    ranges: Iterable[KeyRange],
    physical: Sequence[KeyRange],
) -> list[KeyRange]:
    """Of a range that has ended: as its mark has them; else those that are known already, and what
    is left between them; else by the service's boundaries. Halves, where it has none now."""
    cuts = (bookmark.mark or {}).get(CUTS)
    if cuts:
        return each.cut([str(cut) for cut in cuts])
    inside = [other for other in ranges if other != each and each.holds(other)]
    if inside:
        return [*inside, *uncovered(each, inside)]
    return each.cut(each.cuts(physical) or [each.middle])


def uncovered(each: KeyRange, covered: Iterable[KeyRange]) -> list[KeyRange]:
    """The parts of a range that none of the others has."""
    found, low = [], each.min
    for other in sorted(covered):
        if other.min >= each.max:
            break
        if other.min > low:
            found.append(KeyRange(low, other.min))
        low = max(low, other.max)
    return [*found, KeyRange(low, each.max)] if low < each.max else found
