"""One cursor of one change stream, by raw commands: no event is decoded here.

The driver's own `watch()` decodes each event twice as slowly, reopens without a word where we must
know, and its `next()` never returns while idle.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pymongo
from bson.int64 import Int64
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError

from penstock.feeds.mongodb.cluster import asked, hello_of, is_sharded, time_of
from penstock.feeds.mongodb.connect import Client, address, connect, scope
from penstock.feeds.mongodb.failures import Tolerance, is_timeout, is_too_large, translating
from penstock.feeds.mongodb.filters import Replay
from penstock.feeds.mongodb.settings import ALL, POSITIONS, MongoSettings
from penstock.model.errors import SettingsError, Unavailable
from penstock.model.position import Mark
from penstock.process.closing import closing_on_failure
from penstock.wire.changestream.changes import OPERATIONS
from penstock.wire.changestream.events import RAW, Reply, read_cursor
from penstock.wire.changestream.tokens import token_from_mark

_SPLITS = (6, 0, 9)  # the first version that splits large events
_EXPANDS = (6, 1)  # the first one whose expanded events have `disambiguatedPaths`
_CLOSING = 2.0  # seconds
_LONGEST = 600.0  # seconds
_ACCEPTING = 15.0  # seconds
_IMAGES = {
    "update_lookup": "updateLookup",
    "when_available": "whenAvailable",
    "required": "required",
}

# Why a position is not known to be accepted.
UNANSWERED = "a shard has not answered"


def stages(
    settings: MongoSettings, mark: Mark | None, *, split: bool, expand: bool = False
) -> list[dict[str, Any]]:
    """The pipeline of a change stream: where it begins (`mark`: None begins now), and what the
    server filters. `split`: it can split large events; `expand`: it knows expanded events."""
    stream: dict[str, Any] = {}
    if settings.full_document != "off":
        stream["fullDocument"] = _IMAGES[settings.full_document]
    if settings.before != "off":
        stream["fullDocumentBeforeChange"] = _IMAGES[settings.before]
    if settings.database == ALL:
        stream["allChangesForCluster"] = True
    if expand:
        stream["showExpandedEvents"] = True
    found = [{"$changeStream": stream | ({} if mark is None else _from(mark))}]
    # Saved positions are never followed: each would be a change, and be saved.
    wanted = {**Replay.of(settings, mark).match(), "ns.coll": {"$ne": POSITIONS}}
    if expand:
        # Not the other kinds, nor the drop of a view, which alone has no UUID of a collection. The
        # token of an event is the same either way.
        wanted["operationType"] = {"$in": list(OPERATIONS)}
        wanted["$nor"] = [{"operationType": "drop", "collectionUUID": None}]
    found.append({"$match": wanted})
    if split:
        found.append({"$changeStreamSplitLargeEvent": {}})  # must be the last one
    return found


def _from(mark: Mark) -> dict[str, Any]:
    """`startAfter` takes every token, `resumeAfter` refuses the one of an invalidation."""
    if "token" in mark:
        return {"startAfter": token_from_mark(mark)}
    if "time" in mark:
        return {"startAtOperationTime": Timestamp(*mark["time"])}
    raise SettingsError(
        "this bookmark has neither a resume token nor a time",
        "mongodb.bookmark-without-token",
        hint="begin anew, or set the position with its mark: a place alone cannot be resumed",
    )


class Limits:
    """Of one backend's streams, one after the other. `batch`: how many events a reply has at most;
    `seconds`: how long a `getMore` may take; `tolerance`: of errors that nothing is known about.
    The server bounds its wait at the end of the oplog and not its way there, which a filter makes
    long: a limit that was too short would be so again, and is doubled. Meanwhile the driver's own
    connection finds out whether the server hangs."""

    def __init__(self, silence: float, batch: int) -> None:
        self.batch = batch
        self.seconds = self._first = silence
        self.tolerance = Tolerance()

    def answered(self) -> None:
        self.seconds = self._first
        self.tolerance.succeeded()

    def failed(self, error: Unavailable) -> None:
        """A `getMore` was not answered, maybe not in time. The driver refuses replies of more than
        48 MB, which no real server sends: ask for less, down to one change."""
        if is_timeout(error):
            self.seconds = max(self._first, min(2 * self.seconds, _LONGEST))
        if is_too_large(error):
            self.batch = max(1, self.batch // 16)


class ChangeStream:
    """A change stream at `mark`, or from now on without one. One thread uses it. All commands go
    through one session, to which a cursor belongs, and one connection."""

    def __init__(self, settings: MongoSettings, mark: Mark | None, limits: Limits) -> None:
        # The newest operation time that the server gave, and the newest time that it knew of when
        # the stream was opened: seconds * 2**32 + counter. The first may be before a token of this
        # very server: after an election, and at a secondary that lags.
        self.time = self.cluster_time = 0
        # The server has looked at the position: not yet where the stream was only opened.
        self.is_accepted = False
        # Whether the server answered the last command: only then the cursor is closed there.
        self._answers = False
        self._settings, self._limits, self.batch = settings, limits, limits.batch
        self._subject = f"the change stream of {settings.database} at {address(settings)}"
        # Also for other questions to the server of the stream.
        self.client: Client = connect(settings, limits.seconds)
        with closing_on_failure(self.client):
            self._database = self.client.get_database(scope(settings))
            with translating(self._subject, limits.tolerance):
                self._session = self.client.start_session(causal_consistency=False)
                sharded = is_sharded(hello_of(self.client))
            self._open(mark)
            # While a shard has not looked, mongos answers with the token of the opening.
            self._unread = self.reply.token if sharded else None

    def _open(self, mark: Mark | None) -> None:
        with translating(self._subject, self._limits.tolerance):
            version = tuple(asked(self.client, "buildInfo")["versionArray"])
        pipeline = stages(
            self._settings, mark, split=version >= _SPLITS, expand=version >= _EXPANDS
        )
        self.reply = self._command(
            {"aggregate": 1, "pipeline": pipeline, "cursor": {"batchSize": 0}}
        )

    def more(self, timeout: float) -> Reply:
        """The next events; the server waits up to `timeout` seconds for the first. After an
        invalidation, which ends a cursor, the stream is opened again after it."""
        try:
            reply = self._command(
                {
                    "getMore": Int64(self.reply.cursor),
                    "collection": self.reply.collection,
                    "batchSize": self.batch,
                    "maxTimeMS": max(1, int(timeout * 1000)),
                }
            )
        except Unavailable as error:
            self._limits.failed(error)
            raise
        # Opening a stream proves nothing: the server looks at the token with the first getMore.
        self.is_accepted |= bool(reply.payload) or reply.token != self._unread
        self._limits.answered()
        return reply

    def accepts(self, read: Callable[[float], Any]) -> bool:
        """Whether the server accepts the position, if it says so in time; `read` calls `more`.
        Raises PositionLost. The token of an idle cluster moves every ten seconds, with no-ops."""
        until = time.monotonic() + min(self._settings.silence, _ACCEPTING)
        while not self.is_accepted and time.monotonic() < until:
            read(1.0)
        return self.is_accepted

    def reopen(self, mark: Mark) -> None:
        """Opens the stream again, elsewhere or because the server has closed the cursor."""
        self._kill_cursor()
        self._open(mark)

    def _command(self, command: dict[str, Any]) -> Reply:
        self._answers = False
        with translating(self._subject, self._limits.tolerance):
            answer: RawBSONDocument = self._database.command(
                command,
                codec_options=RAW,
                session=self._session,
                read_preference=self.client.read_preference,
            )
            cursor = bytes(answer["cursor"].raw)  # a memoryview where it is large
            time = time_of(answer.get("operationTime"))
            if not self.cluster_time:
                known = answer.get("$clusterTime", {}).get("clusterTime")
                self.cluster_time = max(time, time_of(known))
        self.time = time or self.time
        self._answers = True
        return read_cursor(cursor)

    def close(self) -> None:
        """Closes the cursor, if the server answers at once, and the connection."""
        self._kill_cursor()
        self.client.close()

    def _kill_cursor(self) -> None:
        if self._answers and self.reply.cursor:
            with suppress(PyMongoError, OSError), pymongo.timeout(_CLOSING):
                self._database.command(
                    {"killCursors": self.reply.collection, "cursors": [Int64(self.reply.cursor)]},
                    session=self._session,
                    read_preference=self.client.read_preference,
                )
