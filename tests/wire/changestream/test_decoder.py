"""Pages of change events -> changes."""

import json
import pickle
from base64 import b64decode
from dataclasses import replace
from typing import Any
from uuid import UUID

import bson
import ormsgpack
import pytest
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.change import COLUMNS, Images, Operation
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.wire.changestream.changes import OPERATIONS
from penstock.wire.changestream.decoder import ChangeStreamDecoder
from penstock.wire.changestream.events import Placer, cursor_of
from penstock.wire.hash_partitions import hashing
from tests.wire.changestream.made import TIME, event, page, payload

SESSION = UUID("c3dc75f2-1fa5-4eff-a891-cf5b641104a1")


def decoded(found: Page, **settings: Any) -> list[dict[str, Any]]:
    decoder = ChangeStreamDecoder(backend="b", **settings)
    return [row for batch in decoder.decode(found) for row in batch.to_pylist()]


def test_an_insert_has_all_columns() -> None:
    found = event(7, fullDocument={"_id": 7, "name": "x"})
    (row,) = decoded(page(found))
    assert tuple(row) == COLUMNS
    assert row["operation"] == "INSERT"
    assert (row["database"], row["namespace"], row["collection"]) == ("shop", "shop", "users")
    assert (row["cursor"], row["ordinal"]) == (f"{TIME:08X}/00000003", 0)
    assert row["event_id"].startswith(f"b:{TIME:08X}/00000003:")
    assert json.loads(row["mark"]) == {"token": found["_id"]}
    assert (row["document_id"], row["key"]) == ("7", '{"_id":7}')
    assert json.loads(row["after"]) == {"_id": 7, "name": "x"}
    assert (row["before"], row["delta"], row["transaction"], row["route"]) == (None,) * 4
    assert row["committed_at"].timestamp() == TIME


def test_sharding_a_collection_changes_neither_identity_nor_hash_partition() -> None:
    """A document key has the shard key from then on (src/mongo/db/s/README.md, document key), in
    front of the `_id` or after it."""
    keys: list[dict[str, Any]] = [{"_id": 7}, {"region": "eu", "_id": 7}, {"_id": 7, "region": 1}]
    found = [
        event(2 * number, "update", documentKey=key, updateDescription={})
        for number, key in enumerate(keys)
    ]
    batch = hashing(ChangeStreamDecoder(backend="b"), 16).decode(page(*found))[0]
    rows = batch.to_pylist()
    assert [row["document_id"] for row in rows] == ["7"] * 3
    assert [json.loads(row["key"]) for row in rows] == keys
    assert len({row["route"] for row in rows}) == 1


@pytest.mark.parametrize("wall", [-62_135_596_800_001, 253_402_300_800_000, 2**62])
def test_a_time_that_no_calendar_has_is_malformed(wall: int) -> None:
    found = event(1, wallTime=DatetimeMS(wall))
    with pytest.raises(Malformed, match="wallTime"):
        decoded(page(found))


def test_an_update_says_what_it_changed() -> None:
    said = {
        "updatedFields": {"a.b": ObjectId("507f1f77bcf86cd799439011")},
        "removedFields": ["c"],
        "truncatedArrays": [{"field": "d", "newSize": 2}],
    }
    found = event(1, "update", updateDescription=said, fullDocument={"_id": 1})
    (row,) = decoded(page(found))
    assert json.loads(row["delta"]) == {
        "updated": {"a.b": "507f1f77bcf86cd799439011"},
        "removed": ["c"],
        "truncated": [{"field": "d", "new_size": 2}],
    }
    assert row["after"] == '{"_id":1}'


@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_paths_that_may_mean_several_places_are_lists_too(images: Images) -> None:
    said = {
        "updatedFields": {"a.b": 10, "c.0": 1},
        "removedFields": ["d.e"],
        "disambiguatedPaths": {
            "a.b": ["a.b"],
            "c.0": ["c", "0"],
            "d.e": ["d", "e"],
            "f.1.0": ["f", 1, "0"],
        },
    }
    (row,) = decoded(page(event(1, "update", updateDescription=said)), images=images)
    load = json.loads if images == "json" else ormsgpack.unpackb
    assert load(row["delta"]) == {
        "updated": {"a.b": 10, "c.0": 1},
        "removed": ["d.e"],
        "truncated": [],
        "paths": said["disambiguatedPaths"],
    }


def test_an_update_whose_document_is_gone_has_no_document() -> None:
    found = event(1, "update", updateDescription={"updatedFields": {"a": 1}}, fullDocument=None)
    (row,) = decoded(page(found))
    assert (row["operation"], row["after"]) == ("UPDATE", None)
    assert row["delta"] is not None


