"""The oplog of a scripted replica set or sharded cluster: entries with their change events."""

import threading
import zlib
from dataclasses import dataclass, field
from typing import Any

from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from bson.timestamp import Timestamp

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the oplog. A transaction has several events; a no-op has none."""

    time: int
    events: tuple[Event, ...] = ()


@dataclass
class History:
    """What the members of one replica set share; `changed` is notified of each entry.

    Times are cluster times: seconds * 2**32 + counter. `seconds` is the clock, which only a script
    moves. A restored backup is a `copy`.
    """

    name: str = "rs0"
    id: ObjectId = field(default_factory=ObjectId)
    seconds: int = 0x6B000000
    entries: list[Entry] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        if not self.entries:
            self.noop()

    def write(self, *events: Event) -> int:
        """Appends one entry with these events; returns its time."""
        with self.changed:
            last = self.newest if self.entries else 0
            time = max(last + 1, self.seconds << 32 | 1)
            self.entries.append(Entry(time, tuple(events)))
            self.changed.notify_all()
        return time

    def insert(self, *ids: Any, collection: str = "users", database: str = "shop") -> int:
        """Documents with these ids, in one transaction if they are several."""
        return self.write(*(inserted(each, collection, database) for each in ids))

    def noop(self) -> int:
        """What an idle primary writes every ten seconds: src/mongo/db/repl/noop_writer.cpp."""
        return self.write()

    def advance(self, seconds: int) -> None:
        """Moves the clock; cluster times follow with the next entry."""
        self.seconds += seconds

    def trim(self, keep: int) -> None:
        """Removes all entries but the newest `keep`."""
        with self.changed:
            del self.entries[:-keep]
            self.changed.notify_all()

    @property
    def oldest(self) -> int:
        return self.entries[0].time

    @property
    def newest(self) -> int:
        return self.entries[-1].time

    def copy(self, *, entries: int) -> "History":
        """A backup with the first `entries`, restored as files."""
        return History(self.name, self.id, self.seconds, self.entries[:entries])


def inserted(id_: Any, collection: str = "users", database: str = "shop", **more: Any) -> Event:
    return {
        "operationType": "insert",
        "ns": {"db": database, "coll": collection},
        "documentKey": {"_id": id_},
        "fullDocument": {"_id": id_, **more},
    }


def timestamp(time: int) -> Timestamp:
    return Timestamp(time >> 32, time & 0xFFFFFFFF)


def time_of(stamp: Timestamp) -> int:
    return stamp.time << 32 | stamp.inc


# Tokens: version and time in front, then what names an event. A token without an event is a
# high-water mark: `ResumeTokenData` and `isHighWaterMarkToken` in
# src/mongo/db/pipeline/resume_token.cpp, jstests/change_streams/generate_v2_resume_token.js.


def high_water_mark(time: int) -> str:
    return f"82{time:016X}00"


def event_token(id_: ObjectId, time: int, number: int, event: Event, fragment: int) -> str:
    """`id_` stands for the UUID of the collection, which no other cluster has."""
    named = repr((id_, event.get("ns"), event["operationType"]))
    key = str(event.get("documentKey", {}).get("_id", "")).encode().hex().upper()
    crc = zlib.crc32(named.encode())
    return f"82{time:016X}46{number:04X}{crc:08X}{key}{fragment:02X}"


def time_of_token(token: str) -> int:
    return int(token[2:18], 16)


def is_high_water_mark(token: str) -> bool:
    return token[18:] == "00"


def whole(entry: Entry, number: int, id_: ObjectId) -> Event:
    """An event as a change stream gives it, in its order of fields: the head first, so that a
    reader need not decode the rest."""
    event = dict(entry.events[number])
    return {
        "_id": {"_data": event_token(id_, entry.time, number, event, 0xFF)},
        "operationType": event.pop("operationType"),
        "clusterTime": timestamp(entry.time),
        "wallTime": DatetimeMS((entry.time >> 32) * 1000),
        **event,
    }
