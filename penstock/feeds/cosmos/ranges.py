"""Key ranges as partitions, as pure code: names, cuts, and who descends from whom; and their marks:
what a bookmark stores besides its place.

A partition is a range of hashed partition keys, named `MIN-MAX` ("0" for the lowest key): not a
physical partition, whose id a split takes away. Children of a range that was split are its own
pieces, also where it had been a part of a physical partition; after a merge ranges go on as parts
of the merged partition.

{"rid": container, "range": [min, max], "etag": "..."}          # everything until there
{..., "etag": "...", "within": true}                            # and the page's up to the place
{..., "etag": "...", "done": "PLACE"}                           # of a child: and up to there
{..., "cuts": ["7F8..."]}                                       # the range has ended, by a split
{..., "from": "beginning"} or {..., "from": "2026-11-23T10:00:00+00:00"}
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, NamedTuple

import orjson

from penstock.feeds import Lineage
from penstock.feeds.shared import comes_before
from penstock.model.errors import Malformed
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place

CUTS = "cuts"


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedMark:
    """Where to read from: after `etag`, else from `since` (None: the beginning). `within`: a part
    of the page after the etag is done, up to the bookmark's place; `done`: up to this place of the
    parent, whose LSNs a child goes on with."""

    rid: str
    range: tuple[str, str]
    etag: str | None = None
    since: datetime | None = None
    within: bool = False
    done: Place | None = None
    cuts: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"rid": self.rid, "range": list(self.range)}
        if self.etag is not None:
            found["etag"] = self.etag
        else:
            found["from"] = "beginning" if self.since is None else self.since.isoformat()
        found |= {"within": True} if self.within else {}
        found |= {} if self.done is None else {"done": str(self.done)}
        return found | ({CUTS: list(self.cuts)} if self.cuts else {})

    def to_text(self) -> str:
        return orjson.dumps(self.to_json()).decode()

    def inside(self) -> "FeedMark":
        """The same, inside the page that follows."""
        return replace(self, within=True, done=None)

    def after(self, etag: str, *, numbered: bool = True) -> "FeedMark":
        """Everything up to an etag is done. None, which would be the beginning, changes nothing;
        nor does an older one, of a replica that lags behind, that came without documents
        (`numbered`). With documents it is after them, however the service numbers them."""
        if not etag:
            return self
        known, found = number_of(self.etag), number_of(etag)
        if numbered and known is not None and found is not None and found < known:
            return self
        return replace(self, etag=etag, since=None, within=False, done=None)


def number_of(etag: str | None) -> int | None:
    """Of an etag, where it is one: an LSN."""
    digits = (etag or "").strip('"')
    return int(digits) if digits.isdecimal() else None


def mark_of(bookmark: Bookmark, key_range: tuple[str, str]) -> FeedMark | None:
    """From a bookmark; None where it has none. Raises Malformed, also for one of another range."""
    mark = bookmark.mark
    if not mark or "range" not in mark:
        return None
    try:
        (low, high), since = mark["range"], mark.get("from", "beginning")
        found = FeedMark(
            rid=str(mark["rid"]),
            range=(str(low), str(high)),
            etag=None if mark.get("etag") is None else str(mark["etag"]),
            since=None if since == "beginning" else datetime.fromisoformat(since),
            within=bool(mark.get("within")),
            done=Place.parse(mark["done"]) if "done" in mark else None,
        )
    except (KeyError, ValueError, TypeError) as error:
        raise Malformed(f"the mark of a bookmark is damaged: {error}", "cosmos") from error
    if found.range != tuple(key_range):
        raise Malformed(
            f"the bookmark was made by the range {'-'.join(found.range)}, not this one", "cosmos"
        )
    return found


def child_mark(parent: Bookmark, key_range: tuple[str, str]) -> dict[str, Any] | None:
    """A child begins at its parent's continuation, inside a page where the parent's place was."""
    if not parent.mark:
        return None
    kept = {name: value for name, value in parent.mark.items() if name not in (CUTS, "within")}
    if parent.mark.get("within") and parent.place is not None:
        kept["done"] = str(parent.place)
    return {**kept, "range": list(key_range)}


def moved(saved: Bookmark, stored: Bookmark | None) -> Bookmark | None:
    """`stored`, of the sink's last change, where that is further than `saved`. The range may have
    been split since, and then its children give what came after its bookmark as theirs."""
    if stored is None or stored.place is None or saved.ended or not stored.mark:
        return None
    mark, known = stored.mark, saved.mark or {}
    if any(mark.get(name) != known.get(name) for name in ("rid", "range")):
        return None
    return None if saved.place is not None and stored.place <= saved.place else stored


class _Boundary(NamedTuple):
    """A page's last place, when that was written, and the marks before and after the page."""

    last: Place | None
    before: FeedMark
    after: FeedMark
    created: float = 0.0


