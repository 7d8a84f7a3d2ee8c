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

from penstock.feeds.mongodb.cluster import hello_of, is_sharded
from penstock.feeds.mongodb.connect import RAW, Client, address, connect, scope
from penstock.feeds.mongodb.failures import Tolerance, is_timeout, translating
from penstock.feeds.mongodb.pipeline import stages
from penstock.feeds.mongodb.settings import MongoSettings
from penstock.model.errors import Unavailable
from penstock.model.position import Mark
from penstock.wire.changestream.reply import Reply, read_cursor

_SPLITS = (6, 0, 9)  # the first version that splits large events
_CLOSING = 2.0  # seconds
_LONGEST = 600.0  # seconds
_ACCEPTING = 15.0  # seconds


# Why a position is not known to be accepted.
UNANSWERED = "a shard has not answered"


class Patience:
    """How long a `getMore` may take. The server bounds its wait at the end of the oplog and not
    its way there, which a filter makes long: a limit that once was too short would be so again, and
    is doubled. Meanwhile the driver's own connection finds out whether the server hangs."""

    def __init__(self, silence: float) -> None:
        self.seconds = self._first = silence

    def answered(self) -> None:
        """A `getMore` was answered."""
        self.seconds = self._first

    def timed_out(self) -> None:
        """A `getMore` was not answered in time."""
        self.seconds = max(self._first, min(2 * self.seconds, _LONGEST))


class ChangeStream:
    """A change stream at `mark`, or from now on without one. One thread uses it.

    All commands go through one explicit session, because a cursor belongs to its session; and
    through one connection.
    """

    def __init__(
        self,
        settings: MongoSettings,
        mark: Mark | None,
        *,
        batch: int,
        tolerance: Tolerance,
        patience: Patience,
    ) -> None:
        # The newest operation time that the server gave, and the newest time that it knew of when
        # the stream was opened: seconds * 2**32 + counter. The first may be before a token of this
        # very server: after an election, and at a secondary that lags.
        self.time = self.cluster_time = 0
        # The server has looked at the position: not yet where the stream was only opened.
        self.is_accepted = False
        # Whether the server answered the last command: only then the cursor is closed there.
        self._answers = False
        self._settings, self._tolerance, self._patience = settings, tolerance, patience
        # How many events a reply has at most.
        self.batch = batch
        self._subject = f"the change stream of {settings.database} at {address(settings)}"
        # Also for other questions to the server of the stream.
        self.client: Client = connect(settings, patience.seconds)
        try:
            self._database = self.client.get_database(scope(settings))
            with translating(self._subject, tolerance):
                self._session = self.client.start_session(causal_consistency=False)
                sharded = is_sharded(hello_of(self.client))
            self._open(mark)
            # mongos answers without events while a shard has not looked yet: with the token that
            # the stream was opened with.
            self._unread = self.reply.token if sharded else None
        except BaseException:
            self.client.close()
            raise

    def _open(self, mark: Mark | None) -> None:
        pipeline = stages(self._settings, mark, split=self._can_split())
        self.reply = self._command(
            {"aggregate": 1, "pipeline": pipeline, "cursor": {"batchSize": 0}}
        )

    def _can_split(self) -> bool:
        with translating(self._subject, self._tolerance):
            version = self.client.admin.command(
                "buildInfo", session=self._session, read_preference=self.client.read_preference
            )
        return tuple(version["versionArray"]) >= _SPLITS

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
            if is_timeout(error):
                self._patience.timed_out()
            raise
        # Opening a stream proves nothing: the server looks at the token with the first getMore.
        self.is_accepted |= bool(reply.payload) or reply.token != self._unread
        self._tolerance.succeeded()
        self._patience.answered()
        return reply

    def reopen(self, mark: Mark) -> None:
        """Opens the stream again, elsewhere or because the server has closed the cursor."""
        self._kill_cursor()
        self._open(mark)

    def _command(self, command: dict[str, Any]) -> Reply:
        self._answers = False
        with translating(self._subject, self._tolerance):
            answer: RawBSONDocument = self._database.command(
                command,
                codec_options=RAW,
                session=self._session,
                read_preference=self.client.read_preference,
            )
            cursor = bytes(answer["cursor"].raw)  # a memoryview where it is large
            time = answer.get("operationTime")
            if not self.cluster_time:
                known = answer.get("$clusterTime", {}).get("clusterTime")
                self.cluster_time = max(_time(time), _time(known))
        self.time = _time(time) or self.time
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


def is_accepted(read: Callable[[float], Any], accepted: Callable[[], bool], silence: float) -> bool:
    """Whether the server accepts a position, as far as it says so in time. Raises PositionLost. The
    token of an idle cluster moves every ten seconds, with its no-ops."""
    until = time.monotonic() + min(silence, _ACCEPTING)
    while not accepted() and time.monotonic() < until:
        read(1.0)
    return accepted()


def _time(stamp: Any) -> int:
    return stamp.time << 32 | stamp.inc if isinstance(stamp, Timestamp) else 0
