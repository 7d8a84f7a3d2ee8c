"""Records of DynamoDB Streams become changes, by the table of values."""

import base64
import json
import pickle
from decimal import Decimal
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.feeds.dynamodb.native import native_reader
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.wire.dynamodb.decoder import (
    DynamodbDecoder,
    PageContext,
    StreamRecord,
    place_of,
    read_records,
    sequence_number,
)
from penstock.wire.dynamodb.values import AttributeValues, image_number
from tests.dynamodb.streams import Stream

ALL: dict[str, Any] = {
    "s": {"S": "text \u0000 😀"},
    "empty": {"S": ""},
    "n": {"N": "7"},
    "long": {"N": "12345678901234567890123456789012345678"},
    "half": {"N": "1.5"},
    "tenth": {"N": "0.1"},
    "fine": {"N": "0.1234567890123456789"},
    "b": {"B": "AAEC"},
    "yes": {"BOOL": True},
    "null": {"NULL": True},
    "m": {"M": {"inner": {"L": [{"N": "1"}, {"S": "x"}]}}},
    "ss": {"SS": ["b", "a"]},
    "ns": {"NS": ["10", "9", "-1.5"]},
    "bs": {"BS": ["Ag==", "AQ=="]},
}


def page_of(payload: bytes, count: int = 1, skip: int = 0) -> Page:
    place = place_of("1")
    return Page(
        partition=PartitionId("L/S0"),
        first=place,
        last=place,
        count=count,
        captured_at=1_000_000,
        context=PageContext("users", skip).pack(),
        payload=payload,
    )


def answer(*records: dict[str, Any]) -> bytes:
    return json.dumps({"Records": list(records), "NextShardIterator": "x"}).encode()


def records_of(view: str = "NEW_AND_OLD_IMAGES", **item: Any) -> list[dict[str, Any]]:
    stream = Stream(table="users", label="L", view=view)
    shard = stream.shard()
    stream.put(shard, "k", "INSERT", at=1_700_000_000, new=item)
    stream.put(shard, "k", "UPDATE", at=1_700_000_001, new=item, old={"was": 1})
    stream.put(shard, "k", "DELETE", at=1_700_000_002, old=item)
    stream.put(shard, "k", "DELETE", at=1_700_000_003, old=item, expired=True)
    return [json.loads(each) for each in shard.records]


def decoded(payload: bytes, images: Any = "json", skip: int = 0, **given: Any) -> list[Any]:
    decoder = DynamodbDecoder(
        "aws", given.get("tenant", "none"), images, given.get("on_error", "stop")
    )
    rows = [
        row for batch in decoder.decode(page_of(payload, skip=skip)) for row in batch.to_pylist()
    ]
    read = json.loads if images == "json" else ormsgpack.unpackb
    for row in rows:
        for name in ("key", "before", "after", "delta"):
            row[name] = None if row[name] is None else read(row[name])
    return rows


def test_events_become_operations_with_their_images() -> None:
    rows = decoded(answer(*records_of(n=1)))
    assert [row["operation"] for row in rows] == ["INSERT", "UPDATE", "DELETE", "DELETE"]
    assert [row["before"] for row in rows] == [
        None, {"id": "k", "was": 1}, {"id": "k", "n": 1}, {"id": "k", "n": 1},
    ]  # fmt: skip
    assert [row["after"] for row in rows] == [{"id": "k", "n": 1}] * 2 + [None] * 2
    assert {(row["collection"], row["document_id"], row["partition"]) for row in rows} == {
        ("users", "k", "L/S0")
    }
    assert [row["key"] for row in rows] == [{"id": "k"}] * 4
    assert rows[0]["committed_at"].timestamp() == 1_700_000_000


def test_a_delete_by_time_to_live_says_so() -> None:
    assert [row["delta"] for row in decoded(answer(*records_of()))] == [
        None, None, None, {"expired": True},
    ]  # fmt: skip


def test_places_are_padded_and_event_ids_name_the_shard() -> None:
    [first, *_] = records_of()
    first["dynamodb"]["SequenceNumber"] = "000000000000000000042"
    [row] = decoded(answer(first))
    assert (row["cursor"], row["ordinal"]) == ("42".zfill(40), 0)
    assert row["event_id"] == "aws:L/S0:000000000000000000042"
    assert sequence_number(Place(row["cursor"], 0)) == "000000000000000000042"


@given(st.integers(0, 10**40 - 1))
def test_a_place_gives_the_sequence_number_back(value: int) -> None:
    text = f"{value:021d}"
    assert sequence_number(place_of(text)) == text


@given(st.integers(0, 10**40 - 1), st.integers(0, 10**40 - 1))
def test_places_compare_as_integers(left: int, right: int) -> None:
    assert (place_of(f"{left:021d}") < place_of(f"{right:021d}")) == (left < right)


def test_values_by_the_table_in_json() -> None:
    found = decoded(answer(*records_of(**ALL)))[0]["after"]
    assert found == {
        "id": "k",
        "s": "text \u0000 😀",
        "empty": "",
        "n": 7,
        "long": "12345678901234567890123456789012345678",
        "half": 1.5,
        "tenth": 0.1,
        "fine": "0.1234567890123456789",
        "b": "AAEC",
        "yes": True,
        "null": None,
        "m": {"inner": [1, "x"]},
        "ss": ["a", "b"],
        "ns": [-1.5, 9, 10],
        "bs": ["AQ==", "Ag=="],
    }


