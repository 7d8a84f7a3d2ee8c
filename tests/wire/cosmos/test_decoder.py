"""Pages of the change feed -> changes, without a server."""

import base64
import json
import pickle
from contextlib import suppress
from typing import Any

import orjson
import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.wire.cosmos.decoder import CosmosDecoder, DocumentContext, in_order, lsn_of

CONTEXT = DocumentContext("shop", "orders", ("/pk",), False, '{"m":1}', '{"m":2}')


def item(name: str, lsn: int = 1, **given: Any) -> dict[str, Any]:
    return {"id": name, "pk": "a", "_rid": f"rid{name}", "_lsn": lsn, "_ts": 1_700_000_000, **given}


def page(*documents: dict[str, Any], context: DocumentContext = CONTEXT) -> Page:
    placed = in_order(documents, context.paths, every=context.every)[context.skip :]
    return Page(
        partition=PartitionId("0-FF"),
        first=placed[0][0],
        last=placed[-1][0],
        count=len(placed),
        captured_at=0,
        context=context.pack(),
        payload=orjson.dumps({"Documents": documents}),
    )


def rows(found: Page, **given: Any) -> list[dict[str, Any]]:
    options = {"tenant": "none", "system": False, "images": "json", "on_error": "stop", **given}
    decoder = pickle.loads(pickle.dumps(CosmosDecoder("b", **options)))
    return [row for batch in decoder.decode(found) for row in batch.to_pylist()]


def test_changes_are_sorted_by_lsn_and_rid_and_marked() -> None:
    found = rows(page(item("z"), item("a"), item("m", 2)))
    assert [json.loads(row["key"])["id"] for row in found] == ["a", "z", "m"]
    assert [row["cursor"] for row in found] == [
        f"{1:020d}/rida", f"{1:020d}/ridz", f"{2:020d}/ridm",
    ]  # fmt: skip
    assert [row["mark"] for row in found] == ['{"m":1}', '{"m":1}', '{"m":2}']
    assert [row["event_id"] for row in found] == [f"b:0-FF:{row['cursor']}" for row in found]
    assert {row["operation"] for row in found} == {"REPLACE"}


def test_what_was_done_is_passed_over() -> None:
    context = CONTEXT._replace(skip=1)
    found = rows(page(item("z"), item("a"), context=context))
    assert [row["document_id"] for row in found] == ['["a","z"]']


def test_system_properties_and_tenant_are_by_the_settings() -> None:
    one = item("a", pk="t1")
    (row,) = rows(page(one), tenant="field:pk")
    assert (row["tenant"], json.loads(row["after"])) == ("t1", {"id": "a", "pk": "t1"})
    (row,) = rows(page(one), system=True)
    assert json.loads(row["after"]) == one


@pytest.mark.parametrize(
    ("paths", "given", "key", "identity"),
    [
        (("/id",), {}, {"id": "a"}, "a"),
        (("/x/y",), {"x": {"y": 1.5}}, {"x.y": 1.5, "id": "a"}, '[1.5,"a"]'),
        (("/x",), {}, {"x": None, "id": "a"}, '[null,"a"]'),
        (("/pk", "/n"), {"n": True}, {"pk": "a", "n": True, "id": "a"}, '["a",true,"a"]'),
    ],
)
def test_the_key_is_partition_key_and_id(
    paths: tuple[str, ...], given: dict[str, Any], key: dict[str, Any], identity: str
) -> None:
    (row,) = rows(page(item("a", **given), context=CONTEXT._replace(paths=paths)), images="msgpack")
    assert ormsgpack.unpackb(row["key"]) == key
    assert row["document_id"] == identity


def test_one_change_that_cannot_be_read_leaves_the_others() -> None:
    bad = {**item("b"), "id": 7}
    found = rows(page(item("a"), bad, item("c")), on_error="dead-letter")
    assert [row["operation"] for row in found] == ["REPLACE", "ERROR", "REPLACE"]
    image = json.loads(found[1]["after"])
    assert (image["reason"], image["error"]) == ("not-readable", "a change has no id")
    alone = Page(
        partition=PartitionId("0-FF"),
        first=Place("x", 0),
        last=Place("x", 0),
        count=1,
        captured_at=0,
        context=base64.b64decode(image["context"]),
        payload=base64.b64decode(image["raw"]),
    )
    (again,) = rows(alone, on_error="dead-letter")
    assert (again["operation"], again["cursor"]) == ("ERROR", found[1]["cursor"])
    with pytest.raises(Malformed, match="no id") as raised:
        rows(page(bad))
    assert "7" not in raised.value.message.partition("cannot be read")[2]


def test_an_operation_that_nobody_knows_is_not_guessed() -> None:
    version = {"current": item("a"), "metadata": {"operationType": "merge", "lsn": 3}}
    (row,) = rows(page(version, context=CONTEXT._replace(every=True)), on_error="dead-letter")
    assert row["operation"] == "ERROR"


def test_a_number_that_messagepack_cannot_hold_is_an_error_of_one_change() -> None:
    body = orjson.dumps({"Documents": [item("a")]}).replace(b'"pk":"a"', b'"pk":"a","n":1e400')
    found = page(item("a"))
    broken = Page(**{name: getattr(found, name) for name in Page.__slots__} | {"payload": body})
    with pytest.raises(Malformed):
        rows(broken)


@given(st.binary(max_size=60))
def test_any_bytes_are_malformed_or_a_page(body: bytes) -> None:
    found = page(item("a"))
    broken = Page(**{name: getattr(found, name) for name in Page.__slots__} | {"payload": body})
    with pytest.raises(Malformed):
        rows(broken)


@pytest.mark.slow
@given(st.data())
def test_any_document_is_malformed_or_a_change(data: st.DataObject) -> None:
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=4,
    )
    names = st.sampled_from(["_lsn", "_rid", "id", "_ts", "metadata", "current", "previous", "lsn"])
    document = data.draw(st.dictionaries(names, json_values))
    for every in (False, True):
        context = CONTEXT._replace(every=every)
        found = page(item("a"))
        payload = orjson.dumps({"Documents": [document]})
        changed = {"payload": payload, "context": context.pack()}
        broken = Page(**{name: getattr(found, name) for name in Page.__slots__} | changed)
        with suppress(Malformed):
            rows(broken, on_error="dead-letter")


@pytest.mark.parametrize("text", ["", "1/x", f"{1:020d}", f"{1:020d}-x", "x" * 20 + "/y"])
def test_what_is_no_place_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        lsn_of(Place(text, 0))
