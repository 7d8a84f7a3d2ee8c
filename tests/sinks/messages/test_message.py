"""The message of a change: subject, headers, body."""

import base64
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import orjson
import ormsgpack
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.consumer.tail.bodies import changes_of
from penstock.model.change import schema
from penstock.model.errors import Rejected
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.nats.protocol import headers_of, hpub
from penstock.sinks.jetstream.publishing.publisher import framed, framing
from penstock.sinks.messages import encoders
from penstock.sinks.messages.layout import FIELDS
from penstock.sinks.messages.message import Framing, Messages, read_bookmark, read_position
from penstock.sinks.messages.pieces import Pick
from penstock.sinks.messages.settings import MessageSettings
from penstock.sinks.rows.columns import Values
from penstock.sinks.rows.part import Origin, Part
from penstock.sinks.subject import parse_template
from tests.sinks.changes import batch_of, encoded
from tests.wire.cells import examples

TEMPLATE = parse_template("cdc.{collection}.{operation}")
Encoding = Literal["msgpack", "json"]
pytestmark = pytest.mark.usefixtures("way")


# One change a message, or several; the Arrow writer has messages of several only.
FORMS = (
    {"encoding": "msgpack"},
    {"encoding": "json", "messages": "batch"},
    {"encoding": "arrow", "messages": "batch"},
)


def test_without_nats_headers_have_no_first_line_and_our_name_of_the_id() -> None:
    """What a sink of another system gets from the shelf."""
    settings = MessageSettings(encoding="json")
    made = encoders.encoder(settings, TEMPLATE, Framing(limit=2000, remedy="ask the operator"))
    (found,) = made.encode(Part.of(batch_of(1, 7))).headers.to_pylist()
    assert found.startswith(b"Penstock-Event-Id: default:00000000/00000007:0\r\nPenstock-Position")
    assert b"NATS" not in found
    with pytest.raises(Rejected) as caught:
        made.encode(Part.of(batch_of(1, after=orjson.dumps({"note": "x" * 3000}).decode())))
    assert caught.value.hint == "ask the operator"


def bodies(messages: Messages, encoding: Encoding) -> list[dict[str, Any]]:
    load: Any = ormsgpack.unpackb if encoding == "msgpack" else orjson.loads
    return [load(body) for body in messages.bodies.to_pylist()]


def headers(messages: Messages, row: int = 0) -> dict[str, str]:
    return headers_of(messages.headers[row].as_py() + b"\r\n")


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_a_message_has_every_field_of_the_change(encoding: Encoding) -> None:
    batch = batch_of(2, 0x16B3748, images=encoding, before=None, unchanged=[[], ["notes"]])
    messages = encoded(batch, encoding=encoding)
    assert messages.subjects.to_pylist() == [b"cdc.items.insert"] * 2
    assert bodies(messages, encoding)[1] == {
        "event_id": "default:00000000/016B3748:1", "backend": "default", "tenant": None,
        "database": "shop", "schema": "public", "collection": "items", "operation": "INSERT",
        "relation_id": 16385, "schema_version": None, "document_id": '["1"]', "key": {"id": 1},
        "data": {"id": 1, "name": "n00000000/016B3748:1"}, "before": None, "unchanged": ["notes"],
        "position": "00000000/016B3748:1", "transaction": str(0x16B3748),
        "committed_at": "2026-11-21T10:02:03.000004Z", "captured_at": "2026-11-21T10:02:04.000000Z",
        "delta": None,
    }  # fmt: skip
    assert list(bodies(messages, encoding)[0]) == list(FIELDS)


def test_the_headers_carry_id_position_and_content_type() -> None:
    batch = batch_of(1, 7, backend="my db", partition="slot 1")
    assert headers(encoded(batch)) == {
        "Nats-Msg-Id": "my db:00000000/00000007:0",
        "Penstock-Position": "my%20db slot%201 00000000/00000007:0",
        "Penstock-Schema": "1",
        "Content-Type": "application/msgpack",
    }
    assert headers(encoded(batch, encoding="json"))["Content-Type"] == "application/json"


