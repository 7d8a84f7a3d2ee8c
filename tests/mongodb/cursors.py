"""Change stream cursors of a scripted mongod: where they begin, what they scan, how they end."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, uuid5

import bson
from bson.binary import Binary

from tests.mongodb.history import (
    Entry,
    Event,
    History,
    event_token,
    high_water_mark,
    is_high_water_mark,
    time_of,
    time_of_token,
    whole,
)

# Kinds of events that only expanded streams have.
EXPANDED = ("create", "createIndexes", "dropIndexes", "modify", "shardCollection")


class Refused(Exception):
    """A command's error: `code` and `message`."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Batch(NamedTuple):
    """What a getMore returns: events and the postBatchResumeToken."""

    events: list[Event]
    token: str


class ChangeStreamCursor:
    """One cursor. `applied()` is the newest time that its member can read (a secondary may lag);
    `pause(entries)` takes the time that scanning them takes; `late` is `ScriptedMongod.late`."""

    def __init__(
        self,
        history: History,
        database: str,
        pipeline: Sequence[Mapping[str, Any]],
        *,
        applied: Callable[[], int],
        pause: Callable[[int], None],
        split_over: int,
        late: int = 0,
    ) -> None:
        self._history, self._applied, self._pause = history, applied, pause
        stream = pipeline[0]["$changeStream"]
        self._database = "" if stream.get("allChangesForCluster") else database
        self._expands = bool(stream.get("showExpandedEvents"))
        self._match = next((each["$match"] for each in pipeline if "$match" in each), {})
        splits = any("$changeStreamSplitLargeEvent" in each for each in pipeline)
        self._split_over = split_over if splits else 2**31
        self._after = ""  # the event to be found before any is returned
        self._is_begun = False
        self._late = late
        self._pending: list[Event] = []  # fragments that did not fit
        token, data = stream.get("startAfter") or stream.get("resumeAfter"), ""
        if token is not None:
            data = token["_data"]
            self._next = time_of_token(data)
            if is_high_water_mark(data):
                # Taken for a time by every cluster, as `startAtOperationTime` is: "do not refer to
                # a specific event", src/mongo/db/pipeline/resume_token.h.
                self._next += 1
            else:
                self._after = data
        elif "startAtOperationTime" in stream:
            self._next = time_of(stream["startAtOperationTime"])
        else:
            self._next = applied() + 1
        # The first token, which the aggregate returns: jstests/change_streams/
        # report_post_batch_resume_token.js.
        self.token = data if token is not None else high_water_mark(self._next - 1)
        self._starts = self._next

    def more(self, size: int, wait: float) -> Batch:
        """The next batch, for which the cursor waits at the end of the oplog only: maxTimeMS of an
        awaitData cursor is `waitForInsertsDeadline` (getmore_cmd.cpp), and a scan is not bounded
        (jstests: tailable_getmore_no_timeout.js)."""
        until = time.monotonic() + wait
        if self._late:
            self._late -= 1
            time.sleep(wait)
            return Batch([], self.token)
        while True:
            batch = self._scan(size)
            left = until - time.monotonic()
            if batch.events or left <= 0:
                return batch
            with self._history.changed:
                if self._applied() < self._next:
                    self._history.changed.wait(min(left, 0.05))

    def _scan(self, size: int) -> Batch:
        with self._history.changed:
            self._assert_history()
            applied = self._applied()
            entries = [e for e in self._history.entries if self._next <= e.time <= applied]
        if entries:
            self._pause(len(entries))
        self._is_begun = True
        found = self._pending
        self._pending = []
        for entry in entries:
            found += self._events_of(entry)
            self._next = entry.time + 1
            if len(found) >= size:
                break
        if len(found) > size:
            found, self._pending = found[:size], found[size:]
        if self._pending:
            return Batch(found, found[-1]["_id"]["_data"])
        return Batch(found, high_water_mark(max(self._next - 1, self._starts - 1)))

    def _assert_history(self) -> None:
        """Never called by the aggregate with `batchSize: 0`, which calls no `getNext`:
        src/mongo/db/commands/query_cmd/run_aggregate.cpp. jstests expect either: see
        `assertChangeStreamThrowsCode` in jstests/libs/query/change_stream_util.js."""
        if self._history.oldest <= max(self._next, 1):
            return
        if self._is_begun:  # src/mongo/db/exec/collection_scan.cpp
            raise Refused(
                136,
                "CollectionScan died due to position in capped collection being deleted. Last"
                " seen record id: RecordId(7)",
            )
        # src/mongo/db/pipeline/document_source_change_stream_check_resumability.cpp, from
        # OplogQueryMinTsMissing.
        raise Refused(
            286,
            "Executor error during getMore :: caused by :: Resume of change stream was not"
            " possible, as the resume point may no longer be in the oplog.",
        )

    def _events_of(self, entry: Entry) -> list[Event]:
        found = []
        for number in range(len(entry.events)):
            event = whole(entry, number, self._history.id)
            if self._after:
                self._find(entry, number, event)
                continue
            shown = self._shown(event)
            if shown is not None and self._is_wanted(shown):
                found += self._split(shown, entry, number)
        if self._after and not entry.events and entry.time > time_of_token(self._after):
            self._not_found()
        return found

    def _find(self, entry: Entry, number: int, event: Event) -> None:
        """src/mongo/db/pipeline/document_source_change_stream_ensure_resume_token_present.cpp:
        events up to the token's are skipped, and a later one means that it is not there."""
        token = self._after
        if event["_id"]["_data"][:-2] == token[:-2]:
            self._after = ""
        elif entry.time > time_of_token(token):
            self._not_found()

    def _not_found(self) -> None:
        raise Refused(
            280,
            "Executor error during getMore :: caused by :: cannot resume stream; the resume token"
            f' was not found. {{_data: "{self._after}"}}',
        )

    def _shown(self, event: Event) -> Event | None:
        """As `showExpandedEvents` has it, whose tokens are those of other streams: src/mongo/db/
        pipeline/change_stream_event_transform.cpp. Events of views (`view`) have no UUID."""
        event, is_view = dict(event), event.pop("view", False)
        if self._expands:
            name = str(event.get("ns"))
            uuid = Binary.from_uuid(uuid5(NAMESPACE_OID, name))
            return event if is_view else {**event, "collectionUUID": uuid}
        if is_view or event["operationType"] in EXPANDED:
            return None
        said = event.get("updateDescription")
        if said:
            kept = {each: said[each] for each in said if each != "disambiguatedPaths"}
            return {**event, "updateDescription": kept}
        return event

    def _is_wanted(self, event: Event) -> bool:
        named = event.get("ns", {}).get("db", "")
        return self._database in ("", named) and matches(event, self._match)

    def _split(self, event: Event, entry: Entry, number: int) -> list[Event]:
        """Fragments have `_id` and `splitEvent`, then fields by rising size, none twice:
        src/mongo/db/pipeline/change_stream_split_event_helpers.cpp,
        jstests/change_streams/change_stream_split_large_event.js."""
        if len(bson.encode(event)) <= self._split_over:
            return [event]
        sizes = {name: len(bson.encode({name: event[name]})) for name in event if name != "_id"}
        parts: list[list[str]] = [[]]
        room = self._split_over
        for name in sorted(sizes, key=lambda each: sizes[each]):
            if sizes[name] > room and parts[-1]:
                parts.append([])
                room = self._split_over
            parts[-1].append(name)
            room -= sizes[name]
        plain = entry.events[number]
        return [
            {
                "_id": {
                    "_data": event_token(self._history.id, entry.time, number, plain, fragment)
                },
                "splitEvent": {"fragment": fragment + 1, "of": len(parts)},
                **{name: event[name] for name in names},
            }
            for fragment, names in enumerate(parts)
        ]


def matches(document: Mapping[str, Any], query: Mapping[str, Any]) -> bool:
    """The part of the query language that the feed's filter uses."""
    return all(_holds(document, name, wanted) for name, wanted in query.items())


def _holds(document: Mapping[str, Any], name: str, wanted: Any) -> bool:
    if name in ("$or", "$nor"):
        return any(matches(document, each) for each in wanted) == (name == "$or")
    value: Any = document
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if not isinstance(wanted, Mapping):
        return bool(value == wanted)
    ((operator, each),) = wanted.items()
    assert operator in ("$in", "$ne"), "others are not scripted"
    return bool(value in each if operator == "$in" else value != each)
