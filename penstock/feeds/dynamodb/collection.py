"""A table's items as they are now, to compare them with a stream."""

import base64
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from penstock.feeds.dynamodb.client import connect
from penstock.feeds.dynamodb.failures import translating
from penstock.feeds.dynamodb.settings import DynamodbSettings
from penstock.wire.dynamodb.decoder import document_id
from penstock.wire.dynamodb.values import AttributeValues

# A sample is some of so many equal parts of the table's hashes, by chance.
_SEGMENTS = 64


class DynamodbTable:
    """A `feeds.Collection`. An item's values are those of messages. Reads are consistent: each
    costs twice the read capacity of an ordinary one."""

    namespace = ""

    def __init__(self, settings: DynamodbSettings) -> None:
        self._settings = settings
        self.name = settings.table_name
        self._keys: list[str] = []
        self._item = AttributeValues("msgpack").item

    @cached_property
    def _client(self) -> Any:
        return connect(self._settings, "dynamodb")

    def identity(self, change: Mapping[str, Any]) -> str:
        """See `feeds.Collection`."""
        known = change.get("document_id")
        return str(known) if known is not None else document_id(dict(change["key"]))

    def key_of(self, image: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """See `feeds.Collection`."""
        return _picked(image, self._key_names())

    def count(self) -> int:
        """See `feeds.Collection`. Reads the whole table."""
        with translating(f"counting the items of {self.name}"):
            return sum(page["Count"] for page in self._pages(Select="COUNT"))

    def rows(self, most: int | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """See `feeds.Collection`."""
        with translating(f"reading {self.name}"):
            keys = self._key_names()
            seen: set[str] = set()
            for item in self._items(most):
                identity = document_id({name: item[name] for name in keys})
                if identity not in seen:  # a stand-in may know no segments
                    seen.add(identity)
                    yield identity, item
                if len(seen) == most:
                    return

    def _items(self, most: int | None) -> Iterator[dict[str, Any]]:
        if most is None:
            segments: list[dict[str, Any]] = [{}]
        else:
            numbers = random.sample(range(_SEGMENTS), _SEGMENTS)
            segments = [{"Segment": n, "TotalSegments": _SEGMENTS} for n in numbers]
        for segment in segments:
            for page in self._pages(**segment):
                yield from (self._item(_as_sent(item)) for item in page["Items"])

    def _pages(self, **given: Any) -> Iterator[dict[str, Any]]:
        pages = self._client.get_paginator("scan")
        yield from pages.paginate(TableName=self.name, ConsistentRead=True, **given)

    def _key_names(self) -> list[str]:
        """In the order that document ids have."""
        if not self._keys:
            described = self._client.describe_table(TableName=self.name)
            self._keys = sorted(each["AttributeName"] for each in described["Table"]["KeySchema"])
        return self._keys


def _picked(image: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any] | None:
    return {name: image[name] for name in names} if all(n in image for n in names) else None


def _as_sent(value: Any) -> Any:
    """Binary values as base64 again, as a stream's records have them."""
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return [_as_sent(each) for each in value]
        case dict():
            return {name: _as_sent(each) for name, each in value.items()}
        case _:
            return value