def test_pre_images_are_before() -> None:
    old = {"_id": 1, "a": 1}
    found = page(
        event(1, "replace", fullDocument={"_id": 1, "a": 2}, fullDocumentBeforeChange=old),
        event(2, "delete", fullDocumentBeforeChange=old),
        event(3, "delete"),
    )
    rows = decoded(found)
    assert [row["operation"] for row in rows] == ["REPLACE", "DELETE", "DELETE"]
    assert [row["before"] for row in rows] == ['{"_id":1,"a":1}', '{"_id":1,"a":1}', None]
    assert [row["after"] for row in rows] == ['{"_id":1,"a":2}', None, None]


def test_collections_have_changes_of_their_own() -> None:
    rows = decoded(
        page(
            event(1, "drop"),
            event(2, "rename", to={"db": "shop", "coll": "people"}),
            event(3, "dropDatabase", ns={"db": "shop"}),
            event(4, "invalidate", ns=...),
        )
    )
    assert [(row["operation"], row["namespace"], row["collection"]) for row in rows] == [
        ("DROP", "shop", "users"),
        ("RENAME", "shop", "users"),
        ("DROP_DATABASE", "shop", None),
        ("INVALIDATE", None, None),
    ]
    assert json.loads(rows[1]["after"]) == {"to": {"database": "shop", "collection": "people"}}
    assert {row["document_id"] for row in rows} == {row["key"] for row in rows} == {None}


def test_every_operation_is_one_of_ours() -> None:
    assert {Operation(each) for each in OPERATIONS.values()} < set(Operation)


def test_the_changes_of_a_transaction_stay_distinct_and_in_order() -> None:
    same = {
        "clusterTime": Timestamp(TIME, 9),
        "lsid": {"id": Binary.from_uuid(SESSION), "uid": b"x"},
        "txnNumber": Int64(4),
    }
    rows = decoded(page(*(event(number, **same) for number in (3, 1, 2))))
    assert [row["ordinal"] for row in rows] == [0, 1, 2]
    assert [row["document_id"] for row in rows] == ["3", "1", "2"]
    assert {row["transaction"] for row in rows} == {f"{SESSION}/4"}
    assert len({row["event_id"] for row in rows}) == 3


def test_an_event_id_does_not_depend_on_what_came_before() -> None:
    """Another filter lets other events through, and each has the id that it had."""
    alone, among = page(event(3)), page(event(2), event(3))
    assert decoded(alone)[0]["event_id"] == decoded(among)[1]["event_id"]
    assert decoded(alone)[0]["ordinal"] != decoded(among)[1]["ordinal"]


def test_a_later_era_has_other_cursors_marks_and_ids() -> None:
    first, later = decoded(page(event(1)))[0], decoded(page(event(1), era="e0001-"))[0]
    assert later["cursor"] == "e0001-" + first["cursor"] > first["cursor"]
    assert later["event_id"] != first["event_id"]
    assert json.loads(later["mark"])["era"] == "e0001-"


def split(time: int, token: str, ends: str = "02") -> list[dict[str, Any]]:
    """As a real server splits an event: `_id` and `splitEvent`, then fields by rising size, none
    twice (src/mongo/db/pipeline/change_stream_split_event_helpers.cpp)."""
    return [
        {
            "_id": {"_data": f"{token}01"},
            "splitEvent": {"fragment": 1, "of": 2},
            "clusterTime": Timestamp(TIME, time),
            "documentKey": {"_id": 1},
            "operationType": "replace",
            "ns": {"db": "shop", "coll": "users"},
            "fullDocument": {"_id": 1},
        },
        {
            "_id": {"_data": f"{token}{ends}"},
            "splitEvent": {"fragment": 2, "of": 2},
            "fullDocumentBeforeChange": {"_id": 1, "old": 1},
        },
    ]


def test_a_split_event_is_one_change() -> None:
    (row,) = decoded(page(*split(1, "82")))
    assert (row["before"], row["after"]) == ('{"_id":1,"old":1}', '{"_id":1}')
    assert row["cursor"] == cursor_of(TIME << 32 | 1)
    assert json.loads(row["mark"]) == {"token": {"_data": "8202"}}


