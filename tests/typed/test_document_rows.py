"""Batches of changes as rows of a user's schema: what is known, what was sent, what is refused."""

import pickle
from typing import Any

import ormsgpack
import pyarrow as pa
import pytest

from penstock.model.change import schema
from penstock.model.errors import Malformed, SettingsError
from penstock.typed.columns import COLUMNS
from penstock.typed.document_rows import DocumentRows

SCHEMA = pa.schema(
    [
        ("_id", pa.string()),
        ("name", pa.string()),
        ("visits", pa.int64()),
        ("address", pa.struct({"city": pa.string()})),
        *((name, kind) for name, kind in COLUMNS.items() if kind),
    ]
)
TEXTS = ("backend", "partition", "event_id")


def change(operation: str, **images: Any) -> dict[str, Any]:
    packed = {name: value if value is None or isinstance(value, bytes) else ormsgpack.packb(value)
              for name, value in images.items()}  # fmt: skip
    return {"operation": operation, "cursor": "0A", "ordinal": 0, "namespace": "shop",
            "collection": "users", **dict.fromkeys(TEXTS, "x"), **packed}  # fmt: skip


def batch_of(*changes: dict[str, Any]) -> pa.RecordBatch:
    numbered = [{**each, "ordinal": number} for number, each in enumerate(changes)]
    return pa.RecordBatch.from_pylist(numbered, schema("msgpack"))


