"""The change: the one data type that flows through everything, as an Arrow record batch.

Sources make it, Spark moves it, sinks consume it. Row images are JSON text, or MessagePack bytes
when the pipeline asks for them: a sink can splice either into a message without parsing it. A sink
of tables asks for lines of PostgreSQL's COPY.
"""

from enum import StrEnum
from typing import Any, Literal, NamedTuple

import orjson
import pyarrow as pa

from penstock.model.position import PartitionId, Place

Images = Literal["json", "msgpack", "text"]

# What becomes of a change that cannot be decoded, encoded or stored: it goes to the dead letters;
# or its table is suspended as well; or nothing goes on until somebody acts.
OnError = Literal["dead-letter", "suspend", "stop"]


class Operation(StrEnum):
    """What happened to the document; READ is a row of a snapshot.

    ERROR: what happened cannot be read. The change has its place, and its table when that is
    known; `after` is {"reason": a slug, "error": text without row data, "raw": the source's bytes
    of it, "context": what a page that holds only it has as context} (bytes are base64 in JSON).
    SUSPEND: the table is not followed from here to its next change; `after` says why.
    DROP, RENAME, DROP_DATABASE, INVALIDATE: of a collection, of a database, and of the source's
    change stream itself. No document: `document_id` and `key` are null, and `after` is what the
    source says about it (RENAME: {"to": {"database", "collection"}}).
    """

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    REPLACE = "REPLACE"
    DELETE = "DELETE"
    TRUNCATE = "TRUNCATE"
    READ = "READ"
    MESSAGE = "MESSAGE"
    ERROR = "ERROR"
    SUSPEND = "SUSPEND"
    DROP = "DROP"
    RENAME = "RENAME"
    DROP_DATABASE = "DROP_DATABASE"
    INVALIDATE = "INVALIDATE"


ERROR = Operation.ERROR

# With its type: to guess it, pyarrow looks for pandas, each time (0.1 ms where there is none).
_ERROR = pa.scalar(ERROR.value, pa.string())

_TIMESTAMP = pa.timestamp("us", tz="UTC")


