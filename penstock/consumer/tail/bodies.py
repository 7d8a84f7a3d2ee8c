"""The body of a message -> the changes in it, each as the map of the layout `penstock`. Pure.

`Penstock-Schema` names the layout, whose plug-in reads the decoded body; `Content-Type` names an
Arrow stream; MessagePack and JSON differ in the first byte. See docs/reference/messages.md.

JSON may be read exactly: objects, arrays and fractions keep the text that they were read from, for
documents that go on into a database. A parser to Python's values loses digits, repeated keys and
white space. It takes several times as long as orjson, which has checked the text before.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa

from penstock.model.errors import Malformed
from penstock.nats.compression import ENCODING, Decompressor
from penstock.process.plugins import plugin

ARROW = "application/vnd.apache.arrow.stream"
_STREAM = b"\xff\xff\xff\xff"  # what such a stream begins with, and no map or array of MessagePack
_SHARED = (
    "backend", "tenant", "database", "schema", "collection", "operation", "relation_id",
    "schema_version",
)  # fmt: skip


def changes_of(
    headers: Mapping[str, str],
    data: bytes,
    decompressor: Decompressor | None = None,
    *,
    exactly: bool = False,
) -> Sequence[Mapping[str, Any]]:
    """The changes of one message, in order; raises Malformed, SettingsError when its layout is not
    installed, and what the decompressor raises. Without one there are no dictionaries. `exactly`:
    JSON keeps its text."""
    if ENCODING in headers:
        data = (decompressor or Decompressor()).plain(headers, data)
    try:
        changes = _changes(headers, data, exact_json if exactly else orjson.loads)
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise Malformed(
            f"cannot decode a message of {len(data)} bytes by the layout and content type of its"
            " headers",
            "consumer",
        ) from error
    try:
        for change in changes:
            _ = change["event_id"], change["operation"], change["backend"]  # all have them
    except (LookupError, TypeError):
        raise Malformed(f"a message of {len(data)} bytes is not a change", "consumer") from None
    return changes


def _changes(headers: Mapping[str, str], data: bytes, load: Any) -> Sequence[Mapping[str, Any]]:
    if data.startswith(_STREAM) and headers.get("Content-Type") == ARROW:
        return _tabular(data, load)
    try:
        # What maps and arrays of MessagePack start with is no character of ASCII.
        body = ormsgpack.unpackb(data) if data >= b"\x80" else load(data)
    except ValueError as error:
        raise Malformed(
            f"a message of {len(data)} bytes is neither JSON nor MessagePack", "consumer"
        ) from error
    return _layout(headers.get("Penstock-Schema", "")).changes(body)  # type: ignore[no-any-return]


@lru_cache(100)
def _layout(text: str) -> Any:
    """`NAME-VERSION`; the layout `penstock` has its version alone."""
    name, named, _ = text.partition("-")
    return plugin("layouts", name if named else "penstock")


def arrow_table(data: bytes, load_json: Any) -> tuple[Any, dict[str, str], Any]:
    """The table of an Arrow stream, its metadata, and what decodes its images."""
    table = pa.ipc.open_stream(data).read_all()
    given = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    return table, given, ormsgpack.unpackb if given.get("images") == "msgpack" else load_json


def _tabular(data: bytes, load_json: Any) -> list[Mapping[str, Any]]:
    table, given, load = arrow_table(data, load_json)
    relation = given.get("relation_id")
    shared = {
        **{name: given.get(name) for name in _SHARED},
        "relation_id": int(relation) if relation else None,
    }
    changes: list[Mapping[str, Any]] = []
    for row in table.to_pylist():
        row["position"] = f"{row.pop('cursor')}:{row.pop('ordinal')}"
        for name in ("key", "data", "before", "delta"):
            image = row.get(name)
            row[name] = None if image is None else load(image)
        for name in ("committed_at", "captured_at"):
            row[name] = None if row[name] is None else _iso(row[name])
        changes.append(shared | row)
    return changes


def _iso(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


# Strings, brackets, numbers and words, after what stands between them.
_TOKEN = re.compile(
    r'[\s,:]*(?:"([^"\\]*(?:\\.[^"\\]*)*)"|([{\[])|([}\]])|([-0-9.eE+]+)|(\w+))', re.DOTALL
)
_STRING, _OPEN, _CLOSE, _NUMBER, _WORD = 1, 2, 3, 4, 5
_DIGITS = 4000  # Python reads no longer integers
_WORDS = {"true": True, "false": False, "null": None}


class _Exact:
    source = ""
    start = end = 0

    @property
    def text(self) -> str:
        """What was read, with the white space around it: pipelines write none of their own."""
        source, start, end = self.source, self.start, self.end
        while start and source[start - 1].isspace():
            start -= 1
        while source[end : end + 1].isspace():
            end += 1
        return source[start:end]


class ExactObject(_Exact, dict[str, Any]):
    """An object."""


class ExactArray(_Exact, list[Any]):
    """An array."""


class ExactNumber(_Exact, float):
    """A number that is no integer of Python."""


def is_json(headers: Mapping[str, str], payload: bytes) -> bool:
    """Whether a message may have JSON: all but MessagePack, also where nothing is said of it."""
    if b"\x80" <= payload[:1] < b"\xff":  # a map or an array, and no text
        return False
    return headers.get("Content-Type") != "application/msgpack"


def exact_json(data: bytes | str) -> Any:
    """The value of a JSON text that is known to be one."""
    source = data if isinstance(data, str) else data.decode()
    inner: Any = []
    name: str | None = None  # of the next value, in an object
    open_ones = [inner]
    for token in _TOKEN.finditer(source):
        kind = token.lastindex
        value: Any
        if kind == _CLOSE:
            open_ones.pop().end = token.end()
            inner = open_ones[-1]
            continue
        if kind == _STRING:
            value = token[_STRING]
            if "\\" in value:
                value = orjson.loads(f'"{value}"')
            if name is None and type(inner) is ExactObject:
                name = value
                continue
        elif kind == _OPEN:
            value = ExactObject() if token[_OPEN] == "{" else ExactArray()
            value.source, value.start = source, token.start(_OPEN)
        elif kind == _NUMBER:
            value = _number(token)
        else:
            value = _WORDS[token[_WORD]]
        if name is None:
            inner.append(value)
        else:
            inner[name], name = value, None
        if kind == _OPEN:
            open_ones.append(value)
            inner = value
    return inner[0]


def _number(token: "re.Match[str]") -> int | ExactNumber:
    text = token[_NUMBER]
    if len(text) < _DIGITS and text.lstrip("-").isdigit() and text != "-0":
        return int(text)
    value = ExactNumber(text)
    value.source, value.start, value.end = token.string, *token.span(_NUMBER)
    return value
