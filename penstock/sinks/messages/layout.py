"""What a body looks like: layouts, which are plug-ins (group `penstock.layouts`), and `penstock`.

docs/reference/messages.md has every field.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.sinks.messages.dialect import Dialect
from penstock.sinks.messages.pieces import (
    Pick,
    Piece,
    PlacePiece,
    RawPiece,
    Strings,
    TextPiece,
    Time,
)

# What changes of one kind have in common, and what each has of its own.
SHARED = (
    "backend", "tenant", "database", "schema", "collection", "operation", "relation_id",
    "schema_version",
)  # fmt: skip
EACH = (
    "event_id", "document_id", "key", "data", "before", "unchanged", "position", "transaction",
    "committed_at", "captured_at", "delta",
)  # fmt: skip
FIELDS = (EACH[0], *SHARED, *EACH[1:])


class Layout(ABC):
    """How a change, and how several of one kind, are a body; and how they are read back.

    A layout of one's own has at least `body` and `changes`; an instance of the class is named by
    an entry point of the group `penstock.layouts`, and has no state. `version` goes up when a field
    goes or changes its meaning. `encodings` are those of `sink.encoding` that it can have.

    `omits` are operations that are not published: the position passes them. `values` is how it
    has the values of columns: what the setting of that name of a backend says.

    `fields` are what `body` gets of a change: any of the layout `penstock`, and `cursor`,
    `ordinal`, `partition`, `namespace`, `mark`, `hash_partition`, `connector` (what Debezium calls
    the source; empty if that is not known), `committed_ms`, `captured_ms` (since 1970). Images
    (`key`, `data`, `before`, `delta`) are values of MessagePack; in JSON, where numbers keep their
    digits, each is an `orjson.Fragment`, whose text `orjson.dumps` gives.
    """

    version = 1
    encodings: tuple[str, ...] = ("json",)
    omits: tuple[str, ...] = ()
    values = "typed"
    fields: tuple[str, ...] = FIELDS

    def content_type(self, dialect: Dialect, *, many: bool) -> bytes:
        """The header `Content-Type`; `many`: of messages with several changes."""
        return dialect.content_type

    def body(self, change: Mapping[str, Any]) -> Any:
        """A change as a value that the encoding can write: by default, a map of the `fields`. Of
        several in a message: an element."""
        return change

    def around(self, values: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What a body of several changes has beside its field `changes`, with the values that they
        share (`SHARED`). None: such a body is an array of elements."""
        return None

    def columnar(self, dialect: Dialect) -> "PenstockColumns | None":
        """How many changes become bodies at once; None: `body` makes each."""
        return None

    @abstractmethod
    def changes(self, body: Any) -> Sequence[Mapping[str, Any]]:
        """The changes of a decoded body, each with the fields of the layout `penstock`. May raise
        ValueError, LookupError, TypeError or AttributeError when the body is no such body."""


class Penstock(Layout):
    """One map with every field of the change."""

    encodings = ("msgpack", "json", "arrow")

    def around(self, values: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """See Layout. Elements are the values alone, in the order of `fields`."""
        return {name: values[name] for name in SHARED} | {"fields": EACH}

    def columnar(self, dialect: Dialect) -> "PenstockColumns":
        return PenstockColumns(dialect)

    def changes(self, body: Any) -> Sequence[Mapping[str, Any]]:
        if not isinstance(body, dict):
            return body if isinstance(body, list) else [body]
        if "changes" not in body:
            return [body]
        # Older messages lack the version.
        given = {"schema_version": None} | body
        shared = {name: given[name] for name in SHARED}
        names = body["fields"]
        return [shared | dict(zip(names, one, strict=True)) for one in body["changes"]]


class PenstockColumns:
    """Bodies as pieces of columns: a thousand changes at once, without a map for each. The columns
    are those of changes, and `kind` and `fields`: what `shared` gives for each kind. `extras` are
    the names of what is `made` for each batch, too."""

    extras: tuple[str, ...] = ()

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._names = {name: dialect.name(name, first=name == FIELDS[0]) for name in FIELDS}
        form, nil = dialect.form, dialect.nil
        self._values: dict[str, Piece] = {
            "event_id": TextPiece("event_id", form, nil),
            "document_id": TextPiece("document_id", form, nil),
            "key": RawPiece("key", null=nil),
            "data": RawPiece("after", null=nil),
            "before": RawPiece("before", null=nil),
            "unchanged": Strings("unchanged", form, nil),
            "position": PlacePiece("cursor", "ordinal", form),
            "transaction": TextPiece("transaction", form, nil),
            "committed_at": Time("committed_at", form, nil),
            "captured_at": Time("captured_at", form, nil),
            "delta": RawPiece("delta", null=nil),
        }

    def shared(self, values: Mapping[str, Any]) -> bytes:
        """What a kind determines of each of its changes."""
        return b"".join(self._names[name] + self._dialect.value(values[name]) for name in SHARED)

    def made(self, columns: Any, row_kinds: Any, subjects: Any) -> Mapping[str, Any]:
        """The columns `extras` of the changes in `columns`, which go to these subjects."""
        return {}

    def pieces(self, *, element: bool) -> tuple[Piece | bytes, ...]:
        """A change that is a body, or one of several in a body."""
        say, parts = self._dialect, list[Piece | bytes]()
        if element:
            for name in EACH:
                parts += [self._values[name], say.separator]
            return say.list_start(len(EACH)), *parts[:-1], say.list_end
        for name in EACH:
            parts += [self._names[name], self._values[name]]
        # The event id, then what is shared, then the rest: the order of FIELDS.
        return say.start(len(FIELDS)), *parts[:2], Pick("kind", "fields"), *parts[2:], say.end


def of_milliseconds(count: int | None) -> str | None:
    """A time as the layout `penstock` has it, from milliseconds since 1970."""
    if count is None:
        return None
    when = datetime(1970, 1, 1) + timedelta(milliseconds=count)
    return when.isoformat(timespec="microseconds") + "Z"


PLUGIN = Penstock()
