"""A document's hash partition: the published vectors, and the same with the kernel and without."""

import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.model.position import START, PartitionId
from penstock.wire.hash_partitions import (
    MOST,
    HashingDecoder,
    hash_partitions,
    hash_partitions_plainly,
)
from tests.wire.cells import examples

# Of 4, 8 and 16.
VECTORS = {
    "messages/1": (1, 5, 13),
    "users/alice": (0, 4, 4),
    "orders/507f1f77bcf86cd799439011": (3, 3, 11),
}
WAYS = [hash_partitions, hash_partitions_plainly]


def texts(values: list[str | None]) -> Any:
    return pa.array(values, pa.string())


def by_the_book(collection: str | None, document: str | None, count: int) -> int:
    """FNV-1a as it is published."""
    if document is None:
        return 0
    hashed = 0xCBF29CE484222325
    for byte in f"{collection or ''}/{document}".encode():
        hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
    return hashed % count


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("number", "count"), [(0, 4), (1, 8), (2, 16)])
def test_documents_have_the_published_numbers(way: Any, number: int, count: int) -> None:
    names = [text.split("/") for text in VECTORS]
    columns = texts([name[0] for name in names]), texts([name[1] for name in names])
    assert way(*columns, count).to_pylist() == [each[number] for each in VECTORS.values()]


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(
    rows=st.lists(st.tuples(st.none() | st.text(), st.none() | st.text())),
    count=st.integers(1, MOST),
    skip=st.integers(0, 3),
)
def test_both_ways_are_by_the_book(
    rows: list[tuple[str | None, str | None]], count: int, skip: int
) -> None:
    columns = [texts([row[number] for row in rows])[skip:] for number in (0, 1)]
    expected = [by_the_book(*row, count) for row in rows[skip:]]
    for way in WAYS:
        found = way(*columns, count)
        assert found.type == pa.int32()
        assert found.to_pylist() == expected


def test_a_change_without_a_document_has_the_first_partition() -> None:
    for way in WAYS:
        assert way(texts(["users"]), texts([None]), 1024).to_pylist() == [0]


def test_a_decoder_sets_the_column_and_nothing_else() -> None:
    feed = MemoryFeed(MemoryFeedSettings(changes=60))
    (page, *_) = feed.follow(PartitionId("p0"), START).read(0)
    plain: Any = feed.decoder("json")
    hashing = pickle.loads(pickle.dumps(HashingDecoder(plain, 16)))
    (expected,), (found,) = plain.decode(page), hashing.decode(page)
    assert found.drop_columns("route").equals(expected.drop_columns("route"))
    assert found.schema.equals(expected.schema)
    rows = expected.to_pylist()
    assert set(expected.column("route").to_pylist()) == {None}
    assert found.column("route").to_pylist() == [
        by_the_book(row["collection"], row["document_id"], 16) for row in rows
    ]
    assert len(set(found.column("route").to_pylist())) > 1