@pytest.mark.parametrize("form", FORMS)
def test_a_header_names_the_version_of_the_tables_schema(form: Any) -> None:
    batch = batch_of(4, 7, schema_version=["v1", "v1", None, "v2"])
    messages = encoded(batch, **form)
    found = [headers(messages, row) for row in range(len(messages))]
    versions = [one.get("Penstock-Table-Schema") for one in found]
    assert versions == (["v1", "v1", None, "v2"] if len(found) == 4 else ["v1", None, "v2"])
    said = [
        change["schema_version"]
        for one, body in zip(found, messages.bodies.to_pylist(), strict=True)
        for change in changes_of(one, body)
    ]
    assert said == ["v1", "v1", None, "v2"]


def test_a_header_of_a_version_stays_one_line() -> None:
    found = headers(encoded(batch_of(1, 7, schema_version="a\r\nb: c")))
    assert found["Penstock-Table-Schema"] == "a%0D%0Ab:%20c"


def test_without_ids_the_event_id_is_in_a_header_of_ours() -> None:
    found = headers(encoded(batch_of(1, 7), ids=False))
    assert found["Penstock-Event-Id"] == "default:00000000/00000007:0"
    assert "Nats-Msg-Id" not in found


def test_a_position_header_reads_back() -> None:
    read = read_position({"Penstock-Position": "my%20db slot%201 0/1 2:3:4"})
    assert read == (Origin("my db", PartitionId("slot 1")), Place("0/1 2:3", 4))


def test_a_mark_is_in_a_header_of_the_change_that_has_one() -> None:
    batch = batch_of(3, 7, mark=['{"token":"ü1"}', None, '{"token":"3"}'])
    messages = encoded(batch)
    found = [headers_of(one + b"\r\n") for one in messages.headers.to_pylist()]
    assert [one.get("Penstock-Mark") for one in found] == batch.column("mark").to_pylist()
    origin = Origin("default", PartitionId("shop"))
    for number, (headers, mark) in enumerate(
        zip(found, ({"token": "ü1"}, {}, {"token": "3"}), strict=True)
    ):
        bookmark = Bookmark(Place("00000000/00000007", number), mark)
        assert read_bookmark(headers) == (origin, bookmark)


def test_a_message_of_several_changes_has_the_mark_of_the_last() -> None:
    batch = batch_of(4, 7, mark=["{}", '{"n":1}', None, '{"n":3}'], tenant=["a", "a", "b", "b"])
    messages = encoded(batch, "cdc.{tenant}", messages="batch")
    found = [headers_of(one + b"\r\n") for one in messages.headers.to_pylist()]
    assert [(one["Penstock-Count"], one["Penstock-Mark"]) for one in found] == [
        ("2", '{"n":1}'), ("2", '{"n":3}'),
    ]  # fmt: skip


def test_a_mark_with_a_line_break_is_rejected() -> None:
    with pytest.raises(Rejected, match="mark with a line break"):
        encoded(batch_of(2, mark=[None, "{}\nX: y"]))


@pytest.mark.parametrize("mark", ["", "[]", "{", "7"])
def test_what_is_no_mark_makes_the_message_none_of_ours(mark: str) -> None:
    assert read_bookmark({"Penstock-Position": "b p c:1", "Penstock-Mark": mark}) is None


@pytest.mark.parametrize("value", ["", "a b", "a b c", "a b c:x"])
def test_another_position_header_is_not_ours(value: str) -> None:
    assert read_position({"Penstock-Position": value}) is None
    assert read_position({}) is None


