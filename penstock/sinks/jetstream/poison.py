"""Where dead letters and the records of suspended tables are kept: streams beside the main one.

The last message of a partition in the dead-letter stream says how far its dead letters go, as the
main stream's does for all changes: what is at or before it was stored, and a change that is offered
again after a crash is not stored again.

A record of a table says what happened to it, and the last one of a subject is how it is: every task
on every host sees them there, and consumers can follow them.

Who writes expects the message that it has read to be the last still, so two writers cannot both
store the same one.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import orjson

from penstock.model.errors import Malformed, SettingsError
from penstock.model.position import Place
from penstock.nats.api import WRONG_SEQUENCE, ApiError, JetStream, Stored, error_of, swapped, unfit
from penstock.nats.connection import Connection
from penstock.nats.protocol import HEADERS_START
from penstock.nats.subjects import escape
from penstock.sinks.jetstream.publishing.publisher import MSG_ID
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.jetstream.stream import own_stream
from penstock.sinks.messages.message import POSITION, REPLAYED, read_position
from penstock.sinks.poison.dead_letter import Letter
from penstock.sinks.poison.quarantine import LetterStore, RecordStore
from penstock.sinks.poison.stored_letters import StoredLetter, StoredLetters
from penstock.sinks.poison.suspension import Suspension, Table

_TAKEN = 10065  # the subjects overlap with another stream's
# Headers of a letter, and what the server counts besides its body.
_HEADERS = 2_000
_HISTORY = 64  # records of each table that the stream keeps


def dead_stream(stream: str) -> str:
    return f"{stream}_DLQ"


def subject_of(stream: str, backend: str = "*", partition: str = "*") -> str:
    """Where the dead letters of a partition are, in a form that no other stream's have."""
    whose = [name if name == "*" else escape(name) for name in (backend, partition)]
    return ".".join(("penstock.dlq", stream, *whose))


class DeadLetters(LetterStore, StoredLetters):
    """Of one stream, over one open connection."""

    def __init__(self, connection: Connection, api: JetStream, settings: JetStreamSettings) -> None:
        self._connection = connection
        self._api = api
        self._settings = settings
        self._limit = 0  # bytes of a letter's body; 0: the stream was not looked at yet
        # The last message of each subject: its sequence, and how far it says that they go.
        self._marks: dict[str, tuple[int, Place | None]] = {}
        self.name = dead_stream(settings.stream)

    def store(self, letter: Letter) -> bool:
        """Stores a letter, and returns True, or False when it is there already; what comes later
        in its partition comes later here. Raises Unavailable, SettingsError."""
        self._ensure()
        subject = subject_of(self._settings.stream, letter.backend, letter.partition)

        def attempt() -> bool:
            # Read again after a failure: only what was stored is known for the next letter.
            known = self._marks.pop(subject, None)
            sequence, place = self._read_mark(subject) if known is None else known
            if place is not None and letter.place <= place:
                self._marks[subject] = sequence, place
                return False
            answer = self._publish(subject, letter, sequence)
            self._marks[subject] = int(answer["seq"]), letter.place
            return not answer.get("duplicate")

        return swapped(attempt, f"the dead letter {letter.event_id}")

    def _publish(self, subject: str, letter: Letter, last: int) -> Any:
        whose = f"{escape(letter.backend)} {escape(letter.partition)}"
        headers = headers_with({
            MSG_ID: letter.event_id,
            POSITION: f"{whose} {letter.position}",
            "Penstock-Reason": letter.reason,
            "Content-Type": "application/json",
            "Nats-Expected-Last-Subject-Sequence": str(last),
        })  # fmt: skip
        if letter.kind == "source" and self._settings.letter_source is False:
            letter = replace(letter, raw=b"", context=b"")
        return self._api.publish(subject, headers, letter.body(self._limit))

    def _read_mark(self, subject: str) -> tuple[int, Place | None]:
        last = self._api.last(self.name, subject)
        found = read_position(last.headers) if last is not None else None
        return last.sequence if last else 0, found[1] if found is not None else None

    def _ensure(self) -> None:
        if not self._limit:
            subject = subject_of(self._settings.stream)
            config = ensure_stream(self._api, self.name, subject, self._settings)
            payload = self._connection.max_payload
            largest = max(int(config.get("max_msg_size") or 0), 0) or payload
            self._limit = max(min(largest, payload) - _HEADERS, _HEADERS)

    def stored(self) -> Iterator[StoredLetter]:
        found = self._api.each(self.name, subject_of(self._settings.stream))
        yield from filter(None, map(_stored_letter, found))

    def get(self, id: int) -> StoredLetter | None:
        found = self._api.message(self.name, id)
        return _stored_letter(found) if found is not None else None

    def begin_replay(self, kept: StoredLetter, after: int) -> int | None:
        """Notes that the letter is about to be published, after sequence `after` of the stream.

        Returns None, or, when a replay of it began before and was not heard to end, the sequence
        after which its change may be stored already.
        """
        subject = _attempt(self._settings.stream, kept)
        note = {"replaying": kept.letter.event_id, "behind": after}
        headers = headers_with({"Nats-Expected-Last-Subject-Sequence": "0"})
        try:
            self._api.publish(subject, headers, orjson.dumps(note))
        except ApiError as error:
            before = self._api.last(self.name, subject)
            if error.code not in WRONG_SEQUENCE or before is None:
                raise error_of(error, f"the note of {kept.letter.event_id}") from None
            return int(orjson.loads(before.payload)["behind"])
        return None

    def replayed(self, kept: StoredLetter, sequence: int) -> None:
        """The letter was published to the stream as `sequence`: it goes, and a note says so.

        The note stays as the partition's last message, so that how far it is remains known.
        """
        letter = kept.letter
        subject = subject_of(self._settings.stream, letter.backend, letter.partition)
        note = {"replayed": letter.event_id, "reason": letter.reason, "sequence": sequence}

        def attempt() -> None:
            last = self._api.last(self.name, subject)
            position = last.headers.get(POSITION, "") if last is not None else ""
            headers = headers_with({
                POSITION: position,
                REPLAYED: letter.event_id,
                "Nats-Expected-Last-Subject-Sequence": str(last.sequence if last else 0),
            })  # fmt: skip
            self._api.publish(subject, headers, orjson.dumps(note))

        swapped(attempt, f"the note of {letter.event_id}")
        self._api.remove(self.name, kept.id)
        begun = self._api.last(self.name, _attempt(self._settings.stream, kept))
        if begun is not None:
            self._api.remove(self.name, begun.sequence)


