"""Changes -> rows with the columns of a user's schema, and what is known of each change."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import ormsgpack
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.change import Images, Operation, unreadable
from penstock.model.errors import Malformed, SettingsError
from penstock.model.images import untyped
from penstock.typed import OnMisfit
from penstock.typed.columns import COLUMNS, sequences, verify_beside
from penstock.typed.documents import DocumentColumns, FieldMisfit, text_of

_MESSAGE = pa.scalar(Operation.MESSAGE.value, pa.string())
_NO_ROW = ("TRUNCATE", "DROP", "RENAME", "DROP_DATABASE", "INVALIDATE", "SUSPEND", "ERROR")
_Document = dict[str, Any]
# By the name of their column.
_Misfits = Mapping[str, Sequence[FieldMisfit]]


@dataclass(frozen=True)
class DocumentRows:
    """Makes rows of `schema` from batches of changes with images of the form msgpack, or raises
    SettingsError for a schema that documents cannot have. Pickles."""

    schema: pa.Schema
    on_misfit: OnMisfit = "FAILFAST"
    images: ClassVar[Images] = "msgpack"

    def __post_init__(self) -> None:
        self._documents  # noqa: B018 - raises
        verify_beside(self.schema)

    def of_page(
        self, page: Iterable[pa.RecordBatch], kept: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """See `TypedRows`."""
        return map(self.rows, kept)

    def __reduce__(self) -> tuple[Any, ...]:
        return DocumentRows, (self.schema, self.on_misfit)

    @cached_property
    def _documents(self) -> DocumentColumns:
        own = [field for field in self.schema if field.name not in COLUMNS]
        return DocumentColumns(pa.schema(own))

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One row for each change that is no message. Raises SettingsError where a value does not
        fit, unless `on_misfit` is PERMISSIVE."""
        batch = batch.filter(pc.not_equal(batch.column("operation"), _MESSAGE))
        names = self._documents.schema.names
        operations = batch.column("operation").to_pylist()
        images = (batch.column(name).to_pylist() for name in ("key", "before", "after", "delta"))
        found = [
            _document(operation, packed, names)
            for operation, *packed in zip(operations, *images, strict=True)
        ]
        documents = [document for document, _ in found]
        columns, misfits = self._documents.columns(documents)
        if misfits and self.on_misfit == "FAILFAST":
            raise self._refusal(batch, next(iter(misfits.values()))[0])
        ours: dict[str, Any] = {
            "_operation": lambda: batch.column("operation"),
            "_sequence": lambda: sequences(batch),
            "_committed_at": lambda: batch.column("committed_at"),
            "_unsent": lambda: [unsent for _, unsent in found],
            "_key_before": lambda: [None] * len(found),
            "_rest": lambda: rest_of(documents, names, misfits),
            "_corrupt": lambda: _corrupt(batch, documents, misfits),
        }
        own = dict(zip(names, columns, strict=True))
        return pa.RecordBatch.from_arrays(
            [
                own[field.name] if field.name in own else _array(ours[field.name](), field.type)
                for field in self.schema
            ],
            schema=self.schema,
        )

    def _refusal(self, batch: pa.RecordBatch, misfit: FieldMisfit) -> SettingsError:
        row = batch.slice(misfit.row, 1).to_pylist()[0]
        names = row["namespace"] or row["database"], row["collection"]
        table = ".".join(filter(None, names))
        return SettingsError(
            f"{table} has {misfit.found} in {misfit.path}, which the schema declares as"
            f" {misfit.type}, and which does not fit there (at {row['cursor']}:{row['ordinal']} of"
            f" {row['partition']})",
            "typed.misfit",
            hint="declare the column as a string, which takes any value, or set on_misfit to"
            " PERMISSIVE, and give the schema a column _corrupt",
        )


def _array(values: Any, kind: Any) -> "pa.Array[Any]":
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _document(
    operation: str, images: Sequence[bytes | None], names: Sequence[str]
) -> tuple[_Document | None, list[str] | None]:
    """The document that a change's row shows, as far as it was sent, and which of the columns
    `names` were not: the old one of a DELETE. `images` are key, before, after and delta."""
    key, before, after, delta = images
    if operation in _NO_ROW:
        return None, None
    whole = before if operation == Operation.DELETE else after
    if whole is not None:
        return _unpacked(whole), []
    known = {} if key is None else untyped(_unpacked(key), as_bytes=True)
    if delta is not None and operation != Operation.DELETE:
        _apply(_unpacked(delta), known, names)
    return known, [name for name in names if name not in known]


def _apply(delta: _Document, known: _Document, names: Sequence[str]) -> None:
    """Adds to what is known of a document the fields that an update set or removed as a whole."""
    paths = delta.get("paths", {})
    parts: set[str] = set()
    for path, value in [*delta.get("updated", {}).items(),
                        *((each, None) for each in delta.get("removed", ()))]:  # fmt: skip
        steps = [path] if path in names else paths.get(path) or path.split(".")
        if len(steps) == 1:
            known[steps[0]] = value
        else:
            parts.add(steps[0])
    parts.update(each["field"].split(".")[0] for each in delta.get("truncated", ()))
    for name in parts:
        known.pop(name, None)


def _unpacked(image: bytes) -> _Document:
    try:
        found = ormsgpack.unpackb(image, option=ormsgpack.OPT_NON_STR_KEYS)
    except ormsgpack.MsgpackDecodeError as error:
        raise Malformed("a row image is not MessagePack", "typed") from error
    if not isinstance(found, dict):
        raise Malformed("a row image is not a document", "typed")
    return found


def rest_of(
    documents: Sequence[_Document | None], names: Sequence[str], misfits: _Misfits
) -> list[Any]:
    """Of each document the fields that no column has, and those in which something did not fit."""
    unfit = {(each.row, name) for name, found in misfits.items() for each in found}
    own = frozenset(names)
    return [
        None if document is None else [
            (name, text_of(value)) for name, value in document.items()
            if value is not None and (name not in own or (row, name) in unfit)
        ]
        for row, document in enumerate(documents)
    ]  # fmt: skip


def _corrupt(
    batch: pa.RecordBatch, documents: Sequence[_Document | None], misfits: _Misfits
) -> list[str | None]:
    """As JSON text the documents that did not fit, and what is known of changes that cannot be
    read."""
    found: list[str | None] = [None] * len(documents)
    for row in {each.row for unfit in misfits.values() for each in unfit}:
        found[row] = text_of(documents[row])
    for row in unreadable(batch):
        if (image := batch.column("after")[row].as_py()) is not None:
            found[row] = text_of(_unpacked(image))
    return found
