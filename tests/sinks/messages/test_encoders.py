"""Whatever the settings ask for, the same changes are read back from it.

The reader is `penstock.consumer.tail.bodies`, which shares no code with the sink.
"""

from typing import Any

import orjson
import ormsgpack
import pyarrow as pa
import pytest

from penstock.consumer.tail.bodies import changes_of
from penstock.model.errors import Malformed
from penstock.nats.protocol import headers_of
from tests.sinks.changes import batch_of, encoded


def read_back(changes: Any, **fields: Any) -> list[dict[str, Any]]:
    messages = encoded(changes, **fields)
    pairs = zip(messages.headers.to_pylist(), messages.bodies.to_pylist(), strict=True)
    return [
        dict(change)
        for headers, body in pairs
        for change in changes_of(headers_of(headers + b"\r\n"), body)
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": "batch"},
        {"messages": "batch", "encoding": "json"},
        {"messages": "batch", "encoding": "arrow"},
        {"messages": "batch", "batch": {"max_size": 1}},
        {"layout": "cloudevents", "encoding": "json"},
        {"layout": "cloudevents", "encoding": "json", "messages": "batch"},
    ],
)
@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_every_form_holds_the_same_changes(fields: Any, images: Any) -> None:
    batch = batch_of(
        7, 0x16B3748, images=images, unchanged=[[], ["note"], *[[]] * 5], before=None,
        tenant="acme", transaction=["7", None, *["8"] * 5],
    )  # fmt: skip
    assert read_back(batch, **fields) == read_back(batch)


@pytest.mark.parametrize("encoding", ["json", "msgpack", "arrow"])
@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_a_delta_is_in_every_encoding(images: Any, encoding: str) -> None:
    delta = {"updated": {"a.b": 1}, "removed": ["c"], "truncated": [{"field": "d", "new_size": 2}]}
    packed = ormsgpack.packb(delta) if images == "msgpack" else orjson.dumps(delta).decode()
    batch = batch_of(3, images=images, delta=[None, packed, None])
    found = read_back(batch, encoding=encoding, messages="batch")
    assert [change["delta"] for change in found] == [None, delta, None]


def test_an_arrow_message_without_a_delta_has_no_bytes_for_it() -> None:
    messages = encoded(batch_of(3), messages="batch", encoding="arrow")
    schema = pa.ipc.open_stream(messages.bodies[0].as_py()).schema
    assert schema.field("delta").type == pa.null()


@pytest.mark.parametrize("packing", ["change", "batch"])
def test_the_debezium_layout_holds_what_debezium_has(packing: str) -> None:
    operations = ["INSERT", "UPDATE", "DELETE", "TRUNCATE", "MESSAGE", "READ"]
    after = [b"{}", b'{"a":1}', None, None, b'{"prefix":"p","content":"c"}', b'{"a":2}']
    batch = batch_of(
        6, 9, operation=operations, after=[one and one.decode() for one in after],
        unchanged=[[], ["b"], *[[]] * 4], collection=[*["items"] * 4, "p", "items"],
    )  # fmt: skip
    found = read_back(batch, layout="debezium", encoding="json", messages=packing)
    expected = [dict(change) for change in read_back(batch)]
    for change, plain in zip(found, expected, strict=True):
        for name in ("tenant", "document_id", "key"):
            assert change.pop(name) is None
            key = plain.pop(name)
            if name == "key" and plain["operation"] == "DELETE":
                plain["before"] = key
        for name in ("committed_at", "captured_at"):
            plain[name] = plain[name][:-4] + "000Z"
    assert found == expected


@pytest.mark.parametrize("packing", ["change", "batch"])
@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_the_puller_layout_holds_what_a_puller_has(packing: str, images: Any) -> None:
    operations = ["INSERT", "UPDATE", "UPDATE", "DELETE", "TRUNCATE"]
    batch = batch_of(5, 9, operation=operations, images=images, tenant="acme")
    names = (
        "event_id", "backend", "tenant", "collection", "operation", "document_id", "data",
        "unchanged", "committed_at",
    )  # fmt: skip
    expected = [
        {name: change[name] if name in names else None for name in change}
        | {"committed_at": f"{change['committed_at'][:-4]}000Z"}
        for change in read_back(batch)
    ]
    assert read_back(batch, layout="puller", encoding="json", messages=packing) == expected


@pytest.mark.parametrize("packing", ["change", "batch"])
def test_debezium_keeps_what_an_update_changed(packing: str) -> None:
    delta = {"updated": {"a": 1}, "removed": ["b"], "truncated": [{"field": "c", "new_size": 2}]}
    batch = batch_of(2, operation="UPDATE", delta=[None, orjson.dumps(delta).decode()])
    found = read_back(batch, layout="debezium", encoding="json", messages=packing)
    assert [change["delta"] for change in found] == [None, delta]


def test_a_cut_off_arrow_stream_is_malformed() -> None:
    messages = encoded(batch_of(3), messages="batch", encoding="arrow")
    (body,) = messages.bodies.to_pylist()
    headers = headers_of(messages.headers[0].as_py() + b"\r\n")
    assert len(changes_of(headers, body)) == 3
    for size in range(0, len(body) - 64, 97):
        with pytest.raises(Malformed):
            changes_of(headers, body[:size])
