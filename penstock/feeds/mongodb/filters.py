"""Which events a change stream lets through: as a stage for the server, and for one event here.

Places count what a filter lets through, so that another filter gives other places. When the list of
collections changed after a bookmark, what the sink has after it (`Replay`) is read again with both
filters, and passed over by what the server calls it, never by counting.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import bson
from bson.errors import BSONError

from penstock.feeds.mongodb.losses import era_of_bookmark
from penstock.feeds.mongodb.settings import ALL, MongoSettings
from penstock.model.position import Bookmark, Mark, Place
from penstock.wire.changestream.events import RAW, ChangeEvent, cursor_time, element
from penstock.wire.changestream.tokens import history_of, token_from_mark
from penstock.wire.eras import era_of, next_era


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Only `listed` collections; or all but those `left_out`. With `every` database:
    DATABASE.COLLECTION; else of this `database` (`NAME/`)."""

    every: bool = False
    database: str = ""
    listed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: MongoSettings) -> "Filter":
        return cls(
            every=settings.database == ALL,
            database=settings.only,
            listed=tuple(sorted(settings.collections)),
            left_out=tuple(sorted(settings.exclude_collections)),
        )

    def to_json(self) -> dict[str, Any]:
        """As marks have it; `from_json` is the inverse, with the same `every`."""
        named = {"collections": self.listed, "exclude_collections": self.left_out}
        return {name: list(names) for name, names in named.items() if names}

    def from_json(self, found: Mapping[str, Any]) -> "Filter":
        return replace(
            self,
            listed=tuple(found.get("collections", ())),
            left_out=tuple(found.get("exclude_collections", ())),
        )

    def match(self) -> dict[str, Any]:
        """The stage; empty for all. Events of a database that has a listed collection, or of the
        stream itself, pass; a renamed collection does if one of its names does."""
        if self.listed:
            return {
                "$or": [
                    {"operationType": "invalidate"},
                    {"operationType": "dropDatabase"} | self._databases(),
                    self._among("ns", self.listed),
                    self._among("to", self.listed),
                ]
            }
        if self.left_out:
            renamed = {"operationType": "rename", "$nor": [self._among("to", self.left_out)]}
            return {"$or": [{"$nor": [self._among("ns", self.left_out)]}, renamed]}
        return {}

    def _databases(self) -> dict[str, Any]:
        if not self.every:
            return {}
        return {"ns.db": {"$in": sorted({name.partition(".")[0] for name in self.listed})}}

    def _among(self, field: str, names: Sequence[str]) -> Mapping[str, Any]:
        if not self.every:
            return {f"{field}.coll": {"$in": list(names)}}
        pairs = [name.split(".", 1) for name in names]
        return {"$or": [{f"{field}.db": pair[0], f"{field}.coll": pair[1]} for pair in pairs]}

    def passes(self, event: Mapping[str, Any]) -> bool:
        """The same for one event."""
        kind, ns, to = event.get("operationType"), event.get("ns") or {}, event.get("to") or {}
        if self.listed:
            if kind == "dropDatabase":
                databases = {name.partition(".")[0] for name in self.listed}
                return not self.every or ns.get("db") in databases
            named = self._name(ns) in self.listed or self._name(to) in self.listed
            return named or kind == "invalidate"
        if self.left_out:
            renamed = kind == "rename" and self._name(to) not in self.left_out
            return renamed or self._name(ns) not in self.left_out
        return True

    def _name(self, place: Mapping[str, Any]) -> str:
        name = str(place.get("coll"))
        return f"{place.get('db')}.{name}" if self.every else name


def either(filters: Sequence[Filter]) -> dict[str, Any]:
    """The stage for what one of them lets through."""
    stages = [each.match() for each in filters]
    if len(stages) == 1:
        return stages[0]
    return {"$or": stages} if all(stages) else {}


