"""The aggregation pipeline of a change stream: where it begins, and what the server filters."""

from collections.abc import Mapping, Sequence
from typing import Any

from bson.timestamp import Timestamp

from penstock.errors import SettingsError
from penstock.feeds.mongodb.settings import ALL, MongoSettings
from penstock.position import Mark
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
    wanted = _wanted(settings)
    if wanted:
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


def _wanted(settings: MongoSettings) -> dict[str, Any]:
    """Events of the collections, and those of a database that has one, or of the stream itself. A
    renamed collection is wanted if one of its names is."""
    if listed := settings.collections:
        return {
            "$or": [
                {"operationType": "invalidate"},
                {"operationType": "dropDatabase"} | _databases(settings),
                _among(settings, "ns", listed),
                _among(settings, "to", listed),
            ]
        }
    if left_out := settings.exclude_collections:
        renamed = {"operationType": "rename", "$nor": [_among(settings, "to", left_out)]}
        return {"$or": [{"$nor": [_among(settings, "ns", left_out)]}, renamed]}
    return {}


def _databases(settings: MongoSettings) -> dict[str, Any]:
    """Of a stream of all databases: those of the listed collections."""
    if settings.database != ALL:
        return {}
    return {"ns.db": {"$in": sorted({name.partition(".")[0] for name in settings.collections})}}


def _among(settings: MongoSettings, field: str, names: Sequence[str]) -> Mapping[str, Any]:
    if settings.database != ALL:
        return {f"{field}.coll": {"$in": list(names)}}
    pairs = [name.split(".", 1) for name in names]
    return {"$or": [{f"{field}.db": pair[0], f"{field}.coll": pair[1]} for pair in pairs]}