def test_the_id_of_a_split_event_depends_on_nothing_but_itself() -> None:
    """Neither on the change before, nor on where the server cut it."""
    alone, among = page(*split(5, "82")), page(event(2), *split(5, "82"))
    cut_otherwise = page(*split(5, "82", ends="0F"))
    ids = {decoded(each)[-1]["event_id"] for each in (alone, among, cut_otherwise)}
    assert len(ids) == 1
    assert decoded(among)[1]["cursor"] > decoded(among)[0]["cursor"]


@pytest.mark.parametrize(
    ("rule", "insert", "delete"),
    [
        ("none", None, None),
        ("database", "shop", "shop"),
        ("collection_prefix", "acme", "acme"),
        ("field:owner.id", "7", None),
        ("field:_id", "1", "1"),
        ("field:name", None, None),
    ],
)
def test_the_tenant_is_by_rule(rule: str, insert: str | None, delete: str | None) -> None:
    ns = {"db": "shop", "coll": "acme_users"}
    document = {"_id": 1, "owner": {"id": 7}}
    found = page(event(1, ns=ns, fullDocument=document), event(1, "delete", ns=ns))
    assert [row["tenant"] for row in decoded(found, tenant=rule)] == [insert, delete]


def test_the_tenant_of_a_delete_is_in_its_pre_image() -> None:
    found = page(event(1, "delete", fullDocumentBeforeChange={"_id": 1, "t": "acme"}))
    assert decoded(found, tenant="field:t")[0]["tenant"] == "acme"


def test_flat_images_have_dotted_columns() -> None:
    found = page(event(1, fullDocument={"_id": 1, "a": {"b": [1]}}))
    assert decoded(found, flatten=True)[0]["after"] == '{"_id":1,"a.b":[1]}'


BROKEN = bson.encode(event(2, fullDocument={"_id": 2, "x": "abc"})).replace(b"abc", b"\xff\xff\xff")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (BROKEN, "broken-bson"),
        (event(2, documentKey=...), "broken-event"),
        (event(2, "somethingNew"), "broken-event"),
        (event(2, "update", updateDescription=7), "broken-event"),
    ],
)
@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_a_change_that_cannot_be_read_stops_no_other(
    broken: Any, reason: str, images: Images
) -> None:
    found = page(event(1), broken, event(3))
    rows = decoded(found, images=images, on_error="dead-letter")
    assert [row["operation"] for row in rows] == ["INSERT", "ERROR", "INSERT"]
    said = rows[1]["after"]
    image = json.loads(said) if images == "json" else ormsgpack.unpackb(said)
    assert image["reason"] == reason
    assert "abc" not in image["error"]
    raw = b64decode(image["raw"]) if images == "json" else image["raw"]
    assert raw == payload(broken)
    assert rows[1]["mark"] is not None
    with pytest.raises(Malformed):
        decoded(found, images=images)


def test_the_bytes_of_a_broken_change_are_a_page_of_their_own() -> None:
    whole = page(event(1), event(3, documentKey=...))
    row = decoded(whole, on_error="dead-letter")[1]
    image = json.loads(row["after"])
    alone = replace(
        whole,
        first=whole.last,
        count=1,
        payload=b64decode(image["raw"]),
        context=b64decode(image["context"]),
    )
    again = decoded(alone, on_error="dead-letter")[0]
    assert again["event_id"] == row["event_id"]


@pytest.mark.parametrize(
    "wrong",
    [{"count": 3}, {"first": ("00000000/00000001", 0)}, {"payload": b"\x03"}],
)
def test_a_page_that_is_not_what_it_says_is_malformed(wrong: dict[str, Any]) -> None:
    found = page(event(1), event(2))
    if "first" in wrong:
        wrong = {"last": found.first}
    with pytest.raises(Malformed):
        decoded(replace(found, **wrong), on_error="dead-letter")


def test_a_page_may_begin_inside_a_cluster_time() -> None:
    placer = Placer(TIME << 32 | 1, 4)
    rows = decoded(page(event(2), event(3), event(4), after=placer))
    assert [row["ordinal"] for row in rows] == [5, 6, 0]


def test_a_decoder_pickles() -> None:
    decoder = ChangeStreamDecoder(backend="b", tenant="field:a")
    copy = pickle.loads(pickle.dumps(decoder))
    found = page(event(1))
    assert copy.decode(found) == decoder.decode(found)


@given(st.data())
def test_a_changed_byte_never_raises_anything_but_malformed(data: st.DataObject) -> None:
    whole = page(event(1), event(2, "update", updateDescription={"updatedFields": {"a": 1}}))
    content = bytearray(whole.payload)
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded(replace(whole, payload=bytes(content)), on_error="dead-letter", tenant="field:a.b")
    except Malformed:
        return
