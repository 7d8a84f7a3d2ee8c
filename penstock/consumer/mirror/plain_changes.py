"""Bodies of MessagePack that hold one whole row of a known table -> its values. Pure.

Most changes are such, and maps for the change and its row take a third of a mirror's time.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import msgspec

EXPECTED = "backend", "schema", "collection", "relation_id", "schema_version"


class PlainChange(msgspec.Struct, gc=False):
    """A change as the layout `penstock` has it, of the table and the columns that are expected.
    `data`: a struct of the columns' values."""

    operation: Literal["INSERT", "READ", "UPDATE", "REPLACE"]
    data: Any
    before: None
    unchanged: Annotated[tuple[Any, ...], msgspec.Meta(max_length=0)]
    position: str
    committed_at: Any


PlainDecoder = Callable[[bytes], PlainChange]


def plain_decoder(columns: Sequence[str], *expected: str | int | None) -> PlainDecoder:
    """What decodes plain changes with these columns, and these values of the fields `EXPECTED`;
    raises MsgspecError on any other."""
    values = [(f"column_{n}", Any, msgspec.field(name=name)) for n, name in enumerate(columns)]
    fields: list[Any] = [
        (name, Literal[value]) for name, value in zip(EXPECTED, expected, strict=True)
    ]
    fields.append(("data", msgspec.defstruct("Row", values, gc=False)))
    change = msgspec.defstruct("Change", fields, bases=(PlainChange,), gc=False)
    decode: Any = msgspec.msgpack.Decoder(change).decode
    return decode  # type: ignore[no-any-return]
