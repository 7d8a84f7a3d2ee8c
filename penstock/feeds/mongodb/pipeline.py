"""The aggregation pipeline of a change stream: where it begins, and what the server filters."""

from typing import Any

from bson.timestamp import Timestamp

from penstock.feeds.mongodb.filters import Replay
from penstock.feeds.mongodb.settings import ALL, POSITIONS, MongoSettings
from penstock.model.errors import SettingsError
from penstock.model.position import Mark
from penstock.wire.changestream.tokens import token_from_mark

_IMAGES = {
    "update_lookup": "updateLookup",
    "when_available": "whenAvailable",
    "required": "required",
}


def stages(settings: MongoSettings, mark: Mark | None, *, split: bool) -> list[dict[str, Any]]:
    """`mark`: None begins now. `split`: the server can split large events."""
    stream: dict[str, Any] = {}
    if settings.full_document != "off":
        stream["fullDocument"] = _IMAGES[settings.full_document]
    if settings.before != "off":
        stream["fullDocumentBeforeChange"] = _IMAGES[settings.before]
    if settings.database == ALL:
        stream["allChangesForCluster"] = True
    found = [{"$changeStream": stream | ({} if mark is None else _from(mark))}]
    # Saved positions are never followed: each would be a change, and be saved.
    wanted = {**Replay.of(settings, mark).match(), "ns.coll": {"$ne": POSITIONS}}
    found.append({"$match": wanted})
    if split:
        found.append({"$changeStreamSplitLargeEvent": {}})  # must be the last one
    return found


def _from(mark: Mark) -> dict[str, Any]:
    """`startAfter` takes every token, `resumeAfter` refuses the one of an invalidation."""
    if "token" in mark:
        return {"startAfter": token_from_mark(mark)}
    if "time" in mark:
        seconds, counter = mark["time"]
        return {"startAtOperationTime": Timestamp(seconds, counter)}
    raise SettingsError(
        "this bookmark has neither a resume token nor a time",
        hint="begin anew, or set the position with its mark: a place alone cannot be resumed",
    )
