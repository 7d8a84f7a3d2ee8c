"""Documents as rows of two columns and more, as lines of COPY: those of the key, and `document`,
which is JSON text. Pure.

A key column is text, and one text is one value. Text that could be a value of another type (`1`,
an ObjectId, a date, JSON) is a JSON string, in double quotes; all other text is as it is. Values
that are no text are their JSON text; an ObjectId, a UUID, a date and a long integer are their text
alone.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa

from penstock.model.change import ERROR, WHOLE, Images, schema
from penstock.model.errors import SettingsError
from penstock.model.images import base64_of
from penstock.model.page import Decoder, DecoderAround, Page
from penstock.wire.documents import error_image

DOCUMENT = "document"
# The version of a relation of documents.
OF_DOCUMENTS = "documents"

_UNSENT = "\\U"
_TEXT = 25  # PostgreSQL's number of the type text
_BARE = ("$oid", "$uuid", "$date", "$numberLong")
_AMBIGUOUS = re.compile(
    r'[\[{"].*|-?[0-9][0-9.]*([eE][-+]?[0-9]+)?|[0-9a-f]{24}|true|false|null'
    r"|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[-+]?[0-9]{4,6}-[0-9]{2}-[0-9]{2}T.*",
    re.DOTALL,
)
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


class DocumentLines(DecoderAround):
    """A decoder of changes as lines, around one with images of the form msgpack. `key`: which part
    of a change's key is the key, if not all."""

    def __init__(self, decoder: Decoder, key: str = "") -> None:
        super().__init__(decoder)
        self._key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return DocumentLines, (self.decoder, self._key)

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """See `page.Decoder`. Raises SettingsError for a change that has no document, and is not
        one that was deleted since."""
        return [_lines(batch, self._key) for batch in self.decoder.decode(page)]


def document_lines(make: Callable[[Images], Decoder], images: Images, key: str = "") -> Decoder:
    """The decoder that `make` gives for images of a form, also for lines."""
    return DocumentLines(make("msgpack"), key) if images == "text" else make(images)


def key_text(value: Any) -> str:
    """A value of a key as its column has it."""
    if isinstance(value, str):
        return orjson.dumps(value).decode() if _AMBIGUOUS.fullmatch(value) else value
    if isinstance(value, dict) and len(value) == 1:
        ((name, inner),) = value.items()
        if name in _BARE and isinstance(inner, str):
            return inner
    return orjson.dumps(value, default=_binary).decode()


def _binary(value: Any) -> Any:
    """Bytes as Extended JSON has them: text and bytes stay apart."""
    return {"$binary": {"base64": base64_of(value), "subType": "00"}}


def _lines(batch: pa.RecordBatch, own: str) -> pa.RecordBatch:
    names = ("operation", "namespace", "database", "collection", "key", "before", "after", "delta")
    rows = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    backend = batch.column("backend")[0].as_py() if len(batch) else ""
    made, known = [_row(row, backend, own) for row in rows], set[int]()
    for row in made:
        if row["delta"] is not None:
            row["delta"] = None if row["relation_id"] in known else row["delta"]
            known.add(row["relation_id"])
    target = schema("text")
    columns = [
        pa.array([row[field.name] for row in made], field.type)
        if made and field.name in made[0] else batch.column(field.name).cast(field.type)
        for field in target
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=target.with_metadata(WHOLE))


def _row(row: Sequence[Any], backend: str, own: str) -> dict[str, Any]:
    operation, namespace, database, collection, key, before, after, delta = row
    namespace = namespace or database or backend
    found: dict[str, Any] = {
        "operation": operation, "namespace": namespace, "relation_id": None, "key": None,
        "before": None, "after": None, "delta": None, "unchanged": [], "schema_version": None,
    }  # fmt: skip
    if operation == "RENAME":
        # Documents have another name from here on, and no change says which they are.
        why = f"{namespace}.{collection} was renamed: load it and what it is called now anew"
        image = error_image("json", reason="renamed", error=why, raw=b"", context=b"")
        return found | {"operation": str(ERROR.value), "after": orjson.dumps(image).decode()}
    if key is None and operation != "DROP":  # not of a document
        whole = None if after is None else ormsgpack.unpackb(after)
        text = None if whole is None else orjson.dumps(whole, default=base64_of).decode()
        return found | {"after": text}
    values = {} if key is None else _unpacked(key)
    if own:  # of a sharded collection, a key has its shard key as well
        values = {own: values.get(own)}
    found |= relation_of(namespace, collection, [*values])
    if key is None:
        return found
    if operation in ("INSERT", "REPLACE", "UPDATE") and after is None and delta is None:
        raise SettingsError(
            f"changes of {namespace}.{collection} have no documents", "wire.documents-missing",
            hint="let the source send new images: NEW_AND_OLD_IMAGES, or NEW_IMAGE",
        )  # fmt: skip
    cells = [key_text(each).translate(_ESCAPES) for each in values.values()]
    found["key"] = "\t".join(cells)
    if operation == "DELETE":
        found["before"] = _line(cells, before)
    else:
        found["after"] = _line(cells, after)
        found["unchanged"] = [DOCUMENT] if after is None else []
    return found


def _line(cells: Iterable[str], image: bytes | None) -> str:
    cell = _UNSENT
    if image is not None:
        cell = orjson.dumps(_unpacked(image), default=_binary).decode().replace("\\", "\\\\")
    return "\t".join([*cells, cell])


def _unpacked(image: bytes) -> dict[str, Any]:
    found: dict[str, Any] = ormsgpack.unpackb(image, option=ormsgpack.OPT_NON_STR_KEYS)
    return found


def relation_of(namespace: str, collection: str, key: Sequence[str]) -> Mapping[str, Any]:
    """What lines are of, as the first change of a page says it."""
    columns = [
        {"name": name, "type": _TEXT, "modifier": -1, "key": is_key}
        for name, is_key in (*((each, True) for each in key), (DOCUMENT, False))
    ]
    named = {"schema": namespace, "table": collection, "version": OF_DOCUMENTS}
    text = orjson.dumps({**named, "columns": columns, "types": {}}).decode()
    number = int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "big")
    return {"delta": text, "relation_id": number, "schema_version": OF_DOCUMENTS}