def _attempt(stream: str, kept: StoredLetter) -> str:
    # No partition's own subject: there every % is escaped.
    return f"{subject_of(stream, kept.letter.backend, kept.letter.partition)}%{kept.id}"


def ensure_stream(
    api: JetStream, name: str, subject: str, settings: JetStreamSettings, **more: Any
) -> Mapping[str, Any]:
    """Makes a stream of our own beside the main one, unless it is there; its configuration.

    Raises SettingsError when another stream takes its subject, Unavailable.
    """
    if (info := api.stream(name)) is not None:
        if subject not in (info["config"].get("subjects") or ()):
            raise SettingsError(
                f"the stream {name} exists and does not take {subject}",
                "jetstream",
                hint=f"nats stream edit {name} --subjects '{subject}', or move it away",
            )
        for problem, remedy in unfit(name, info["config"], subject):
            raise SettingsError(f"the stream {name} {problem}", "jetstream", hint=remedy)
        return dict(info["config"])
    try:
        return dict(api.create(own_stream(name, subject, settings) | more)["config"])
    except SettingsError as error:
        if f"[{_TAKEN}]" in error.message:
            raise SettingsError(
                f"the stream {name} cannot be made: another stream takes {subject}",
                "jetstream.subject-taken",
                hint=f"give {settings.stream} subjects of its own instead of a wildcard for all",
            ) from None
        raise


def headers_with(fields: dict[str, str]) -> bytes:
    """Raw headers, whole."""
    lines = [f"{name}: {_LINE_BREAKS.sub(' ', value)}\r\n" for name, value in fields.items()]
    return HEADERS_START + "".join(lines).encode() + b"\r\n"


_LINE_BREAKS = re.compile(r"[\r\n]+")


def _stored_letter(found: Stored) -> StoredLetter | None:
    """None for a note, and for what is not ours."""
    try:
        letter = Letter.parse(found.payload)
    except Malformed:
        return None
    return StoredLetter(id=found.sequence, stored_at=found.time, letter=letter)


def tables_stream(stream: str) -> str:
    """The stream with the records of the tables of a stream."""
    return f"{stream}_TABLES"


def record_subject(stream: str, table: Table | None = None) -> str:
    """Where a table's records are; those of all tables without one."""
    whose = ["*", "*", "*"] if table is None else [escape(name) for name in table]
    return ".".join(("penstock.tables", stream, *whose))


class Suspensions(RecordStore):
    """Of one stream, over one open connection."""

    def __init__(self, api: JetStream, settings: JetStreamSettings) -> None:
        self._api = api
        self._settings = settings
        self._records: dict[Table, tuple[int, Suspension]] = {}  # with their sequences
        self._seen = 0  # the sequence of the last record that was read
        self._read_at: float | None = None  # monotonic seconds
        self._made = False
        self._name, self._subject = tables_stream(settings.stream), record_subject(settings.stream)

    def all(self, *, within: float | None = None) -> Mapping[Table, Suspension]:
        if self._read_at is None or (
            within is not None and time.monotonic() - self._read_at >= within
        ):
            self._refresh()
        records = self._records  # mostly there are none
        return {table: record for table, (_, record) in records.items()} if records else {}

    def change(self, table: Table, step: Callable[[Suspension], Suspension]) -> Suspension:
        """Raises Unavailable, SettingsError, and what `step` raises."""

        def attempt() -> Suspension:
            sequence, record = self._records.get(table, (0, Suspension.of(table)))
            changed = step(record)
            if changed != record:
                try:
                    self._store(table, sequence, changed)
                except ApiError:
                    self._refresh()  # for the next attempt
                    raise
            return changed

        self.all()
        return swapped(attempt, f"the record of {table}")

    def _store(self, table: Table, sequence: int, record: Suspension) -> None:
        if not self._made:
            ensure_stream(
                self._api, self._name, self._subject, self._settings, max_msgs_per_subject=_HISTORY
            )
            self._made = True
        headers = headers_with({
            "Penstock-State": record.state,
            "Content-Type": "application/json",
            "Nats-Expected-Last-Subject-Sequence": str(sequence),
        })  # fmt: skip
        subject = record_subject(self._settings.stream, table)
        answer = self._api.publish(subject, headers, record.to_json())
        self._records[table] = int(answer["seq"]), record

    def _refresh(self) -> None:
        """Reads the records after the last that was seen: one question if there is none."""
        asked_at = time.monotonic()
        last = self._api.last(self._name, self._subject)
        if last is None or last.sequence < self._seen:  # emptied, or made again
            self._records.clear()
            self._seen = 0
        while last is not None and self._seen < last.sequence:
            if (found := self._api.next(self._name, self._subject, self._seen + 1)) is None:
                break
            self._seen = found.sequence
            try:
                record = Suspension.parse(found.payload)
            except Malformed:
                continue  # not a record of ours
            self._records[record.table] = found.sequence, record
        self._read_at = asked_at
