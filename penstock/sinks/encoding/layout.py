"""What a body looks like: which pieces of a change, under which names.

`penstock` is here; others have modules of their own. docs/reference/messages.md has every field.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from penstock.sinks.encoding.columns import Column, Columns, Numbers, Values
from penstock.sinks.encoding.dialect import Dialect
from penstock.sinks.encoding.pieces import (
    Pick,
    Piece,
    PlacePiece,
    RawPiece,
    Strings,
    TextPiece,
    Time,
)
from penstock.sinks.encoding.routes import Route, Routed

__all__ = [
    "EACH", "FIELDS", "SHARED", "Layout", "Penstock", "is_document", "milliseconds", "numbered",
    "schema_of",
]  # fmt: skip

# What changes of one route have in common, and what each has of its own.
SHARED = ("backend", "tenant", "database", "schema", "collection", "operation", "relation_id")
EACH = (
    "event_id", "document_id", "key", "data", "before", "unchanged", "position", "transaction",
    "committed_at", "captured_at", "delta",
)  # fmt: skip
FIELDS = (EACH[0], *SHARED, *EACH[1:])


class Layout(Protocol):
    """How a change, and how several of one route, are a body.

    `version` goes up when a field goes or changes its meaning. The pieces may use the change's
    columns, `kind` and `fields` (`shared` of each route), and the `extras`.
    """

    dialect: Dialect
    content_type: bytes
    version: bytes
    extra_names: tuple[str, ...]

    def shared(self, route: Mapping[str, Any]) -> bytes:
        """What a route determines of each of its changes."""
        ...

    def change(self) -> tuple[Piece | bytes, ...]:
        """A change that is a body."""
        ...

    def element(self) -> tuple[Piece | bytes, ...]:
        """A change that is one of several in a body; after the dialect's separator."""
        ...

    def around(self, route: Route, count: int) -> tuple[bytes, bytes]:
        """What stands before and after the elements of one body."""
        ...

    def extras(
        self, columns: Columns, routed: Routed, images: Mapping[str, Column]
    ) -> dict[str, Any]:
        """What the pieces need beside the change's own columns: each of `extra_names`, in that
        order. `images` are those of `IMAGES` in the encoding of the dialect, if the
        columns' own are not."""
        ...


class Penstock:
    """A `Layout`: one map with every field of the change."""

    content_type: bytes
    version = b"1"
    extra_names: tuple[str, ...] = ()

    def __init__(self, dialect: Dialect) -> None:
        self.dialect, self.content_type = dialect, dialect.content_type
        self._names = {name: dialect.name(name, first=name == FIELDS[0]) for name in FIELDS}
        self._values: dict[str, Piece] = self._pieces()

    def _pieces(self) -> dict[str, Piece]:
        form, nil = self.dialect.form, self.dialect.nil
        return {
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

    def shared(self, route: Mapping[str, Any]) -> bytes:
        """See Layout."""
        values = {**route, "schema": schema_of(route)}
        return b"".join(self._names[name] + self.dialect.value(values[name]) for name in SHARED)

    def change(self) -> tuple[Piece | bytes, ...]:
        """See Layout."""
        each = [part for name in EACH for part in (self._names[name], self._values[name])]
        # The event id, then what is shared, then the rest: the order of FIELDS.
        return (
            self.dialect.start(len(FIELDS)), *each[:2], Pick("kind", "fields"), *each[2:],
            self.dialect.end,
        )  # fmt: skip

    def element(self) -> tuple[Piece | bytes, ...]:
        """See Layout. The values alone, in the order that the body's `fields` states."""
        say = self.dialect
        parts: list[Piece | bytes] = [say.list_start(len(EACH))]
        for name in EACH:
            parts += [self._values[name], say.separator]
        return *parts[:-1], say.list_end

    def around(self, route: Route, count: int) -> tuple[bytes, bytes]:
        """See Layout."""
        say = self.dialect
        values = {**route.values, "schema": schema_of(route.values)}
        head = say.start(len(SHARED) + 2)
        head += b"".join(
            say.name(name, first=name == SHARED[0]) + say.value(values[name]) for name in SHARED
        )
        head += say.name("fields") + say.value(EACH) + say.name("changes") + say.list_start(count)
        return head, say.list_end + say.end

    def extras(
        self, columns: Columns, routed: Routed, images: Mapping[str, Column]
    ) -> dict[str, Any]:
        """See Layout."""
        return {}


def schema_of(route: Mapping[str, Any]) -> Any:
    """The schema of a route. A document database's namespace is its database; it has no schema,
    and no relation ids."""
    return None if is_document(route) else route["namespace"]


def is_document(route: Mapping[str, Any]) -> bool:
    """Whether a route is of a source without schemas: a document database."""
    return route["relation_id"] is None and route["namespace"] == route["database"]


def numbered(column: Column, say: Callable[[Any], bytes]) -> tuple[Numbers, Values]:
    """A column of few different values, for a `Pick`: each row's number, and the values as
    `say` writes them; `null` for nulls."""
    encoded = column.dictionary_encode(null_encoding="encode")
    values = [b"null" if one is None else say(one) for one in encoded.dictionary.to_pylist()]
    return np.asarray(encoded.indices, np.int32), Values(values)


def milliseconds(micros: int) -> bytes:
    """Microseconds as milliseconds, in decimal."""
    return b"%d" % (micros // 1000)