class StoredStretch(NamedTuple):
    """What `filter` lets through is in the sink, up to the event with the token `until` (as marks
    have it), whose cluster time is `time`."""

    filter: Filter
    until: Mapping[str, Any]
    time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A stretch that is read again with another filter, `now`, and what of it is `stored`."""

    now: Filter
    stored: tuple[StoredStretch, ...] = ()

    @classmethod
    def of(cls, settings: MongoSettings, mark: Mark | None) -> "Replay":
        now = Filter.of(settings)
        stored = tuple(
            StoredStretch(now.from_json(each["filter"]), each["until"], each["time"])
            for each in (mark or {}).get("replay", ())
        )
        return cls(now=now, stored=stored)

    def mark(self) -> dict[str, Any]:
        stored = [each._asdict() | {"filter": each.filter.to_json()} for each in self.stored]
        found = {"filter": self.now.to_json()} | history_of("", "", self.now.database)
        return found | ({"replay": stored} if stored else {})

    def match(self) -> dict[str, Any]:
        return either([self.now, *(each.filter for each in self.stored)])

    def read(self, payload: bytes, found: Sequence[ChangeEvent]) -> "Reread":
        """What of these events is to be delivered, and where a part of the stretch ends."""
        untils = [bson.encode(token_from_mark({"token": each.until})) for each in self.stored]
        kept: list[bytes] = []
        for event in found:
            if event.token in untils:
                return Reread(b"".join(kept), self._without(untils.index(event.token)), event.token)
            late = [n for n, each in enumerate(self.stored) if 0 < each.time < event.time]
            if late:  # the server does not give that event any more: it decides by its token
                return Reread(b"".join(kept), self._without(late[0]), untils[late[0]])
            documents = [payload[start:stop] for start, stop in event.documents]
            if self._is_wanted(documents):
                kept += [element(each) for each in documents]
        return Reread(b"".join(kept), None, b"")

    def _is_wanted(self, documents: Sequence[bytes]) -> bool:
        event: dict[str, Any] = {}
        try:
            for document in documents:
                event |= bson.decode(document, RAW)
            passed = any(each.filter.passes(event) for each in self.stored)
            return self.now.passes(event) and not passed
        except (BSONError, ValueError, TypeError, AttributeError):
            return True  # it is delivered as what cannot be read

    def _without(self, number: int) -> "Replay":
        return Replay(now=self.now, stored=self.stored[:number] + self.stored[number + 1 :])


class Reread(NamedTuple):
    """`payload` are the events to deliver. `rest`: a part of the stretch ended after them, and the
    stream goes on with this after the event with the `token`; None: not yet."""

    payload: bytes
    rest: Replay | None
    token: bytes


def moved(settings: MongoSettings, saved: Bookmark, stored: Bookmark | None) -> Bookmark | None:
    """See `feeds.Feed`: where `saved` was read with another filter. What was not let through before
    is read from `saved` on, and what was is not delivered again: new places come after `stored`.
    Without a token in `stored` it is delivered again."""
    mark, now = saved.mark or {}, Filter.of(settings)
    if "filter" not in mark or now.from_json(mark["filter"]) == now:
        return None
    found, place = Replay.of(settings, mark).stored, saved.place
    reached = None if stored is None else stored.place
    if stored is not None and reached is not None and (place is None or reached > place):
        token = (stored.mark or {}).get("token")
        if token is not None:
            cursor = reached.cursor
            time = cursor_time(cursor.removeprefix(era_of(cursor)))
            was = now.from_json(mark["filter"])
            found, place = (*found, StoredStretch(filter=was, until=token, time=time)), reached
        else:  # what the sink has cannot be passed over, and no place may be taken for one of it
            era = max(era_of_bookmark(place, mark), era_of(reached.cursor))
            mark = {**mark, "era": next_era(era)}
    if not found and "place" in mark:
        # The mark may be older than the place, up to which nothing can be counted now.
        saved = mark["place"]
        place = Place.parse(saved) if isinstance(saved, str) else None
    shown = None if place is None else str(place)
    kept = {name: value for name, value in mark.items() if name not in ("filter", "replay")}
    return Bookmark(place, {**kept, **Replay(now=now, stored=found).mark(), "place": shown})
