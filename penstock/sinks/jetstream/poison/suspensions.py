"""The records of tables that are or were suspended: a stream beside the main one.

They are kept where every task on every host sees them, and where consumers can follow them: each
record says what happened to a table, and the last one of a subject is how it is. Who writes one
expects the one that it has read to be the last still.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock.model.errors import Malformed
from penstock.nats.api import ApiError, JetStream
from penstock.nats.subjects import escape
from penstock.nats.swap import swapped
from penstock.sinks.jetstream.poison.dead_letters import ensure_stream, headers_with
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.poison.suspension import Suspension, SuspensionState, Table

_HISTORY = 64  # records of each table that the stream keeps
_FRESH = 1.0  # seconds that a record is believed before it is read again


def tables_stream(stream: str) -> str:
    """The stream with the records of the tables of a stream."""
    return f"{stream}_TABLES"


def record_subject(stream: str, table: Table | None = None) -> str:
    """Where a table's records are; those of all tables without one."""
    whose = ["*", "*", "*"] if table is None else [escape(name) for name in table]
    return ".".join(("penstock.tables", stream, *whose))


class Suspensions:
    """Of one stream, over one open connection; reads all records when it is first asked.

    Spark's workers take turns, so what one knows another may have changed: `look` at every write.
    """

    def __init__(self, api: JetStream, settings: JetStreamSettings) -> None:
        self._api = api
        self._settings = settings
        self._records: dict[Table, tuple[int, Suspension]] | None = None
        self._read_at: dict[Table, float] = {}
        self._seen = 0  # the sequence of the last record that was read in order
        self._made = False
        self.name = tables_stream(settings.stream)

    def all(self) -> Mapping[Table, Suspension]:
        """Every record, as known here. Raises Unavailable."""
        return {table: record for table, (_, record) in self._known().items()}

    def refresh(self) -> None:
        """Takes in what others stored since: one question if there is nothing. Raises
        Unavailable."""
        known = self._known()
        last = self._api.last(self.name, record_subject(self._settings.stream))
        if last is None:
            known.clear()
            self._seen = 0
        elif last.sequence != self._seen:
            self._read_on()

    def refreshed(self, record: Suspension) -> Suspension:
        """The record as the stream has it, asked at most once a second."""
        read = self._read_at.get(record.table, 0.0)
        if time.monotonic() - read >= _FRESH:
            self._read(record.table)
        return self._known().get(record.table, (0, _new(record.table)))[1]

    def change(self, table: Table, step: Callable[[Suspension], Suspension]) -> Suspension:
        """Makes another record of a table's record, and stores it; `step` may run again when
        another process was faster. Raises Unavailable, SettingsError, and what `step` raises."""

        def attempt() -> Suspension:
            sequence, record = self._known().get(table, (0, _new(table)))
            changed = step(record)
            if changed != record:
                self._ensure()
                try:
                    self._store(table, sequence, changed)
                except ApiError:
                    self._read(table)  # for the next attempt
                    raise
            return changed

        return swapped(attempt, f"the record of {table}")

    def _store(self, table: Table, sequence: int, record: Suspension) -> None:
        headers = headers_with({
            "Penstock-State": record.state,
            "Content-Type": "application/json",
            "Nats-Expected-Last-Subject-Sequence": str(sequence),
        })  # fmt: skip
        subject = record_subject(self._settings.stream, table)
        answer = self._api.publish(subject, headers, record.to_json())
        self._known()[table] = int(answer["seq"]), record
        self._read_at[table] = time.monotonic()

    def _known(self) -> dict[Table, tuple[int, Suspension]]:
        if self._records is None:
            self._records = {}
            self._seen = 0
            self._read_on()
        return self._records

    def _read_on(self) -> None:
        """The records after the last that was seen."""
        subject = record_subject(self._settings.stream)
        while (found := self._api.next(self.name, subject, self._seen + 1)) is not None:
            self._take(found.sequence, found.payload)
            self._seen = found.sequence

    def _read(self, table: Table) -> None:
        found = self._api.last(self.name, record_subject(self._settings.stream, table))
        self._read_at[table] = time.monotonic()
        if found is None:
            self._known().pop(table, None)
        else:
            self._take(found.sequence, found.payload)

    def _take(self, sequence: int, payload: bytes) -> None:
        assert self._records is not None
        try:
            record = Suspension.parse(payload)
        except Malformed:
            return  # not a record of ours
        self._records[record.table] = sequence, record

    def _ensure(self) -> None:
        if not self._made:
            subject = record_subject(self._settings.stream)
            more: dict[str, Any] = {"max_msgs_per_subject": _HISTORY}
            ensure_stream(self._api, self.name, subject, self._settings, more)
            self._made = True


def _new(table: Table) -> Suspension:
    return Suspension(
        backend=table.backend,
        schema=table.schema,
        collection=table.collection,
        state=SuspensionState.FOLLOWING,
    )
