"""A mongod that replays prepared replies, fast enough not to be what a bench measures.

Its commands are those of the suite's scripted mongod, which names the source of each. Events are
bytes that are made before the run; a commit writes its times into them:

* The fields of an insert's event, in the order of `applyTransformation` in
  src/mongo/db/pipeline/document_source_change_stream_event_transform.cpp (mongodb/mongo); a token
  is as long as that of the manual's sample ("insert Event" under Change Events).
* Each document of an insert is an entry of the oplog with a cluster time of its own; `wallTime` is
  the primary's clock when it was written.
* A getMore returns what there is, up to `batchSize` and 16 MB (`FindCommon::haveSpaceForNext` in
  src/mongo/db/query/find_common.cpp), and waits up to `maxTimeMS` where there is nothing; the token
  after the events is the last one's, else a high-water mark
  (jstests/change_streams/report_post_batch_resume_token.js).

It filters nothing: all events are of the collection that is followed.
"""

import socket
import struct
import time
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import bson
from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from tests.mongodb.cursors import Batch
from tests.mongodb.history import History, high_water_mark, time_of, time_of_token
from tests.mongodb.server import ScriptedMongod

_MOST = 16 * 2**20  # bytes of a reply's events
# What a token has after its time: version, kind, the collection's UUID, type and key.
_REST = "2B042C0100296E5A1004AB1154ACACD849A48C61756D70D3B21F463C6F7065726174696F6E5479706500"
_REST += "3C696E736572740046646F63756D656E744B65790046645F69640064%s000004"
_TOKEN = 24  # where the text of a token begins in an event: {_id: {_data: "
_Command = dict[str, Any]


def inserted(database: str, collection: str, document: Mapping[str, Any]) -> bytes:
    """The event of an insert at no time; `_id` is an ObjectId."""
    token = "82" + 16 * "0" + _REST % str(document["_id"]).upper()
    return bson.encode(
        {
            "_id": {"_data": token},
            "operationType": "insert",
            "clusterTime": Timestamp(0, 0),
            "wallTime": DatetimeMS(0),
            "fullDocument": document,
            "ns": {"db": database, "coll": collection},
            "documentKey": {"_id": document["_id"]},
        }
    )


class Replay(ScriptedMongod):
    """Replays `events`, as `inserted` makes them, as far as they were committed."""

    def __init__(self, events: Sequence[bytes]) -> None:
        super().__init__(History(name="replay", id=ObjectId(), seconds=int(time.time())))
        self._bytes = [bytearray(each) for each in events]
        self.events = [RawBSONDocument(memoryview(each)) for each in self._bytes]
        self.times: list[int] = []
        """The cluster times of those that were committed."""
        self._clock = events[0].index(b"\x11clusterTime\0") + 13
        self._wall = events[0].index(b"\x09wallTime\0") + 10
        self.applied = self.cluster_time = self.history.newest

    def commit(self, count: int) -> None:
        """The next `count` events happen now."""
        now, first = time.time(), len(self.times)
        start = max(self.history.newest, *self.times[-1:], int(now) << 32) + 1
        times = range(start, start + count)
        for number, event in zip(times, self._bytes[first : first + count], strict=True):
            event[_TOKEN + 2 : _TOKEN + 18] = b"%016X" % number
            struct.pack_into("<Q", event, self._clock, number)
            struct.pack_into("<q", event, self._wall, int(now * 1000))
        with self.history.changed:
            self.times += times
            self.applied = self.cluster_time = times[-1]
            self.history.changed.notify_all()

    def token(self, number: int) -> str:
        """Of a committed event."""
        text = self._bytes[number]
        return text[_TOKEN : text.index(0, _TOKEN)].decode()

    def _serve(self, connection: socket.socket) -> None:
        # As mongod does: else the end of a long reply waits for an acknowledgement.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super()._serve(connection)

    def _opened(self, command: _Command) -> "ReplayCursor":
        return ReplayCursor(self, command["pipeline"][0]["$changeStream"])


class ReplayCursor:
    """Where one change stream is."""

    def __init__(self, server: Replay, stream: Mapping[str, Any]) -> None:
        self._server = server
        token, times = stream.get("startAfter") or stream.get("resumeAfter"), server.times
        if token is not None:
            self._next = bisect_right(times, time_of_token(token["_data"]))
        elif "startAtOperationTime" in stream:
            self._next = bisect_left(times, time_of(stream["startAtOperationTime"]))
        else:
            self._next = len(times)
        self.token = high_water_mark(server.applied) if token is None else token["_data"]

    def more(self, size: int, wait: float) -> Batch:
        """The next batch, for which it waits at the end."""
        server, first, until = self._server, self._next, time.monotonic() + wait
        with server.history.changed:
            while (there := len(server.times) - first) < 1 and until > time.monotonic():
                server.history.changed.wait(until - time.monotonic())
            self.token = high_water_mark(server.applied)
        if there > 0:
            most = _MOST // len(server.events[first].raw)
            self._next = first + min(there, size, most)
            self.token = server.token(self._next - 1)
        return Batch(server.events[first : self._next], self.token)
