"""The native kernel reads change events as Python does: every value, and every broken byte."""

import json
from decimal import Decimal
from typing import Any
from unittest import mock
from uuid import UUID

import bson
import ormsgpack
import pytest
from bson.binary import Binary
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.change import Images
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.native import library
from penstock.wire.changestream.changes import Reader
from penstock.wire.changestream.decoder import ChangeStreamDecoder
from penstock.wire.changestream.values import CODEC
from tests.wire.changestream.made import event, page

pytestmark = pytest.mark.skipif(library() is None, reason="the native library is not built")

IMAGES: tuple[Images, ...] = ("json", "msgpack")
SESSION = {
    "id": Binary.from_uuid(UUID("c3dc75f2-1fa5-4eff-a891-cf5b641104a1")),
    "uid": Binary(b"x" * 32),
}


def decoders(images: Images, **settings: Any) -> tuple[ChangeStreamDecoder, ChangeStreamDecoder]:
    """With the kernel and without."""
    native = ChangeStreamDecoder(backend="b", images=images, **settings)
    python = ChangeStreamDecoder(backend="b", images=images, **settings)
    assert native._kernel is not None
    python._kernel = None
    return native, python


def rows(decoder: ChangeStreamDecoder, found: Page) -> Any:
    """What it makes of a page: rows with their images read, or the error's text. Text tells 1 from
    1.0, which compare equal."""
    read = json.loads if decoder.images == "json" else ormsgpack.unpackb
    try:
        made = [row for batch in decoder.decode(found) for row in batch.to_pylist()]
    except Malformed as error:
        return str(error)
    for row in made:
        for name in ("key", "before", "after", "delta"):
            if row[name] is not None and row["operation"] != "ERROR":
                row[name] = repr(read(row[name]))
    return made


def agree(found: Page, **settings: Any) -> None:
    for images in IMAGES:
        native, python = decoders(images, **settings)
        assert rows(native, found) == rows(python, found)


ordinary = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    st.binary(max_size=20),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.uuids().map(Binary.from_uuid),
    st.integers(-62_135_596_800_000, 253_402_300_799_999).map(DatetimeMS),
    st.builds(Timestamp, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
)
unusual = st.sampled_from([
    Decimal128(Decimal("1.50")), Regex("^a", "i"), Code("x"), Code("x", {"a": 1}), MaxKey(),
    DBRef("c", 1), {"$ref": "c", "$id": 1}, {"$ref": "c"}, Binary(b"x", 5), Binary(b"x" * 16, 3),
    DatetimeMS(2**60), DatetimeMS(-62_135_596_800_001),
])  # fmt: skip
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=20) | st.dictionaries(names, inner, max_size=20),
        max_leaves=30,
    )


