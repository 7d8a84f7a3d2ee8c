"""The memory feed's decoder: numbers of changes to record batches, column by column. Pure."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa

from penstock.feeds.memory.places import COMMITTED, KEYS, token_of
from penstock.feeds.memory.settings import MemoryFeedSettings
from penstock.model.change import Images, schema
from penstock.model.errors import Malformed
from penstock.model.page import Page

_OPERATIONS = ("INSERT", "UPDATE", "DELETE")
_COMMITTED = int(COMMITTED.timestamp()) * 1_000_000


class MemoryDecoder:
    """The implementation of `page.Decoder`: numbers of changes -> changes, column by column. A page
    is to cost no more than its rows: many partitions have small ones."""

    def __init__(self, settings: MemoryFeedSettings, images: Images) -> None:
        self._settings = settings
        self._images: Images = images
        self.unknown_types: set[str] = set()
        self._keys = [self._image({"id": n}) for n in range(KEYS)]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._settings, self._images)

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """See `page.Decoder`."""
        try:
            numbers = [int(number) for number in orjson.loads(page.payload)]
        except (orjson.JSONDecodeError, ValueError, TypeError) as error:
            raise Malformed("a page of the memory feed is not JSON") from error
        rows, partition, settings = len(numbers), page.partition, self._settings
        unit, name = settings.unit, settings.name
        keys = [number % KEYS for number in numbers]
        kinds = [number // KEYS % len(_OPERATIONS) for number in numbers]
        units = {each: f"{partition}-{each:012d}" for each in {n // unit for n in numbers}}
        cursors = [units[number // unit] for number in numbers]
        ordinals = [number % unit for number in numbers]
        tokens = [token_of(number) for number in numbers] if settings.tokens else None
        ids = (
            [f"{name}:{partition}-{token}" for token in tokens]
            if tokens
            else list(map(f"{name}:{{}}:{{}}".format, cursors, ordinals))
        )
        named, deletes = [f"{partition}-{key}" for key in range(KEYS)], _OPERATIONS.index("DELETE")
        column = pa.array(cursors, pa.string())
        chosen = schema(self._images)
        made: dict[str, Any] = {
            "backend": _same(name, rows),
            "partition": pa.repeat(pa.scalar(partition, pa.string()), rows),
            "cursor": column,
            "ordinal": ordinals,
            "event_id": ids,
            "operation": [_OPERATIONS[kind] for kind in kinds],
            "namespace": _same("memory", rows),
            "collection": _same("items", rows),
            "document_id": [named[key] for key in keys],
            "key": [self._keys[key] for key in keys],
            "before": [
                self._keys[key] if kind == deletes else None
                for kind, key in zip(kinds, keys, strict=True)
            ],
            "after": [
                None if kind == deletes else self._after(number)
                for kind, number in zip(kinds, numbers, strict=True)
            ],
            "unchanged": _unchanged(rows),
            "transaction": column,
            "committed_at": [_COMMITTED + 1000 * number for number in numbers],
            "captured_at": [page.captured_at] * rows,
        }
        if tokens is not None:
            made["mark"] = [f'{{"token":"{token}"}}' for token in tokens]
        columns = [_column(made.get(each.name), each.type, rows) for each in chosen]
        return [pa.RecordBatch.from_arrays(columns, schema=chosen)]

    def _after(self, number: int) -> str | bytes:
        return self._image({"id": number % KEYS, "number": number, "text": f"change {number}"})

    def _image(self, image: dict[str, Any]) -> str | bytes:
        return orjson.dumps(image).decode() if self._images == "json" else ormsgpack.packb(image)


def _column(values: Any, kind: pa.DataType, rows: int) -> Any:
    if values is None:
        return _nothing(rows, kind)
    # With its type: to guess one, pyarrow looks for pandas, each time.
    return pa.array(values, kind) if isinstance(values, list) else values


# Of pages of the same number of changes: these columns are the same, and Arrow's never change.
@lru_cache(32)
def _nothing(rows: int, kind: pa.DataType) -> Any:
    made: Any = pa.nulls
    return made(rows, kind)


@lru_cache(32)
def _same(text: str, rows: int) -> Any:
    return pa.repeat(pa.scalar(text, pa.string()), rows)


@lru_cache(32)
def _unchanged(rows: int) -> Any:
    return pa.array([[]] * rows, schema().field("unchanged").type)