def rows_of(*changes: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    made = pickle.loads(pickle.dumps(DocumentRows(SCHEMA, **options)))
    found: list[dict[str, Any]] = made.rows(batch_of(*changes)).to_pylist()
    return found


KEY = {"_id": {"$oid": "6b039f830000001c6b039f83"}}


def test_a_whole_document_has_all_its_columns() -> None:
    after = {"_id": "1", "name": "Ann", "visits": 3, "address": {"city": "Ulm", "zip": 1}}
    [row] = rows_of(change("INSERT", key=KEY, after=after))
    assert row | {"_committed_at": 0} == {
        "_id": "1", "name": "Ann", "visits": 3, "address": {"city": "Ulm"}, "_operation": "INSERT",
        "_sequence": "0A:0000000000", "_committed_at": 0, "_unsent": [], "_rest": [],
        "_corrupt": None,
    }  # fmt: skip


def test_a_delete_has_the_old_document_or_its_key_as_the_document_had_it() -> None:
    old = {"_id": "1", "name": "Ann"}
    whole, part = rows_of(change("DELETE", key=KEY, before=old), change("DELETE", key=KEY))
    assert (whole["_id"], whole["name"], whole["_unsent"]) == ("1", "Ann", [])
    assert (part["_id"], part["name"]) == ("6b039f830000001c6b039f83", None)
    assert part["_unsent"] == ["name", "visits", "address"]


def test_a_key_of_bytes_is_binary_again() -> None:
    made = DocumentRows(pa.schema([("_id", pa.binary())]))
    key = {"_id": {"$binary": {"base64": "AAE=", "subType": "00"}}}
    assert made.rows(batch_of(change("DELETE", key=key))).to_pylist() == [{"_id": b"\0\1"}]


@pytest.mark.parametrize(
    ("delta", "known", "unsent"),
    [
        ({"updated": {"name": "Bo"}}, {"name": "Bo"}, ["visits", "address"]),
        ({"removed": ["visits"]}, {"visits": None}, ["name", "address"]),
        ({"updated": {"address": {"city": "Bonn"}}}, {"address": {"city": "Bonn"}},
         ["name", "visits"]),
        ({"updated": {"address.city": "Bonn", "visits": 2}}, {"visits": 2}, ["name", "address"]),
        ({"updated": {"address.x.0": 1}, "paths": {"address.x.0": ["address", "x", "0"]}}, {},
         ["name", "visits", "address"]),
        ({"updated": {"name.x": 1}, "paths": {"name.x": ["name.x"]}}, {},
         ["name", "visits", "address"]),
        ({"updated": {"name": "Bo"}, "truncated": [{"field": "name", "new_size": 1}]}, {},
         ["name", "visits", "address"]),
    ],
)  # fmt: skip
def test_an_update_without_its_document_has_what_it_set(
    delta: Any, known: dict[str, Any], unsent: list[str]
) -> None:
    [row] = rows_of(change("UPDATE", key={"_id": 1}, delta=delta))
    assert {name: row[name] for name in ("name", "visits", "address")} == {
        "name": None, "visits": None, "address": None, **known
    }  # fmt: skip
    assert (row["_id"], row["_unsent"]) == ("1", unsent)


def test_an_update_of_a_source_that_sends_old_images_only_has_its_key() -> None:
    [row] = rows_of(change("UPDATE", key={"_id": "1"}, before={"_id": "1", "name": "old"}))
    assert (row["_id"], row["name"]) == ("1", None)
    assert "name" in row["_unsent"]


def test_a_change_of_the_collection_has_no_columns_and_a_message_no_row() -> None:
    rows = rows_of(change("DROP"), change("MESSAGE", after=b"\xc0"), change("TRUNCATE"))
    assert [row["_operation"] for row in rows] == ["DROP", "TRUNCATE"]
    assert [row["_sequence"] for row in rows] == ["0A:0000000000", "0A:0000000002"]
    assert all(row["_id"] is None and row["_unsent"] is None for row in rows)


def test_an_unread_change_has_what_is_known_of_it() -> None:
    [row] = rows_of(change("ERROR", after={"reason": "x", "raw": b"\0"}))
    assert (row["_operation"], row["_corrupt"]) == ("ERROR", '{"reason":"x","raw":"AA=="}')


def test_what_the_schema_has_not_is_in_rest() -> None:
    after = {"_id": "1", "more": {"a": b"\0"}, "text": "x", "none": None, "many": 2**53}
    [row] = rows_of(change("INSERT", after=after))
    assert dict(row["_rest"]) == {"more": '{"a":"AA=="}', "text": "x", "many": str(2**53)}


def test_what_does_not_fit_ends_it_and_names_where_without_the_value() -> None:
    with pytest.raises(SettingsError) as raised:
        rows_of(change("INSERT", after={"visits": 1}), change("INSERT", after={"visits": "secret"}))
    text = str(raised.value)
    for part in ("shop.users", "text in visits", "int64", "at 0A:1 of x", "on_misfit", "string"):
        assert part in text
    assert "secret" not in text


def test_what_does_not_fit_is_null_and_kept_where_that_was_asked_for() -> None:
    bad = {"_id": "1", "visits": "many", "address": {"city": "Ulm", "zip": 1}}
    rows = rows_of(
        change("INSERT", after={"_id": "0"}),
        change("INSERT", after=bad),
        change("DELETE", key={"_id": {"$numberLong": "7"}}, before={"address": 5}),
        on_misfit="PERMISSIVE",
    )
    assert [row["_corrupt"] for row in rows] == [
        None, '{"_id":"1","visits":"many","address":{"city":"Ulm","zip":1}}', '{"address":5}'
    ]  # fmt: skip
    assert (rows[1]["visits"], rows[1]["address"]) == (None, {"city": "Ulm"})
    assert [dict(row["_rest"]) for row in rows] == [{}, {"visits": "many"}, {"address": "5"}]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (pa.field("_sequence", pa.int64()), "declare it as string"),
        (pa.field("name", pa.string(), nullable=False), "may not be null"),
        (pa.field("name", pa.duration("s")), "documents do not have"),
    ],
)
def test_a_schema_that_no_document_can_have_is_refused(field: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        DocumentRows(pa.schema([field]))


def test_an_image_that_is_no_document_is_malformed() -> None:
    for image in b"\xc1", b"\x01":
        with pytest.raises(Malformed):
            rows_of(change("INSERT", after=image))


def test_a_row_of_a_snapshot_sorts_before_the_first_change_after_it() -> None:
    row, change_ = rows_of(change("READ", after={"name": "a"}), change("INSERT", after={}))
    assert (row["_operation"], row["_sequence"]) == ("READ", "0A")
    assert row["_sequence"] < change_["_sequence"]