def documents(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(names, nested(leaves), max_size=20)


def events_of(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    document = documents(leaves)
    update = st.fixed_dictionaries(
        {"updatedFields": document, "removedFields": st.lists(names, max_size=3)},
        optional={
            "truncatedArrays": st.sampled_from([[], [{"field": "a", "newSize": 1}]]),
            "disambiguatedPaths": document,
        },
    )
    fields = st.fixed_dictionaries(
        {
            "documentKey": st.fixed_dictionaries({"_id": leaves}, optional={"shard": leaves}),
            "fullDocument": st.none() | document,
        },
        optional={
            "fullDocumentBeforeChange": st.none() | document,
            "updateDescription": st.none() | update,
            "wallTime": st.just(...) | leaves,
            "lsid": st.just(SESSION) | leaves,
            "txnNumber": st.integers(-1, 2**62).map(Int64) | leaves,
            "collectionUUID": leaves,
            "operationDescription": document,
        },
    )
    kinds = st.sampled_from(["insert", "update", "replace", "delete", "drop", "other"])
    return st.builds(lambda number, kind, more: event(number, kind, **more),
                     st.integers(0, 2**31 - 1), kinds, fields)  # fmt: skip


@pytest.mark.slow
@given(events_of(ordinary))
def test_ordinary_events_are_read_alike(found: dict[str, Any]) -> None:
    agree(page(found), on_error="dead-letter")


@pytest.mark.slow
@given(st.lists(events_of(ordinary | unusual), min_size=1, max_size=4))
def test_events_with_unusual_values_are_read_alike(found: list[dict[str, Any]]) -> None:
    agree(page(*found), on_error="dead-letter")


@pytest.mark.slow
@given(events_of(ordinary), st.data())
def test_a_broken_byte_is_read_alike(found: dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray(bson.encode(found))
    raw[data.draw(st.integers(4, len(raw) - 1))] = data.draw(st.integers(0, 255))
    agree(page(bytes(raw)), on_error="dead-letter")


@pytest.mark.parametrize("tenant", ["none", "database", "collection_prefix", "field:a"])
def test_the_tenant_is_the_same(tenant: str) -> None:
    found = page(event(1, fullDocument={"a": "x"}, ns={"db": "shop", "coll": "eu_users"}))
    native, python = (ChangeStreamDecoder(backend="b", tenant=tenant) for _ in range(2))
    assert (native._kernel is None) == (tenant == "field:a"), "the kernel looks into no document"
    python._kernel = None
    assert rows(native, found) == rows(python, found)


def test_a_name_that_is_there_twice_is_as_python_has_it() -> None:
    inner = bson.encode({"a": 1, "b": 2}).replace(b"\x10b\0", b"\x10a\0")
    assert bson.decode(inner, CODEC) == {"a": 2}
    found = bson.encode(event(1, fullDocument={"x": 0}))
    old = bson.encode({"x": 0})
    at = found.index(old)
    raw = bytearray(found[:at] + inner + found[at + len(old) :])
    raw[:4] = len(raw).to_bytes(4, "little")
    agree(page(bytes(raw)))


def test_a_name_that_is_no_utf_8_is_an_error_for_both() -> None:
    raw = bson.encode(event(1, fullDocument=..., fullDocumentX=None))
    broken = raw.replace(b"fullDocumentX", b"\x80ullDocumentX")
    agree(page(broken), on_error="dead-letter")
    native, _ = decoders("json", on_error="dead-letter")
    assert [row["operation"] for row in rows(native, page(broken))] == ["ERROR"]


@pytest.mark.parametrize("depth", [10, 63, 64, 90])
def test_depth_is_no_limit(depth: int) -> None:
    found: Any = 1
    for _ in range(depth):
        found = {"a": [found]} if depth % 2 else {"a": found}
    agree(page(event(1, fullDocument={"a": found})), on_error="dead-letter")


def test_many_names_are_no_limit() -> None:
    agree(page(event(1, fullDocument={f"f{n}": n for n in range(600)})))


@pytest.mark.parametrize("images", IMAGES)
@pytest.mark.parametrize(
    "found",
    [
        event(1, documentKey={"_id": ObjectId()}, fullDocument={"a": [1.5, {"b": "é"}], "n": 1e3}),
        event(2, "update", updateDescription={
            "updatedFields": {"a": DatetimeMS(1)}, "removedFields": ["b"], "truncatedArrays": [],
        }),
        event(2, "update", collectionUUID=SESSION["id"], updateDescription={
            "updatedFields": {"a.b": 1}, "removedFields": [], "truncatedArrays": [],
            "disambiguatedPaths": {},
        }),
        event(3, "delete", lsid=SESSION, txnNumber=Int64(7)),
        event(4, "delete", documentKey={"region": "eu", "n": 5, "_id": SESSION["id"]}),
        event(4, "replace", fullDocument={"_id": 4}, fullDocumentBeforeChange={"_id": 4}),
    ],
    ids=["insert", "update", "expanded", "delete", "sharded", "replace"],
)  # fmt: skip
def test_python_reads_no_ordinary_event(found: dict[str, Any], images: Images) -> None:
    native, python = decoders(images)
    expected = python.decode(page(found))
    with mock.patch.object(Reader, "read", side_effect=AssertionError("by Python")):
        assert native.decode(page(found)) == expected, "and the images are the same bytes"
