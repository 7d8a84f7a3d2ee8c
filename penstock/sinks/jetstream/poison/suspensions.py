"""The records of tables that are or were suspended: a stream beside the main one.

They are kept where every task on every host sees them, and where consumers can follow them: each
record says what happened to a table, and the last one of a subject is how it is. Who writes one
expects the one that it has read to be the last still.
"""

import time
from collections.abc import Callable, Mapping

from penstock.model.errors import Malformed
from penstock.nats.api import ApiError, JetStream, swapped
from penstock.nats.subjects import escape
from penstock.sinks.jetstream.poison.dead_letters import ensure_stream, headers_with
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.poison.suspension import Suspension, Table

_HISTORY = 64  # records of each table that the stream keeps


def tables_stream(stream: str) -> str:
    """The stream with the records of the tables of a stream."""
    return f"{stream}_TABLES"


def record_subject(stream: str, table: Table | None = None) -> str:
    """Where a table's records are; those of all tables without one."""
    whose = ["*", "*", "*"] if table is None else [escape(name) for name in table]
    return ".".join(("penstock.tables", stream, *whose))


class Suspensions:
    """A `RecordStore` of one stream, over one open connection."""

    def __init__(self, api: JetStream, settings: JetStreamSettings) -> None:
        self._api = api
        self._settings = settings
        self._records: dict[Table, tuple[int, Suspension]] = {}  # with their sequences
        self._seen = 0  # the sequence of the last record that was read
        self._read_at: float | None = None  # monotonic seconds
        self._made = False
        self._name, self._subject = tables_stream(settings.stream), record_subject(settings.stream)

    def all(self, *, within: float | None = None) -> Mapping[Table, Suspension]:
        """See RecordStore."""
        if self._read_at is None or (
            within is not None and time.monotonic() - self._read_at >= within
        ):
            self._refresh()
        return {table: record for table, (_, record) in self._records.items()}

    def change(self, table: Table, step: Callable[[Suspension], Suspension]) -> Suspension:
        """See RecordStore. Raises Unavailable, SettingsError, and what `step` raises."""

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
        last = self._api.last(self._name, self._subject)
        if last is None or last.sequence < self._seen:  # emptied, or made again
            self._records.clear()
            self._seen = 0
        while last is not None and self._seen < last.sequence:
            found = self._api.next(self._name, self._subject, self._seen + 1)
            if found is None:
                break
            self._seen = found.sequence
            try:
                record = Suspension.parse(found.payload)
            except Malformed:
                continue  # not a record of ours
            self._records[record.table] = found.sequence, record
        self._read_at = time.monotonic()