def test_values_by_the_table_in_messagepack() -> None:
    found = decoded(answer(*records_of(**ALL)), "msgpack")[0]["after"]
    assert (found["b"], found["bs"], found["n"]) == (b"\0\1\2", [b"\1", b"\2"], 7)


def test_values_by_the_table_in_python() -> None:
    [record, *_] = read_records(page_of(answer(*records_of(**ALL))))
    assert isinstance(record, StreamRecord)
    assert record.new is not None
    found = AttributeValues("python").item(record.new)
    assert found["long"] == Decimal("12345678901234567890123456789012345678")
    assert str(found["half"]) == "1.5"
    assert (found["b"], found["ss"]) == (b"\0\1\2", {"a", "b"})
    assert found["ns"] == {Decimal("-1.5"), Decimal(9), Decimal(10)}
    assert found["bs"] == {b"\1", b"\2"}


@given(st.decimals(allow_nan=False, allow_infinity=False, places=10, max_value=10**27))
def test_no_number_loses_a_digit(value: Decimal) -> None:
    digits = f"{value:f}"
    assert Decimal(str(image_number(digits))) == value


@pytest.mark.parametrize("text", ["", "nan", "1_0", " 1", "0x1", "--1", "1.", "Infinity"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        image_number(text)


@pytest.mark.parametrize(
    "value",
    [{"X": 1}, {}, {"S": 5}, {"N": 5}, {"N": "x"}, {"S": "a", "N": "1"}, {"B": "?"}, 7, {"M": 3},
     {"L": [{"Y": 1}]}, {"BOOL": "true"}, {"SS": [1]}, {"NS": ["x"]}, {"L": 5}],
)  # fmt: skip
def test_a_value_of_no_known_type_is_malformed(value: Any) -> None:
    for values in map(AttributeValues, ("json", "msgpack", "python")):
        with pytest.raises(Malformed):
            values.item({"name": value})


def test_an_unreadable_record_is_an_error_row_that_decodes_alone_to_the_same() -> None:
    good, bad, *_ = records_of(n=1)
    bad["dynamodb"]["NewImage"]["n"] = {"X": "secret"}
    payload = answer(good, bad)
    with pytest.raises(Malformed) as error:
        decoded(payload)
    assert "secret" not in str(error.value)
    rows = decoded(payload, on_error="dead-letter")
    assert [row["operation"] for row in rows] == ["INSERT", "ERROR"]
    image = rows[1]["after"]
    assert "secret" not in image["error"]
    assert json.loads(base64.b64decode(image["context"]))["table"] == "users"
    [again] = decoded(base64.b64decode(image["raw"]), on_error="dead-letter")
    assert (again["event_id"], again["operation"]) == (rows[1]["event_id"], "ERROR")


def test_a_record_of_another_shape_does_not_spoil_its_page() -> None:
    good, bad, *_ = records_of()
    bad["dynamodb"]["Keys"] = "gone"
    rows = decoded(answer(good, bad), "msgpack", on_error="dead-letter")
    assert [row["operation"] for row in rows] == ["INSERT", "ERROR"]


@pytest.mark.parametrize("at", [-1.0, 253_402_300_800.0, 1e300])
def test_a_time_that_no_clock_has_makes_its_record_unreadable(at: float) -> None:
    good, bad, *_ = records_of()
    bad["dynamodb"]["ApproximateCreationDateTime"] = at
    with pytest.raises(Malformed, match="ApproximateCreationDateTime"):
        decoded(answer(good, bad))
    rows = decoded(answer(good, bad), on_error="dead-letter")
    assert [row["operation"] for row in rows] == ["INSERT", "ERROR"]
    read = native_reader("dead-letter")(page_of(answer(good, bad)))
    assert [each.record["meta"]["operation"] for each in read] == ["INSERT", "ERROR"]


def test_the_head_of_a_page_is_passed_over() -> None:
    rows = decoded(answer(*records_of()), skip=2)
    assert [row["operation"] for row in rows] == ["DELETE", "DELETE"]


@pytest.mark.parametrize("view", ["KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE"])
def test_each_view_type_has_the_images_that_it_has(view: str) -> None:
    rows = decoded(answer(*records_of(view, n=1)))
    assert any(row["after"] for row in rows) == (view == "NEW_IMAGE")
    assert any(row["before"] for row in rows) == (view == "OLD_IMAGE")


def test_two_keys_are_an_array_in_the_order_of_their_names() -> None:
    stream = Stream(table="users", label="L")
    shard = stream.shard()
    stream.put(shard, {"z": "end", "a": 5}, at=1.0)
    [row] = decoded(answer(json.loads(shard.records[0])))
    assert row["document_id"] == '[5,"end"]'


def test_the_tenant_is_an_attribute() -> None:
    rows = decoded(answer(*records_of(shop="north")), tenant="field:shop")
    assert [row["tenant"] for row in rows] == ["north"] * 4


@given(st.integers(0, 2_000))
def test_a_page_that_was_cut_is_malformed(length: int) -> None:
    payload = answer(*records_of(n=1))
    with pytest.raises(Malformed):
        decoded(payload[: min(length, len(payload) - 1)])


def test_a_decoder_pickles() -> None:
    page = page_of(answer(*records_of(**ALL)))
    decoder = DynamodbDecoder("aws", "none", "msgpack", "stop")
    copy = pickle.loads(pickle.dumps(decoder))
    assert copy.decode(page)[0].equals(decoder.decode(page)[0])