class PageBoundaries:
    """Of the pages after `place`, which began at `mark`. Thread-safe. A place at a page's end is
    resumed after the page; one inside it by reading the page again. The mark of the newest place is
    renewed while nothing comes: an idle range advances."""

    def __init__(self, place: Place | None, mark: FeedMark) -> None:
        self._lock = threading.Lock()
        self._pages = deque([_Boundary(place, mark, mark)])
        # The newest place that a bookmark was made of.
        self.asked = place
        self._is_kept = False

    def keep(self) -> None:
        """From now on places may be asked for in any order."""
        self._is_kept = True

    def note(self, last: Place, before: FeedMark, after: FeedMark, created: float) -> None:
        with self._lock:
            self._pages.append(_Boundary(last, before, after, created))

    def created(self, place: Place | None) -> float:
        """When the change at a place was written, in seconds since 1970, by the page's end (without
        a place the first page's); 0 where that is not known."""
        with self._lock:
            for page in self._pages:
                if page.created and not comes_before(page.last, place):
                    return page.created
            return 0.0

    def renew(self, after: FeedMark) -> None:
        """There was nothing until then."""
        with self._lock:
            self._pages[-1] = self._pages[-1]._replace(after=after)

    def end(self, cuts: Sequence[str]) -> None:
        """The range has ended, with these boundaries of its children."""
        self.renew(replace(self._pages[-1].after, cuts=tuple(cuts)))

    def bookmark(self, place: Place | None) -> Bookmark | None:
        """None for a place before all that are known."""
        with self._lock:
            if place is None:
                first = self._pages[0]
                return Bookmark(None, first.after.to_json()) if first.last is None else None
            while (
                not self._is_kept
                and len(self._pages) > 1
                and comes_before(self._pages[1].last, place)
            ):
                self._pages.popleft()
            self.asked = place if self.asked is None or place > self.asked else self.asked
            for page in self._pages:
                if page.last == place:
                    return Bookmark(place, page.after.to_json())
                if comes_before(place, page.last):
                    known = page is not self._pages[0] or page.last is None
                    return Bookmark(place, page.before.inside().to_json()) if known else None
            return None


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
            raise Malformed(f"{partition!r} is not a key range (MIN-MAX)", "cosmos")
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
        width = max(_WIDTH, *map(len, self))
        low, high = (int(each.ljust(width, "0"), 16) for each in self)
        return f"{(low + high) // 2:0{width}X}"


def _is_hex(text: str) -> bool:
    return bool(text) and all(each in "0123456789ABCDEF" for each in text)


def lineages(physical: Sequence[KeyRange], known: Bookmarks) -> list[Lineage]:
    """The partitions, parents first: those that are known, children of those that have ended, and
    the service's own where no keys are known; no ended ones whose children are known."""
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
    found = known.get(parent.name, START)
    first = Bookmark(mark=child_mark(found, each)) if found.ended else None
    return Lineage(partition=each.name, parents=(parent.name,), first=first)


def _children(
    each: KeyRange, bookmark: Bookmark, ranges: Iterable[KeyRange], physical: Sequence[KeyRange]
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
