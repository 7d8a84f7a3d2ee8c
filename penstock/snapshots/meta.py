"""The message that says that all chunks of a snapshot are stored, and how to go on after them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.feeds import WHOLE_TABLE, RowSelection
from penstock.model.table_schema import TableName, TableSchema
from penstock.sinks.encoding.dialect import dialect
from penstock.sinks.server import SinkServer
from penstock.snapshots.compression import ChunkCompression
from penstock.snapshots.init_stream import PREFIX, InitStream, meta_identity, token
from penstock.snapshots.range_progress import ChunkInfo, SnapshotPlan
from penstock.snapshots.retention import Kept
from penstock.snapshots.writing import VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """The message itself; `docs/reference/messages.md` has every field."""

    name: TableName
    snapshot_id: str
    schema: TableSchema
    plan: SnapshotPlan
    is_exact: bool
    kept: Kept
    compression: ChunkCompression
    chunks: Sequence[ChunkInfo]
    revision: int
    reload: str | None
    selection: RowSelection = WHOLE_TABLE

    def publish(self, stream: InitStream, sink: SinkServer) -> None:
        """Stores it. Raises Unavailable, SettingsError."""
        say = dialect("json" if sink.encoding == "json" else "msgpack")
        document = self._document(sink.stream)
        body = say.value(document)
        if len(body) > stream.room:
            # What is left says how many there are, and the subject says which.
            body = say.value(document | {"chunks": None})
        headers = {
            "Penstock-Schema": VERSION,
            "Penstock-Table-Schema": self.schema.version.encode(),
            "Content-Type": say.content_type,
        }
        subject = f"{PREFIX}.meta.{token(self.name)}"
        stream.publish(subject, body, headers, meta_identity(self.name, self.snapshot_id))

    def _document(self, changes: str) -> dict[str, Any]:
        schema, plan = self.schema, self.plan
        return {
            "snapshot_id": self.snapshot_id,
            "table": schema.table,
            "schema": schema.schema,
            "lsn": plan.lsn,
            "position": plan.position,
            "timestamp": datetime.now(UTC).isoformat(timespec="microseconds")[:-6] + "Z",
            "batch_count": len(self.chunks),
            "row_count": sum(one["rows"] for one in self.chunks),
            "schema_version": schema.version,
            "schema_revision": self.revision,
            "relation_id": schema.relation_id,
            "columns": list(self.selection.columns) or [one["name"] for one in schema.columns],
            "where": self.selection.where or None,
            "partial": not self.selection.is_whole,
            "compression": self.compression.method,
            "dictionary": self.compression.identity,
            "exact": self.is_exact,
            "losses": plan.gap or None,
            "reload": self.reload,
            "stream": changes,
            "stream_created": plan.created,
            "start_sequence": plan.start,
            "changes_kept_seconds": self.kept.changes,
            "chunks_kept_seconds": self.kept.chunks,
            "chunks": list(self.chunks),
        }
