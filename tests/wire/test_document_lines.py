"""Documents are lines of COPY: one text for each value of a key, and the document as it is."""

import pickle
from collections.abc import Sequence
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa
import pytest

from penstock.feeds.dynamodb import DynamodbFeed, DynamodbSettings
from penstock.feeds.mongodb import MongoFeed, MongoSettings
from penstock.model.change import WHOLE, schema, unreadable
from penstock.model.errors import SettingsError
from penstock.model.page import Page
from penstock.tables.lines import SourceRelation, changes_of
from penstock.typed.lines import read_lines
from penstock.wire.document_lines import DocumentLines, key_text

UUID = "00000000-0000-0000-0000-000000000000"
VALUES: list[Any] = [
    None, True, 1, 1.5, -1, 1e300, "", "1", "1.5", "-1", "1e300", "true", "null", "a", "a\tb\\",
    '"1"', "{}", "[", {"$oid": "a" * 24}, "a" * 24, "A" * 24, {"$uuid": UUID},
    UUID, {"$date": "2026-01-01T00:00:00.000Z"},
    "2026-01-01T00:00:00.000Z", {"$date": "+010000-01-01T00:00:00.000Z"},
    "+010000-01-01T00:00:00.000Z", {"$numberDecimal": "1.5"}, {"$numberLong": str(2**60)},
    str(2**60), {"$numberDouble": "NaN"}, "NaN", {"a": 1}, '{"a":1}', [1], "[1]", b"a", "YQ==",
    {"$binary": {"base64": "YQ==", "subType": "04"}}, "2026-01-01", "12:30", "-", "1.2.3",
]  # fmt: skip


class Given:
    """A decoder that has decoded already."""

    def __init__(self, *rows: dict[str, Any]) -> None:
        self.unknown_types: set[str] = set()
        self._rows = rows

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        whole = [
            {**dict.fromkeys(schema("msgpack").names), "backend": "b", "partition": "p",
             "cursor": "c", "ordinal": number, "event_id": "e", "unchanged": [], **row}
            for number, row in enumerate(self._rows)
        ]  # fmt: skip
        return [pa.RecordBatch.from_pylist(whole, schema("msgpack"))]


def lines(*rows: dict[str, Any], key: str = "") -> pa.RecordBatch:
    packed = [
        {name: ormsgpack.packb(value) if name in ("key", "before", "after", "delta") else value
         for name, value in row.items()}
        for row in rows
    ]  # fmt: skip
    (batch,) = DocumentLines(Given(*packed), key).decode(PAGE)
    return batch


PAGE: Any = None


def test_each_value_of_a_key_has_a_text_of_its_own() -> None:
    texts = [key_text(value) for value in VALUES]
    assert len({*texts}) == len(texts)
    for text, value in zip(texts, VALUES, strict=True):
        if isinstance(value, str):
            assert value in (text, orjson.loads(text) if text[:1] == '"' else text)
    assert [key_text(each) for each in ("a", "7", 7)] == ["a", '"7"', "7"]


def test_a_document_is_a_row_with_its_key() -> None:
    document = {"_id": "a\tb", "n": 1, "s": "\\N\n", "b": b"a", "deep": {"x": [None, 1.5]}}
    batch = lines(
        {"operation": "INSERT", "database": "d", "collection": "c", "key": {"_id": "a\tb"},
         "after": document},
        {"operation": "UPDATE", "database": "d", "collection": "c", "key": {"_id": "a\tb"},
         "delta": {}},
        {"operation": "DELETE", "database": "d", "collection": "c",
         "key": {"_id": "a\tb", "shard": 1}},
        {"operation": "DROP", "database": "d", "collection": "c"},
        key="_id",
    )  # fmt: skip
    assert batch.schema.metadata == WHOLE
    one, two, three, four = changes_of(batch)
    relation = SourceRelation.of(orjson.loads(batch.column("delta")[0].as_py()))
    assert batch.column("delta").null_count == 3
    assert (relation.schema, relation.table, relation.names) == ("d", "c", ("_id", "document"))
    assert relation.is_of_documents
    assert one.key == two.key == three.key == three.old_key(relation.key)
    kinds = pa.schema([(name, pa.string()) for name in relation.names])
    (key, found), _ = read_lines(f"{one.after}\n".encode(), relation.names, kinds)
    want = {**document, "b": {"$binary": {"base64": "YQ==", "subType": "00"}}}
    assert key.to_pylist() == ["a\tb"]
    assert orjson.loads(found[0].as_py()) == want
    assert two.has_unsent
    assert (three.after, four.key, four.operation) == (None, None, "DROP")


def test_what_is_no_document_has_no_key() -> None:
    batch = lines(
        {"operation": "ERROR", "after": {"reason": "r", "error": "e", "raw": b"a", "context": b""}},
        {"operation": "RENAME", "database": "d", "collection": "c", "after": {"to": {}}},
        {"operation": "INVALIDATE"},
    )
    assert unreadable(batch) == [0, 1]
    assert orjson.loads(batch.column("after")[0].as_py())["raw"] == "YQ=="
    assert "d.c was renamed" in batch.column("after")[1].as_py()


def test_a_change_without_its_document_is_refused() -> None:
    with pytest.raises(SettingsError) as refused:
        lines({"operation": "INSERT", "collection": "users", "key": {"id": "a"}})
    assert "changes of b.users have no documents" in refused.value.message


@pytest.mark.parametrize(
    "feed",
    [
        MongoFeed(MongoSettings(connection="mongodb://h/d")),
        DynamodbFeed(DynamodbSettings(table="t")),
    ],
    ids=repr,
)
def test_a_decoder_of_lines_pickles(feed: Any) -> None:
    decoder = pickle.loads(pickle.dumps(feed.decoder("text")))
    assert isinstance(decoder, DocumentLines)
