"""The layouts for consumers that exist already: Debezium's envelope, and CloudEvents."""

from base64 import b64encode
from typing import Any

import bson
import orjson
import ormsgpack
import pytest

from penstock import __version__
from tests.sinks.changes import batch_of, encoded


def bodies(batch: Any, layout: str, packing: Any = "change", **fields: Any) -> list[Any]:
    messages = encoded(batch, layout=layout, messages=packing, encoding="json", **fields)
    return [orjson.loads(body) for body in messages.bodies.to_pylist()]


def test_an_update_as_debezium_has_it() -> None:
    batch = batch_of(
        1, 0x1_6B37_48, operation="UPDATE", after='{"id":1,"name":"new"}', before='{"id":1}',
        unchanged=[["note"]],
    )  # fmt: skip
    assert bodies(batch, "debezium") == [
        {
            "op": "u",
            "before": {"id": 1},
            "after": {"id": 1, "name": "new", "note": "__debezium_unavailable_value"},
            "source": {
                "version": __version__, "connector": "postgresql", "name": "default",
                "snapshot": "false", "db": "shop", "schema": "public", "table": "items",
                "xmin": None, "relation_id": 16385, "sequence": "00000000/016B3748:0",
                "ts_ms": 1795255323000, "txId": 0x16B3748, "lsn": 0x16B3748,
            },
            "ts_ms": 1795255324000,
            "transaction": None,
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "op", "snapshot"),
    [("INSERT", "c", "false"), ("UPDATE", "u", "false"), ("REPLACE", "u", "false"),
     ("DELETE", "d", "false"), ("READ", "r", "true"), ("TRUNCATE", "t", "false")],
)  # fmt: skip
def test_operations_have_debeziums_letters(operation: str, op: str, snapshot: str) -> None:
    (body,) = bodies(batch_of(1, operation=operation), "debezium")
    assert (body["op"], body["source"]["snapshot"]) == (op, snapshot)


def test_a_deleted_row_is_its_key_where_the_source_sends_no_more() -> None:
    batch = batch_of(3, operation=["DELETE", "DELETE", "UPDATE"], before=[None, '{"id":7}', None])
    assert [body["before"] for body in bodies(batch, "debezium")] == [{"id": 0}, {"id": 7}, None]


def test_a_logical_message_has_no_row() -> None:
    batch = batch_of(
        1, operation="MESSAGE", namespace=None, collection="p", relation_id=None, key=None,
        after='{"prefix":"p","content":"c"}', transaction=None, committed_at=None,
    )  # fmt: skip
    (body,) = bodies(batch, "debezium")
    assert body["message"] == {"prefix": "p", "content": "c"}
    assert "after" not in body
    assert (body["source"]["txId"], body["source"]["ts_ms"]) == (None, None)


def test_a_source_without_schemas_is_no_postgresql() -> None:
    batch = batch_of(1, namespace="shop", relation_id=None, transaction="lsid:7", cursor="abc")
    source = bodies(batch, "debezium")[0]["source"]
    assert (source["connector"], source["schema"], source["lsn"]) == ("mongodb", "", None)
    assert source["txId"] == "lsid:7"


@pytest.mark.parametrize("connector", ["dynamodb", "postgresql", ""])
def test_the_connector_is_what_the_pipeline_says(connector: str) -> None:
    """A change of DynamoDB has no database, and does not say what it is of."""
    batch = batch_of(1, namespace=None, database=None, relation_id=None)
    source = bodies(batch, "debezium", connector=connector)[0]["source"]
    assert source["connector"] == (connector or "unknown")