def test_images_of_the_other_encoding_are_converted() -> None:
    image = {"id": 2**60, "blob": b"\x00\xff", "list": [b"x", [None, 1.5]], "text": "ü"}
    packed = batch_of(1, images="msgpack", after=ormsgpack.packb(image))
    blob, x = (base64.b64encode(one).decode() for one in (b"\x00\xff", b"x"))
    expected = {"id": 2**60, "blob": blob, "list": [x, [None, 1.5]], "text": "ü"}
    assert bodies(encoded(packed, encoding="json"), "json")[0]["data"] == expected
    text = batch_of(1, images="json", after=orjson.dumps(expected).decode())
    assert bodies(encoded(text, encoding="msgpack"), "msgpack")[0]["data"] == expected


def test_an_image_that_cannot_be_converted_is_rejected() -> None:
    batch = batch_of(2, 9, images="json", after=["{}", "{broken s3cret"])
    with pytest.raises(Rejected, match="after image at 00000000/00000009:1 of shop") as caught:
        encoded(batch, encoding="msgpack")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("images", ["msgpack", "json"])
@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_some_rows_may_have_no_image(encoding: Encoding, images: Any) -> None:
    full = batch_of(2, images=images)
    before = [None, full.column("after")[1].as_py()]
    batch = batch_of(2, images=images, before=before, after=before[::-1], key=None)
    one, two = bodies(encoded(batch, encoding=encoding), encoding)
    assert (one["before"], two["data"], one["key"]) == (None, None, None)
    assert two["before"] == one["data"] == {"id": 1, "name": "n00000000/00000001:1"}


