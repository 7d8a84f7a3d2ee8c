"""Change events as a server sends them, made up."""

from typing import Any

import bson
from bson.timestamp import Timestamp

from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.wire.changestream.events import Placer, cursor_of, element, events

TIME = 0x6B039F83


def event(number: int, kind: str = "insert", **fields: Any) -> dict[str, Any]:
    """One event; its token is made of the number, its time is number // 2."""
    said: dict[str, Any] = {
        "_id": {"_data": f"82{number:016X}"},
        "operationType": kind,
        "clusterTime": Timestamp(TIME, number // 2),
        "wallTime": bson.datetime_ms.DatetimeMS(1_000 * TIME),
        "ns": {"db": "shop", "coll": "users"},
    }
    if kind in ("insert", "update", "replace", "delete"):
        said["documentKey"] = {"_id": number}
    if kind == "insert":
        said["fullDocument"] = {"_id": number}
    return {name: value for name, value in {**said, **fields}.items() if value is not ...}


def payload(*found: dict[str, Any] | bytes) -> bytes:
    """Elements of an array."""
    raw = [each if isinstance(each, bytes) else bson.encode(each) for each in found]
    return b"".join(element(each, number) for number, each in enumerate(raw))


def page(*found: dict[str, Any] | bytes, era: str = "", after: Placer | None = None) -> Page:
    """A page as the following cuts it."""
    content = payload(*found)
    placer = after or Placer(0, -1)
    each = [placer.next(one.time) for one in events(content).events]
    places = [Place(era + cursor_of(time), ordinal) for time, ordinal in each]
    return Page(
        partition=PartitionId("change-stream"),
        first=places[0],
        last=places[-1],
        count=len(places),
        captured_at=1,
        context=b"",
        payload=content,
    )