def test_a_cloud_event_has_the_required_attributes() -> None:
    batch = batch_of(1, 7, backend='my "db"', collection="a/b", document_id=["1"])
    (event,) = bodies(batch, "cloudevents")
    data = event.pop("data")
    assert event == {
        "specversion": "1.0", "id": 'my "db":00000000/00000007:0',
        "source": "/my%20%22db%22/shop/public", "type": "penstock.insert", "subject": "a/b",
        "datacontenttype": "application/json", "time": "2026-11-21T10:02:03.000004Z",
        "partitionkey": "1", "sequence": "00000000/00000007:0",
    }  # fmt: skip
    assert [data] == bodies(batch, "penstock")


@pytest.mark.parametrize("layout", ["debezium", "cloudevents", "puller"])
def test_several_are_an_array_of_the_same(layout: str) -> None:
    batch = batch_of(5, 3, operation=["INSERT", "INSERT", "INSERT", "DELETE", "DELETE"])
    one, other = bodies(batch, layout, "batch")
    assert [*one, *other] == bodies(batch, layout)
    assert (len(one), len(other)) == (3, 2)


DELTA = {
    "updated": {"a.b": 1, "c": None},
    "removed": ["d"],
    "truncated": [{"field": "e", "new_size": 2}],
}


@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_what_an_update_changed_is_debeziums_update_description(images: Any) -> None:
    pack: Any = ormsgpack.packb if images == "msgpack" else lambda v: orjson.dumps(v).decode()
    few = {"updated": {"a": 1}, "removed": [], "truncated": []}
    batch = batch_of(3, operation="UPDATE", images=images, delta=[pack(DELTA), None, pack(few)])
    one, none, other = bodies(batch, "debezium")
    assert "updateDescription" not in none
    assert orjson.loads(one["updateDescription"].pop("updatedFields")) == DELTA["updated"]
    assert one["updateDescription"] == {
        "removedFields": ["d"], "truncatedArrays": [{"field": "e", "size": 2}],
    }  # fmt: skip
    assert other["updateDescription"] == {
        "removedFields": None, "updatedFields": '{"a":1}', "truncatedArrays": None,
    }  # fmt: skip


def test_a_document_as_a_puller_has_it() -> None:
    token = {"_data": "826921A5B3"}
    batch = batch_of(
        1, operation="REPLACE", backend="shop", tenant="acme", namespace="shop", relation_id=None,
        collection="users", cursor="6921A5B3/00000002", document_id="alice",
        event_id="shop:6921A5B3/00000002:9f86d081884c7d65", after='{"name":"A"}', route=4,
        transaction="0b5e2c1e-0000-4000-8000-000000000000/17",
        mark=orjson.dumps({"token": token, "era": "~1~"}).decode(),
    )  # fmt: skip
    assert bodies(batch, "puller") == [
        {
            "EventID": "shop:6921A5B3/00000002:9f86d081884c7d65", "TenantID": "acme",
            "Collection": "users", "DocumentID": "alice", "Type": "UPDATE",
            "FullDocument": {"name": "A"}, "ClusterTime": {"T": 0x6921A5B3, "I": 2},
            "TxnNumber": 17, "ResumeToken": b64encode(bson.encode(token)).decode(),
            "Timestamp": 1795255323000, "PartitionKey": "users/alice", "PartitionID": 4,
        }
    ]  # fmt: skip


def test_what_a_source_does_not_have_is_null_for_a_puller() -> None:
    (event,) = bodies(batch_of(1, committed_at=None, after=None, document_id=None), "puller")
    absent = [name for name, value in event.items() if value is None]
    assert absent == [
        "TenantID", "DocumentID", "FullDocument", "ClusterTime", "TxnNumber", "ResumeToken",
        "Timestamp", "PartitionKey",
    ]  # fmt: skip
    assert event["PartitionID"] == 0


def test_sources_with_and_without_cluster_times_may_share_a_batch() -> None:
    batch = batch_of(4, relation_id=[1, None, 1, None], namespace=["public", "shop"] * 2)
    time = {"T": 0, "I": 1}
    assert [event["ClusterTime"] for event in bodies(batch, "puller")] == [None, time] * 2
