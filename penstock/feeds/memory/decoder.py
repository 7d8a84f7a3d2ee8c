"""The memory feed's decoder: numbers of changes to record batches, column by column. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import ormsgpack
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import Images, schema
from penstock.errors import Malformed
from penstock.feeds.memory.places import COMMITTED, KEYS, number_of, token_of
from penstock.feeds.memory.settings import MemoryFeedSettings
from penstock.page import Page

_OPERATIONS = ("INSERT", "UPDATE", "DELETE")
_KINDS = pa.array(_OPERATIONS, pa.string())
_TIME = pa.timestamp("us", tz="UTC")


class MemoryDecoder:
    """The implementation of `page.Decoder`: numbers of changes -> changes, column by column."""

    def __init__(self, settings: MemoryFeedSettings, images: Images) -> None:
        self._settings = settings
        self._images: Images = images
        self.unknown_types: set[str] = set()
        self._keys = pa.array([self._image({"id": n}) for n in range(KEYS)], self._image_type)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._settings, self._images)

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """See `page.Decoder`."""
        try:
            numbers = np.array(orjson.loads(page.payload), np.int64)
        except (orjson.JSONDecodeError, ValueError) as error:
            raise Malformed("a page of the memory feed is not JSON") from error
        rows, unit = len(numbers), self._settings.unit
        keys = numbers % KEYS
        kinds = numbers // KEYS % len(_OPERATIONS)
        cursor = _joined(
            _scalar(f"{page.partition}-"), pc.utf8_lpad(_text(numbers // unit), 12, "0")
        )
        ordinals = numbers % unit
        key: Any = self._keys.take(pa.array(keys, pa.int64()))
        deleted = pa.array(kinds == _OPERATIONS.index("DELETE"), pa.bool_())
        nothing = _nothing(rows, self._image_type)
        after = pa.array(
            [self._image({"id": n % KEYS, "number": n, "text": f"change {n}"})
             for n in numbers.tolist()],
            self._image_type,
        )  # fmt: skip
        identity: tuple[Any, ...] = cursor, _scalar(":"), _text(ordinals)
        tokens: Any = None
        if self._settings.tokens:
            tokens = pa.array([token_of(number) for number in numbers.tolist()], pa.string())
            identity = _scalar(f"{page.partition}-"), tokens
        committed = int(COMMITTED.timestamp() * 1e6) + numbers * 1000
        captured = np.full(rows, page.captured_at, np.int64)
        made: dict[str, Any] = {
            "backend": _same(self._settings.name, rows),
            "partition": _same(page.partition, rows),
            "cursor": cursor,
            "ordinal": pa.array(ordinals, pa.int64()).cast(pa.int32()),
            "event_id": _joined(_scalar(f"{self._settings.name}:"), *identity),
            "operation": _KINDS.take(pa.array(kinds, pa.int64())),
            "namespace": _same("memory", rows),
            "collection": _same("items", rows),
            "document_id": _joined(_scalar(f"{page.partition}-"), _text(keys)),
            "key": key,
            "before": pc.if_else(deleted, key, nothing),
            "after": pc.if_else(deleted, nothing, after),
            "unchanged": pa.array([[]] * rows, schema().field("unchanged").type),
            "transaction": cursor,
            "committed_at": pa.array(committed, pa.int64()).cast(_TIME),
            "captured_at": pa.array(captured, pa.int64()).cast(_TIME),
        }
        if tokens is not None:
            made["mark"] = _joined(_scalar('{"token":"'), tokens, _scalar('"}'))
        chosen = schema(self._images)
        columns = [
            made[each.name] if each.name in made else _nothing(rows, each.type) for each in chosen
        ]
        return [pa.RecordBatch.from_arrays(columns, schema=chosen)]

    @property
    def _image_type(self) -> pa.DataType:
        return pa.string() if self._images == "json" else pa.binary()

    def _image(self, image: dict[str, Any]) -> str | bytes:
        return orjson.dumps(image).decode() if self._images == "json" else ormsgpack.packb(image)


class FetchingDecoder(MemoryDecoder):
    """A `page.Fetches`: makes up, in the task, what a page names by its first and last place."""

    def fetch(self, page: Page) -> Page:
        """See `page.Fetches`."""
        first, last = (number_of(self._settings, each) for each in (page.first, page.last))
        return replace(page, payload=orjson.dumps(list(range(first, last + 1))))


# With their types: to guess one, pyarrow looks for pandas, each time.
def _text(numbers: Any) -> Any:
    return pa.array(numbers, pa.int64()).cast(pa.string())


def _scalar(text: str) -> Any:
    return pa.scalar(text, pa.string())


def _joined(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, _EMPTY)


_EMPTY = _scalar("")


def _nothing(rows: int, kind: pa.DataType) -> Any:
    made: Any = pa.nulls
    return made(rows, kind)


def _same(text: str, rows: int) -> Any:
    return pa.repeat(pa.scalar(text, pa.string()), rows)