def _columns(image: pa.DataType) -> list["pa.Field[Any]"]:
    return [
        pa.field("backend", pa.string(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("cursor", pa.string(), nullable=False),
        pa.field("ordinal", pa.int32(), nullable=False),
        pa.field("event_id", pa.string(), nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("tenant", pa.string()),
        pa.field("database", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("collection", pa.string()),
        pa.field("relation_id", pa.int64()),
        pa.field("schema_version", pa.string()),
        pa.field("document_id", pa.string()),
        pa.field("key", image),
        pa.field("before", image),
        pa.field("after", image),
        pa.field("unchanged", pa.list_(pa.field("element", pa.string(), nullable=False))),
        pa.field("transaction", pa.string()),
        pa.field("committed_at", _TIMESTAMP),
        pa.field("captured_at", _TIMESTAMP),
        pa.field("delta", image),
        pa.field("mark", pa.string()),
        pa.field("route", pa.int32()),
    ]


_SCHEMAS: dict[Images, pa.Schema] = {
    "json": pa.schema(_columns(pa.string())),
    "msgpack": pa.schema(_columns(pa.binary())),
    "text": pa.schema(_columns(pa.string()), metadata={b"images": b"text"}),
}

# The metadata of a batch of lines whose last transaction ends with it.
WHOLE = {b"images": b"text", b"ends": b"true"}


class Passed(NamedTuple):
    """Says that a partition has nothing for the sink between the changes before it and a place, of
    the history of `mark` (JSON text)."""

    backend: str
    partition: PartitionId
    place: Place
    mark: str

    @property
    def batch(self) -> pa.RecordBatch:
        """As it comes among batches of lines: one without rows."""
        text = orjson.dumps([self.backend, self.partition, [*self.place], self.mark])
        metadata = {b"images": b"text", b"passed": text}
        columns = [pa.array([], each.type) for each in _SCHEMAS["text"]]
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMAS["text"].with_metadata(metadata))

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "Passed | None":
        """The inverse of `batch`; None of others."""
        text = (batch.schema.metadata or {}).get(b"passed")
        if text is None:
            return None
        backend, partition, place, mark = orjson.loads(text)
        return cls(backend, PartitionId(partition), Place(*place), mark)


COLUMNS: tuple[str, ...] = tuple(_SCHEMAS["json"].names)

# Those that a DataFrame of changes may lack (null then): newer than transforms that list columns.
OPTIONAL: frozenset[str] = frozenset({"schema_version"})

# Those with row images.
IMAGES: tuple[str, ...] = ("key", "before", "after", "delta")


def schema(images: Images = "json") -> pa.Schema:
    """The fixed schema of a batch of changes, with row images in the given encoding.

    `key`, `before` and `after` are one map each (column name -> value), or null for "no image".
    `unchanged` lists columns that the source did not send: absent is not null. `namespace` is the
    schema (PostgreSQL) or the database (MongoDB). `relation_id` is PostgreSQL's table OID.
    `schema_version` names the table's schema that the change was decoded with, from sources that
    announce schemas; the document of the schema has it, too.
    `event_id` is unique in its backend and the same on every replay; its form is the feed's.

    `delta` is what an update changed, from sources that say so: an image `{"updated": {path:
    value}, "removed": [path], "truncated": [{"field": path, "new_size": number}]}`, and of paths
    whose text may mean several places `"paths": {path: [name or index]}`.

    `mark` is JSON text of the feed's mark for a bookmark exactly at this change; where the place
    alone is enough to resume it has at most of which history the place is, or is null. `route` is
    the change's hash partition; decoders leave it null.

    Images `text` are PostgreSQL's lines of COPY's text format without their end (of documents, as
    `wire.document_lines` makes them, lines of their key and JSON text): `before` and `after` have
    all columns of the relation in its order, `key` those of the key. The values are the source's
    own text and are not checked: null is `\\N`, and `\\U` is a
    column that was not sent (also listed in `unchanged`), or is not in an old row of only a key.
    `delta` is the relation, at its first change in each page: it holds for those after it of the
    same `relation_id` and `schema_version`. It is JSON with the names of an announced schema:
    `schema`, `table`, `relation_id`, `version`, `columns` (`name`, `type`: an OID, `modifier`,
    `key`), `types` (OID -> `kind`, `name`, `inner`, `delimiter` of those that are not built in),
    `catalog` (of the reader's time: `last` number of a column, `file`, `columns` as number, name,
    value in old rows; `gone`: numbers that were dropped before), where the feed was asked for it.
    `after` of a change that is no row (MESSAGE, ERROR) is JSON. A batch with the metadata `WHOLE`
    has the last change of its last transaction; of others more may come. Where the tables filter
    dropped a page's last changes, a batch without rows says so: see `Passed`.
    """
    return _SCHEMAS[images]


def images_of(batch_schema: pa.Schema) -> Images:
    """How a batch's row images are encoded, by its schema."""
    if (batch_schema.metadata or {}).get(b"images") == b"text":
        return "text"
    return "msgpack" if pa.types.is_binary(batch_schema.field("after").type) else "json"


def unreadable(batch: pa.RecordBatch) -> list[int]:
    """The rows with the operation ERROR, which have no key."""
    rows: list[int] = []
    if not batch.column("key").null_count:
        return rows
    operations, row = batch.column("operation"), -1
    while (row := operations.index(_ERROR, row + 1).as_py()) >= 0:
        rows.append(row)
    return rows


def event_id(backend: str, place: Place) -> str:
    """`backend:cursor:ordinal`: the event id of sources whose places are the same on every replay.
    Others make it from what the source itself calls the change."""
    return f"{backend}:{place.cursor}:{place.ordinal}"