def test_each_kind_of_a_batch_keeps_its_own_rows() -> None:
    batch = batch_of(
        5,
        collection=["a", "b.c", "a", None, "a"],
        operation=["INSERT", "DELETE", "UPDATE", "MESSAGE", "INSERT"],
        tenant=["x", None, "x", "y", "x"],
        relation_id=[1, 2, 1, None, 3],
    )
    messages = encoded(batch)
    assert messages.subjects.to_pylist() == [
        b"cdc.a.insert", b"cdc.b%2Ec.delete", b"cdc.a.update", b"cdc.%00.message", b"cdc.a.insert",
    ]  # fmt: skip
    routed = [
        (body["collection"], body["operation"], body["tenant"], body["relation_id"])
        for body in bodies(messages, "msgpack")
    ]
    assert routed == [
        ("a", "INSERT", "x", 1), ("b.c", "DELETE", None, 2), ("a", "UPDATE", "x", 1),
        (None, "MESSAGE", "y", None), ("a", "INSERT", "x", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("namespace", "database", "relation", "expected"),
    [
        ("public", "shop", 1, "public"),
        ("shop", "shop", 1, "shop"),  # a schema that is named as its database
        ("shop", "shop", None, None),  # a document database: its namespace is the database
        (None, "shop", None, None),
        ("public", "shop", None, "public"),
    ],
)
def test_schema_is_null_where_the_namespace_is_the_database(
    namespace: Any, database: str, relation: Any, expected: Any
) -> None:
    batch = batch_of(1, namespace=namespace, database=database, relation_id=relation)
    assert bodies(encoded(batch), "msgpack")[0]["schema"] == expected


def test_a_change_without_times_or_transaction() -> None:
    batch = batch_of(1, committed_at=None, captured_at=None, transaction=None, document_id=None)
    for encoding in ("msgpack", "json"):
        body = bodies(encoded(batch, encoding=encoding), encoding)[0]  # type: ignore[arg-type]
        names = ("committed_at", "captured_at", "transaction", "document_id")
        assert [body[name] for name in names] == [None] * 4


@pytest.mark.parametrize("year", [1969, 2000, 2262, 9999])
def test_times_have_six_digits_and_a_z(year: int) -> None:
    when = datetime(year, 12, 31, 23, 59, 59, 999999, UTC)
    body = bodies(encoded(batch_of(1, committed_at=when)), "msgpack")[0]
    assert body["committed_at"] == f"{year}-12-31T23:59:59.999999Z"


TEXT = st.text(max_size=400).filter(lambda s: s.isprintable() or "\n" in s or '"' in s)


@pytest.mark.slow
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(texts=st.lists(TEXT, min_size=1, max_size=5), encoding=st.sampled_from(["msgpack", "json"]))
def test_any_text_survives_in_either_encoding(texts: list[str], encoding: Encoding) -> None:
    count = len(texts)
    constant = {"backend": "b", "partition": "p", "cursor": "c", "operation": "INSERT"}
    columns: dict[str, Any] = {
        name: [constant.get(name)] * count for name in schema(encoding).names
    }
    columns |= {"ordinal": list(range(count)), "event_id": [f"b:c:{n}" for n in range(count)]}
    columns |= {"document_id": texts, "transaction": texts, "collection": texts}
    batch = pa.RecordBatch.from_pydict(columns, schema=schema(encoding))
    found = bodies(encoded(batch, encoding=encoding), encoding)
    assert [body["document_id"] for body in found] == texts
    assert [body["transaction"] for body in found] == texts
    assert [body["collection"] for body in found] == texts


@pytest.mark.parametrize("length", [0, 1, 31, 32, 255, 256, 65535, 65536, 70000])
def test_strings_of_every_header_size(length: int) -> None:
    body = bodies(encoded(batch_of(2, document_id=["x" * length, "y"])), "msgpack")
    assert [len(one["document_id"]) for one in body] == [length, 1]


def test_a_slice_of_a_larger_batch_encodes_as_itself() -> None:
    whole = encoded(batch_of(10, images="json"), encoding="json")
    part = encoded(batch_of(10, images="json").slice(4, 3), encoding="json")
    assert part.bodies.to_pylist() == whole.bodies.to_pylist()[4:7]
    assert part.headers.to_pylist() == whole.headers.to_pylist()[4:7]


def test_frames_are_what_the_protocol_says() -> None:
    messages = encoded(batch_of(30))
    for part in (messages, messages.slice(3, 21)):
        rows = zip(
            part.subjects.to_pylist(), part.headers.to_pylist(), part.bodies.to_pylist(),
            strict=True,
        )  # fmt: skip
        one_by_one = b"".join(hpub(s, b"in.1", h + b"X: 1\r\n\r\n", b) for s, h, b in rows)
        formatter = framing([Pick("row", "reply")], [b"X: 1\r\n\r\n"], ("row", "reply"))
        columns = {"row": np.zeros(len(part), np.int32), "reply": Values([b"in.1 "])}
        assert framed(part, formatter, **columns).tobytes() == one_by_one


def test_a_change_that_the_server_cannot_take_is_rejected_by_its_place() -> None:
    secret = "s3cret" * 100
    batch = batch_of(3, 9, images="json", after=["{}", orjson.dumps({"a": secret}).decode(), "{}"])
    with pytest.raises(Rejected) as caught:
        encoded(batch, encoding="json", limit=800)
    assert "00000000/00000009:1 of shop" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("column", ["event_id", "cursor"])
def test_a_line_break_cannot_forge_a_header(column: str) -> None:
    with pytest.raises(Rejected, match="line break"):
        encoded(batch_of(2, **{column: ["fine", "x\r\nNats-Rollup: all"]}))


def test_messages_after_a_place() -> None:
    messages = encoded(batch_of(10, 5))
    cursor, origin = "00000000/00000005", Origin("default", PartitionId("shop"))
    assert messages.after({origin: Place("00000000/00000004", 99)}) is messages
    assert messages.after({origin: Place(cursor, 3)}).place(0) == Place(cursor, 4)
    assert len(messages.after({origin: Place(cursor, 9)})) == 0
    assert len(messages.after({origin: Place("00000000/00000006", 0)})) == 0
    assert messages.place(-1) == Place(cursor, 9)


def test_sizes_are_bytes_of_headers_and_body() -> None:
    messages = encoded(batch_of(3))
    rows = zip(messages.headers.to_pylist(), messages.bodies.to_pylist(), strict=True)
    assert np.array_equal(messages.sizes, [len(h) + len(b) for h, b in rows])
