"""Events of the layout `puller`, decoded as a Go consumer does: `json.Unmarshal` into the struct
`NormalizedEvent`, which has no tags."""

from base64 import b64decode
from collections.abc import Callable, Mapping
from typing import Any

import bson
import orjson
import pytest

from tests.sinks.changes import batch_of, encoded

TOKEN = {"_data": "826921A5B3000000022B042C"}


def text(value: Any) -> str:
    assert isinstance(value, str)
    return value


def number(value: Any) -> int:
    assert type(value) is int
    return value


def time(value: Any) -> tuple[int, int]:
    """`primitive.Timestamp`: a struct of two uint32."""
    found = unmarshalled(value, {"T": number, "I": number})
    return found["T"], found["I"]


def raw(value: Any) -> bytes:
    """`bson.Raw` is a `[]byte`, which is base64 in JSON."""
    return b64decode(text(value), validate=True)


def document(value: Any) -> dict[str, Any]:
    """`map[string]interface{}`."""
    assert isinstance(value, dict)
    return value


Struct = Mapping[str, Callable[[Any], Any]]
EVENT: Struct = {
    "EventID": text, "TenantID": text, "Collection": text, "DocumentID": text,
    "Type": text, "FullDocument": document, "ClusterTime": time, "TxnNumber": number,
    "ResumeToken": raw, "Timestamp": number, "PartitionKey": text, "PartitionID": number,
}  # fmt: skip


def unmarshalled(value: Any, struct: Struct) -> dict[str, Any]:
    """The fields that are set. As `encoding/json` has it: names match exactly, else without regard
    to case; others are passed over; null sets nothing; another type is an error."""
    assert isinstance(value, dict)
    folded = {name.casefold(): name for name in struct}
    found = {}
    for name, each in value.items():
        field = name if name in struct else folded.get(name.casefold())
        if field is not None and each is not None:
            found[field] = struct[field](each)
    return found


def events(batch: Any, packing: Any) -> list[dict[str, Any]]:
    messages = encoded(batch, layout="puller", encoding="json", messages=packing)
    found = [orjson.loads(body) for body in messages.bodies.to_pylist()]
    flat = [each for one in found for each in one] if packing == "batch" else found
    return [unmarshalled(each, EVENT) for each in flat]


@pytest.mark.parametrize("packing", ["change", "batch"])
def test_a_go_struct_without_tags_gets_every_field(packing: str) -> None:
    batch = batch_of(
        1, operation="REPLACE", backend="shop", tenant="acme", namespace="shop", relation_id=None,
        collection="users", cursor="6921A5B3/00000002", document_id="alice",
        event_id="shop:6921A5B3/00000002:9f86d081884c7d65", after='{"name":"A"}', route=4,
        transaction="0b5e2c1e-0000-4000-8000-000000000000/17",
        mark=orjson.dumps({"token": TOKEN, "era": "~1~"}).decode(),
    )  # fmt: skip
    (event,) = events(batch, packing)
    assert bson.decode(event.pop("ResumeToken")) == TOKEN
    assert event == {
        "EventID": "shop:6921A5B3/00000002:9f86d081884c7d65", "TenantID": "acme",
        "Collection": "users", "DocumentID": "alice", "Type": "UPDATE",
        "FullDocument": {"name": "A"}, "ClusterTime": (0x6921A5B3, 2), "TxnNumber": 17,
        "Timestamp": 1795255323000, "PartitionKey": "users/alice", "PartitionID": 4,
    }  # fmt: skip


def test_a_token_with_type_bits_is_the_same_document_for_a_consumer() -> None:
    bits = {"$binary": {"base64": "QA==", "subType": "00"}}
    mark = orjson.dumps({"token": {**TOKEN, "_typeBits": bits}}).decode()
    batch = batch_of(1, namespace="shop", relation_id=None, cursor="6921A5B3/00000002", mark=mark)
    (event,) = events(batch, "change")
    assert bson.decode(event["ResumeToken"]) == {**TOKEN, "_typeBits": b"@"}


def test_what_is_null_leaves_the_fields_of_a_struct_as_they_are() -> None:
    batch = batch_of(2, operation="DELETE", committed_at=None, after=None, mark='{"lsn":"0/1"}')
    for event in events(batch, "change"):
        assert not {"FullDocument", "ClusterTime", "ResumeToken", "Timestamp"} & set(event)
        assert event["Type"] == "DELETE"
