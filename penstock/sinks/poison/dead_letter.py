"""A dead letter: one change that could not be decoded, encoded or stored, and why. Pure.

Its body is JSON whatever the stream's encoding: it is read by people, with any NATS client.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import orjson
import ormsgpack
import pyarrow as pa

from penstock.model.change import IMAGES, Images, images_of, schema
from penstock.model.errors import Malformed
from penstock.model.images import base64_of
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place

# What `raw` is: the source's bytes of the change, or the change as JSON.
RawChange = Literal["source", "change"]
# What a row and a letter call the same.
_SAME = ("event_id", "backend", "partition", "database", "collection", "relation_id", "transaction")
_TIMES = ("committed_at", "captured_at")
# Bytes of the body besides `raw` and `context`, at most, and of a name or an error in it.
_ROOM = 6_000
_LONGEST_TEXT = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """What is known of the change. `reason` is machine-readable; `error` has no row data.

    `raw` is what `kind` says, and `raw_bytes` its size before it was truncated. `context` is what
    a page that holds only this change has as context; `images` how the images of a change are
    encoded. Times are ISO 8601.
    """

    event_id: str
    backend: str
    partition: str
    position: str
    reason: str
    error: str
    kind: RawChange
    raw: bytes
    raw_bytes: int
    context: bytes = b""
    images: Images = "json"
    operation: str | None = None
    database: str | None = None
    schema: str | None = None
    collection: str | None = None
    relation_id: int | None = None
    transaction: str | None = None
    committed_at: str | None = None
    captured_at: str | None = None

    @property
    def place(self) -> Place:
        return Place.parse(self.position)

    @property
    def table(self) -> str:
        """`schema.table`, as far as it is known."""
        return ".".join(name for name in (self.schema, self.collection) if name)

    @property
    def truncated(self) -> bool:
        """True when only the first bytes of `raw` are there."""
        return len(self.raw) < self.raw_bytes

    def body(self, limit: int) -> bytes:
        """The message's body, of at most `limit` bytes: `raw` is truncated if need be."""
        context = self.context if 4 * len(self.context) // 3 + _ROOM < limit else b""
        room = max(0, limit - _ROOM - 4 * len(context) // 3 - 4)
        raw = self.raw[: room // 4 * 3]
        fields = {name: getattr(self, name) for name in self.__slots__}
        texts = {k: v[:_LONGEST_TEXT] for k, v in fields.items() if isinstance(v, str)}
        is_truncated = len(raw) < self.raw_bytes
        more = {"raw": base64_of(raw), "context": base64_of(context), "truncated": is_truncated}
        return orjson.dumps({**fields, **texts, **more})

    @classmethod
    def parse(cls, body: bytes) -> "Letter":
        """The inverse of `body`; raises Malformed."""
        try:
            fields = orjson.loads(body)
            fields.pop("truncated")
            for name in ("raw", "context"):
                fields[name] = base64.b64decode(fields[name])
            return cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Malformed("a message is no dead letter", "poison") from error


def error_letter(row: Mapping[str, Any], images: str) -> Letter:
    """Of a change with the operation ERROR, a row of a batch whose images are such."""
    load: Any = ormsgpack.unpackb if images == "msgpack" else orjson.loads
    image = load(row["after"])
    raw, context = (_bytes(image.get(name) or b"") for name in ("raw", "context"))
    reason, error = str(image["reason"]), str(image["error"])
    return _letter(row, raw, kind="source", reason=reason, error=error, context=context)


def row_letter(row: Mapping[str, Any], images: Images, reason: str, error: str) -> Letter:
    """Of a change that was decoded and cannot be encoded or stored."""
    raw = orjson.dumps(dict(row), default=base64_of)
    known = {"images": images, "operation": row["operation"]}
    return _letter(row, raw, kind="change", reason=reason, error=error, **known)


def page_of(letter: Letter) -> Page:
    """A page of the letter's change alone, for its feed's decoder. Raises Malformed."""
    captured = letter.captured_at
    return Page(
        partition=PartitionId(letter.partition),
        first=letter.place,
        last=letter.place,
        count=1,
        captured_at=round(datetime.fromisoformat(captured).timestamp() * 1e6) if captured else 0,
        context=letter.context,
        payload=letter.raw,
    )


def row_of(letter: Letter) -> pa.RecordBatch:
    """The letter's change, as a batch of one. Raises Malformed."""
    try:
        target = schema(letter.images)
        row = orjson.loads(letter.raw)
        for name in _TIMES:
            row[name] = None if row[name] is None else datetime.fromisoformat(row[name])
        if images_of(target) == "msgpack":
            for name in IMAGES:
                # A letter of an older version lacks the newest images.
                image = row.get(name)
                row[name] = None if image is None else base64.b64decode(image)
        return pa.RecordBatch.from_pylist([row], schema=target)
    except (ValueError, TypeError, KeyError, pa.ArrowInvalid) as error:
        raise Malformed("a dead letter does not hold its change", "poison") from error


def _letter(row: Mapping[str, Any], raw: bytes, **more: Any) -> Letter:
    return Letter(
        position=str(Place(row["cursor"], row["ordinal"])),
        schema=row["namespace"],
        raw=raw,
        raw_bytes=len(raw),
        **{name: row[name] for name in _SAME},
        **{name: row[name] and row[name].isoformat() for name in _TIMES},
        **more,
    )


def _bytes(value: bytes | str) -> bytes:
    return base64.b64decode(value) if isinstance(value, str) else value
