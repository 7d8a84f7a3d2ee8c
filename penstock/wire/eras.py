"""Eras: the histories of a source that uses the same cursors again, for other changes.

A restored backup, a promoted standby that lacked the newest changes, another cluster: each is a
later history of what was one source. The cursors of a later history begin with an era, which sorts
after all cursors of the eras before: `00000000/016B3748`, then `e0001-00000000/016B3748`. The first
era is not written. A feed may use eras if its own cursors begin with a digit or a capital letter,
which sort before `e`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.change import Passed
from penstock.model.errors import Malformed
from penstock.model.page import Decoder, DecoderAround, Page
from penstock.model.position import Mark, Place
from penstock.native.batch import Batch, NativeDecoder

_ERA = re.compile(r"e(\d{4})-")
_LAST_ERA = 9999
# What a mark has of its source: a PostgreSQL server, a MongoDB cluster and database, a container.
_SOURCES = ("system", "cluster", "database", "rid")
# And of which history a place is; all else is where in it.
_HISTORY = (*_SOURCES, "timeline", "era")


def era_of(cursor: str) -> str:
    """What a cursor has before the source's own cursor: `` or `e0001-`."""
    found = _ERA.match(cursor)
    return found[0] if found else ""


def next_era(era: str) -> str:
    """The era after this one; raises Malformed after 9,999 of them."""
    number = int(era[1:-1]) + 1 if era else 1
    if number > _LAST_ERA:
        raise Malformed(f"there is no era after {era}", "wire")
    return f"e{number:04d}-"


def is_comparable(cursor: str, mark: Mark, later: str, later_mark: Mark) -> bool:
    """Whether a cursor of a partition compares with a later one: they are of one source, as far as
    the marks of both say it, or the later one is of a later era. Cursors of two timelines of a
    source compare where they rise: what was read twice, on either, may be of other changes."""
    era, then = era_of(later), era_of(cursor)
    if era != then or is_of_another(mark, later_mark):
        return era > then
    timelines = {mark.get("timeline"), later_mark.get("timeline")} - {None}
    return later > cursor or len(timelines) < 2


def is_of_another(mark: Mark, other: Mark) -> bool:
    """Whether marks are of different sources. One may know less of it: `rs0/` and `rs0/ID`."""
    for name in _SOURCES:
        one, two = str(mark.get(name) or ""), str(other.get(name) or "")
        if not (one.startswith(two) or two.startswith(one)):
            return True
    return False


def is_whole(mark: Mark | None) -> bool:
    """Whether a mark says where its source is read on, and not only of which history it is."""
    return any(name not in _HISTORY for name in mark or {})


@lru_cache(1024)
def history_mark(mark: str) -> str:
    """Of a mark (JSON text, or "") what says of which history its place is."""
    found = orjson.loads(mark) if mark else {}
    if not is_whole(found):
        return mark
    kept = {name: value for name, value in found.items() if name in _HISTORY}
    return orjson.dumps(kept).decode() if kept else ""


class EraDecoder(DecoderAround):
    """A `page.Decoder` for a feed with eras, around one without them: of a feed whose event ids end
    with `cursor:ordinal`. A page of a later era is decoded as one of the first, then its changes
    are renamed. Pages of the first era, which are nearly all, pass as they are."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder)
        self._natively: Callable[[Page], Sequence[Batch]] = decoder.decode
        if isinstance(decoder, NativeDecoder):
            self._natively = decoder.decode_natively

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        if not (era := era_of(page.first.cursor)):
            return self.decoder.decode(page)
        plain = replace(page, first=_plain(page.first), last=_plain(page.last))
        return [
            _renamed(batch, era) if passed is None else passed._replace(place=page.last).batch
            for batch in self.decoder.decode(plain)
            for passed in [Passed.of(batch)]
        ]

    def decode_natively(self, page: Page) -> Sequence[Batch]:
        """See `NativeDecoder`."""
        return self.decode(page) if era_of(page.first.cursor) else self._natively(page)


def _plain(place: Place) -> Place:
    return place._replace(cursor=place.cursor.removeprefix(era_of(place.cursor)))


def _renamed(batch: pa.RecordBatch, era: str) -> pa.RecordBatch:
    text = pa.string()
    first, place = (batch.column(name)[0].as_py() for name in ("event_id", "cursor"))
    texts: list[Any] = [pa.scalar(each, text) for each in (first[: first.rindex(place)], era, "")]
    source, prefix, empty = texts
    colon: Any = pa.scalar(":", text)
    join, ordinal = pc.binary_join_element_wise, batch.column("ordinal").cast(text)
    cursor = join(prefix, batch.column("cursor"), empty)
    event_id = join(join(source, cursor, empty), ordinal, colon)
    names = batch.schema.names
    columns = list(batch.columns)
    columns[names.index("cursor")] = cursor
    columns[names.index("event_id")] = event_id
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
