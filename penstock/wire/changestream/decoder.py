"""Pages of change events -> batches of changes. Pure and CPU only; runs in Spark's tasks.

The event id is `BACKEND:CLUSTER TIME:HASH OF THE TOKEN`: the token is what the server itself calls
the event, while counting inside a cluster time depends on which events a filter lets through.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import bson
import pyarrow as pa
from bson.errors import BSONError

from penstock.model.change import Images, OnError, schema
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import Place
from penstock.wire.changestream.changes import BROKEN, Read, Reader, name_rule, tenant_rule
from penstock.wire.changestream.events import ChangeEvent, Placer, cursor_of, element, events
from penstock.wire.changestream.kernel import EventKernel
from penstock.wire.changestream.tokens import hash_of, mark_ending, mark_text
from penstock.wire.changestream.values import CODEC
from penstock.wire.documents import error_image
from penstock.wire.eras import era_of

_NONE: list[str] = []


class _Row(NamedTuple):
    cursor: str
    ordinal: int
    event_id: str
    mark: str | None


@dataclass(eq=False)
class ChangeStreamDecoder:
    """A `page.Decoder`; see `changes.tenant_rule` and `changes.Reader`. `on_error`: with `stop` a
    change that cannot be read makes its page Malformed; else it is one with the operation ERROR."""

    backend: str
    tenant: str = "none"
    flatten: bool = False
    images: Images = "json"
    on_error: OnError = "stop"

    def __post_init__(self) -> None:
        self.unknown_types: set[str] = set()
        self._reader = Reader(self.images, tenant_rule(self.tenant), self.flatten)
        self._kernel = EventKernel.of(self.images, name_rule(self.tenant), flatten=self.flatten)

    def __reduce__(self) -> tuple[Any, ...]:
        given = self.backend, self.tenant, self.flatten, self.images, self.on_error
        return ChangeStreamDecoder, given

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """See `page.Decoder`: one batch, with as many rows as the page says."""
        run = events(page.payload)
        if run.end != len(page.payload) or len(run.events) != page.count:
            raise Malformed(
                f"a page at {page.first} says {page.count} changes and has {len(run.events)}",
                "wire",
            )
        era = era_of(page.first.cursor)
        placer = Placer.before(page.first, era)
        ending = mark_ending(era, *page.context.decode().split("\n"))
        rows = [self._placed(event, placer, era, ending, page.payload) for event in run.events]
        for expected, row in (page.first, rows[0]), (page.last, rows[-1]):
            if expected != Place(row.cursor, row.ordinal):
                raise Malformed(
                    f"a page says it has the change {expected}, but it is another one", "wire"
                )
        return [self._batch(page, rows, self._reads(run.events, page))]

    def _placed(
        self, event: ChangeEvent, placer: Placer, era: str, ending: str, payload: bytes
    ) -> _Row:
        time, ordinal = placer.next(event.time)
        own = cursor_of(event.time or time)
        name = hash_of(event.name or b"".join(_documents(event, payload)))
        return _Row(
            era + cursor_of(time),
            ordinal,
            f"{self.backend}:{era}{own}:{name}",
            mark_text(event.token, ending),
        )

    def _reads(self, found: Sequence[ChangeEvent], page: Page) -> list[Read]:
        if self._kernel is None:
            return [self._read(event, page) for event in found]
        # One that the server split has several documents, and only Python joins them.
        documents = [event.documents[0] for event in found]
        return [
            self._read(event, page) if read is None or len(event.documents) > 1 else read
            for event, read in zip(found, self._kernel.read(page.payload, documents), strict=True)
        ]

    def _read(self, event: ChangeEvent, page: Page) -> Read:
        documents = _documents(event, page.payload)
        try:
            return self._reader.read(documents)
        except BROKEN as error:
            if self.on_error == "stop":
                raise Malformed(
                    f"a change event of {page.partition} after {page.first} can't be read:"
                    f" {_reason(error)[1]}",
                    "wire",
                ) from error
            return self._unreadable(documents, error)

    def _unreadable(self, documents: list[bytes], error: Exception) -> Read:
        """A row shaped like a change, with what is needed to read it after all."""
        reason, message = _reason(error)
        raw = b"".join(element(document) for document in documents)
        image = error_image(self.images, reason=reason, error=message, raw=raw, context=b"")
        database, collection = _namespace(documents)
        return Read("ERROR", None, database, collection, after=self._reader.pack(image))

    def _batch(self, page: Page, rows: list[_Row], reads: list[Read]) -> pa.RecordBatch:
        target, size = schema(self.images), len(rows)
        columns: dict[str, Any] = dict(
            zip(_Row._fields, zip(*rows, strict=True), strict=True)
        ) | dict(zip(Read._fields, zip(*reads, strict=True), strict=True))
        columns["namespace"] = columns["database"]
        same = {
            "backend": self.backend,
            "partition": str(page.partition),
            "captured_at": page.captured_at,
            "unchanged": _NONE,
        }
        try:
            arrays = [_array(field, columns, same, size) for field in target]
        except (pa.ArrowInvalid, OverflowError) as error:
            raise Malformed(
                f"a page of {page.partition} at {page.first} has no changes", "wire"
            ) from error
        return pa.RecordBatch.from_arrays(arrays, schema=target)


def _array(field: Any, columns: dict[str, Any], same: dict[str, Any], size: int) -> Any:
    if field.name in columns:
        return pa.array(columns[field.name], field.type)
    if field.name == "unchanged":
        return pa.array([_NONE] * size, field.type)
    repeated: Any = pa.scalar(same.get(field.name), field.type)
    return pa.repeat(repeated, size)


def _documents(event: ChangeEvent, payload: bytes) -> list[bytes]:
    return [payload[start:stop] for start, stop in event.documents]


def _reason(error: Exception) -> tuple[str, str]:
    """A slug, and text without row data."""
    if isinstance(error, Malformed):
        return "broken-event", error.message
    if isinstance(error, BSONError | UnicodeDecodeError):
        return "broken-bson", "the event is no valid BSON"
    return "broken-event", f"the event can't be decoded ({type(error).__name__})"


def _namespace(documents: list[bytes]) -> tuple[str | None, str | None]:
    try:
        found = bson.decode(documents[0], CODEC)["ns"]
        return found["db"], found.get("coll")
    except BROKEN:
        return None, None
