"""Compressed bodies are read back as the same changes, by a reader that shares no code with us."""

from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
import zstandard

from penstock.consumer.tail.bodies import changes_of
from penstock.model.errors import Malformed, Rejected, SettingsError
from penstock.nats.compression import Decompressor
from penstock.nats.protocol import headers_of
from penstock.sinks.messages.compression import Compression
from penstock.sinks.messages.kinds import MessageKind
from penstock.sinks.messages.message import Messages
from penstock.sinks.rows.columns import BINARY
from tests.sinks.changes import batch_of, encoded

LONG = orjson.dumps({"text": "all work and no play " * 40}).decode()
FORMS = [
    {}, {"encoding": "json"}, {"layout": "debezium", "encoding": "json"}, {"messages": "batch"},
    {"messages": "batch", "encoding": "json"}, {"messages": "batch", "encoding": "arrow"},
    {"layout": "cloudevents", "encoding": "json"},
]  # fmt: skip


def headers(messages: Messages) -> list[Any]:
    return [headers_of(one + b"\r\n") for one in messages.headers.to_pylist()]


def read_back(messages: Messages, *dictionaries: bytes) -> list[Any]:
    known = {str(zstandard.ZstdCompressionDict(one).dict_id()): one for one in dictionaries}
    decompressor = Decompressor(known.get)
    bodies = zip(headers(messages), messages.bodies.to_pylist(), strict=True)
    return [one for head, body in bodies for one in changes_of(head, body, decompressor)]


def trained(samples: list[bytes]) -> bytes:
    return zstandard.train_dictionary(4096, samples).as_bytes()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dictionary", [False, True])
def test_every_form_is_read_back(form: dict[str, Any], dictionary: bool, way: str) -> None:
    """Of three tables, of which one has a dictionary."""
    after = [LONG, *[orjson.dumps({"id": n}).decode() for n in range(11)]]
    batch = batch_of(12, after=after, collection=["a", "b", "c"] * 4, backend="shop")
    plain = encoded(batch, **form)
    samples = encoded(batch_of(500, after=after[1], collection="b", backend="shop"))
    known = trained(samples.bodies.to_pylist())
    tables = {("shop", "public", "b"): known} if dictionary else None
    found = encoded(batch, dictionaries=tables, compression="zstd", **form)
    assert read_back(found, known) == read_back(plain)
    assert found.subjects == plain.subjects
    assert found.keys.ids == plain.keys.ids
    sizes = [
        len(one) + len(two)
        for one, two in zip(found.headers.to_pylist(), found.bodies.to_pylist(), strict=True)
    ]
    assert found.sizes.tolist() == sizes
    assert found.weight < plain.weight
    # Without what compression adds, the headers are the same.
    ours = ("Content-Encoding", "Penstock-Dictionary")
    assert [
        {name: value for name, value in one.items() if name not in ours} for one in headers(found)
    ] == headers(plain)


def test_a_body_that_does_not_become_smaller_stays() -> None:
    noise = np.random.default_rng(1).bytes(200)
    kind = MessageKind((), b"", None, dict.fromkeys(("backend", "namespace", "collection")), b"")
    bodies = pa.array([b"skipped", b"x" * 200, noise, b"", b"y" * 25], BINARY).slice(1)
    head = pa.array([b"A: 1\r\n", b"A: 2\r\n", b"", b"A: 4\r\n"], BINARY)
    found, frames = Compression().of(head, bodies, np.zeros(4, np.int32), [kind])
    assert frames[1:].to_pylist() == bodies[1:].to_pylist()
    assert found[1:].to_pylist() == head[1:].to_pylist()
    assert found[0].as_py() == b"A: 1\r\nContent-Encoding: zstd\r\n"
    assert zstandard.decompress(frames[0].as_py()) == b"x" * 200


@pytest.mark.slow
def test_only_messages_of_a_dictionarys_table_name_it() -> None:
    known = trained(encoded(batch_of(500, collection="b")).bodies.to_pylist())
    id = str(zstandard.ZstdCompressionDict(known).dict_id())
    batch = batch_of(4, collection=["a", "b", "b", "a"])
    found = encoded(batch, dictionaries={("default", "public", "b"): known}, compression="zstd")
    named = [one.get("Penstock-Dictionary") for one in headers(found)]
    assert named[1:3] == [id, id] and set(named[::3]) == {None}
    assert 3 * len(found.bodies[1].as_py()) < len(encoded(batch).bodies[1].as_py())
    assert zstandard.get_frame_parameters(found.bodies[1].as_py()).has_checksum


def test_a_change_that_fits_once_compressed_is_stored() -> None:
    batch = batch_of(2, after=[LONG, "{}"])
    with pytest.raises(Rejected):
        encoded(batch, limit=700)
    assert len(encoded(batch, compression="zstd", limit=700)) == 2


@pytest.mark.slow
def test_a_missing_dictionary_is_no_wrong_row() -> None:
    one, other = (
        trained(encoded(batch_of(500, collection=table)).bodies.to_pylist())
        for table in ("items", "others")
    )
    found = encoded(
        batch_of(2), dictionaries={("default", "public", "items"): one}, compression="zstd"
    )
    head, body = headers(found)[0], found.bodies[0].as_py()
    id = head["Penstock-Dictionary"]
    with pytest.raises(SettingsError, match=f"the dictionary {id}, which the bucket"):
        changes_of(head, body)
    with pytest.raises(Malformed, match="zstd"):
        changes_of(head, body, Decompressor(lambda _: other))
    forged = other[:4] + one[4:8] + other[8:]  # another one with the same id
    with pytest.raises(Malformed, match="zstd"):
        changes_of(head, body, Decompressor(lambda _: forged))
    with pytest.raises(Malformed, match="zstd"):
        changes_of({**head, "Penstock-Dictionary": ""}, body)


@pytest.mark.parametrize("cut", [0, 1, 5, -1])
def test_a_broken_frame_is_malformed(cut: int) -> None:
    found = encoded(batch_of(1, after=LONG), compression="zstd")
    with pytest.raises(Malformed):
        changes_of(headers(found)[0], found.bodies[0].as_py()[:cut])


def test_an_unknown_compression_is_named() -> None:
    with pytest.raises(SettingsError, match="compressed with 'br'"):
        changes_of({"Content-Encoding": "br"}, b"x")
