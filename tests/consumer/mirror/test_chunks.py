"""Chunks in every encoding, compressed or not, and what is wrong with them."""

import zlib
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa
import pytest
import zstandard

from penstock.consumer.mirror.snapshot_messages import body_of, differs, loaded
from penstock.consumer.mirror.steps import LoadedChunk
from penstock.model.errors import Malformed, SettingsError
from penstock.nats.compression import Decompressor
from penstock.snapshots.chunks import ChunkCompression, ChunkForm, cut

ROWS = [{"id": 1, "raw": b"\x00"}, {"id": 2, "raw": None}]
FORM = {"table": "t", "schema": "public", "snapshot_id": "snap-1", "lsn": "0/1",
        "position": "00000000/00000001:0"}  # fmt: skip


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("encoding", ["json", "msgpack", "arrow"])
def test_rows_come_back(encoding: str, compression: str) -> None:
    dump: Any = ormsgpack.packb if encoding != "json" else orjson.dumps
    rows = [{**row, "raw": None} for row in ROWS] if encoding == "json" else ROWS
    form = ChunkForm(encoding=encoding, **FORM)
    images = pa.array(map(dump, rows), pa.binary())
    images = images.cast(pa.string()) if encoding == "json" else images
    body = form.body(form.rows(pa.RecordBatch.from_pydict({"after": images})), 4)
    headers = {"Content-Type": form.content_type.decode()}
    if compression == "zstd":
        body = pa.Codec("zstd").compress(body, asbytes=True)
        headers["Content-Encoding"] = "zstd"
    found = body_of(headers, body)
    assert found["data"] == rows
    assert loaded(found, body) == LoadedChunk(4, 2, zlib.crc32(body))


def trained(start: int = 0) -> bytes:
    samples = [
        b'{"id":%d,"name":"customer %d of the shop"}' % (n, n * 7) for n in range(start, 999)
    ]
    made: bytes = zstandard.train_dictionary(4096, samples).as_bytes()
    return made


@pytest.mark.slow
def test_a_small_chunk_has_the_dictionary_and_a_large_one_has_not() -> None:
    compression = ChunkCompression("zstd", trained())
    assert compression.identity
    small = b'{"data":[{"id":5,"name":"customer 35 of the shop"}]}'
    frame, headers = compression.of(small)
    assert headers == {
        "Content-Encoding": b"zstd",
        "Penstock-Dictionary": compression.identity.encode(),
    }
    assert len(frame) < len(ChunkCompression("zstd").of(small)[0])
    asked: list[str] = []

    def found(identity: str) -> bytes:
        asked.append(identity)
        return trained()

    told = {name: value.decode() for name, value in headers.items()}
    assert body_of(told, frame, Decompressor(found))["data"][0]["id"] == 5
    assert asked == [compression.identity]
    with pytest.raises(SettingsError, match=f"the dictionary {asked[0]}, which the bucket"):
        body_of(told, frame)
    with pytest.raises(Malformed, match="no whole zstd frame"):  # of the same id
        other = bytearray(trained(500))
        other[4:8] = trained()[4:8]
        body_of(told, frame, Decompressor(lambda _: bytes(other)))
    assert compression.of(small * 200)[1] == {"Content-Encoding": b"zstd"}
    assert ChunkCompression("none", trained()).of(small) == (small, {})


@pytest.mark.parametrize("encoding", ["json", "msgpack", "arrow"])
def test_rows_that_are_documents_have_keys(encoding: str) -> None:
    dump: Any = ormsgpack.packb if encoding != "json" else orjson.dumps
    rows, keys = [{"_id": "1"}, {"_id": 1}], [{"_id": "1"}, {"_id": 1}]
    form = ChunkForm(encoding=encoding, is_keyed=True, **FORM)
    kind = pa.string() if encoding == "json" else pa.binary()
    batch = {name: pa.array(map(dump, some), pa.binary()).cast(kind)
             for name, some in (("after", rows), ("key", keys))}  # fmt: skip
    both = form.rows(pa.RecordBatch.from_pydict(batch))
    for slices in (cut(both, most=1, size=4096), cut(both, most=9, size=1), [form.nothing]):
        found = [body_of({"Content-Type": form.content_type.decode()}, form.body(one, 0))
                 for one in slices]  # fmt: skip
        assert [row for body in found for row in body["data"]] in (rows, [])
        assert [key for body in found for key in body["keys"]] in (keys, [])
        assert len(found) == (2 if found[0]["data"] else 1)


def test_what_cannot_be_read_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"'lz4'.*snapshot\.compression: none"):
        body_of({"Content-Encoding": "lz4"}, b"{}")
    for headers, body in (
        ({}, b"{"), ({}, b"\xc1"), ({}, b"[]"), ({"Content-Encoding": "zstd"}, b"no frame"),
        ({"Content-Type": "application/vnd.apache.arrow.stream"}, b"no stream"),
    ):  # fmt: skip
        with pytest.raises(Malformed):
            body_of(headers, body)


@pytest.mark.parametrize(
    ("chunks", "problem"),
    [
        ([LoadedChunk(0, 2, 5), LoadedChunk(1, 1, 6)], ""),
        ([LoadedChunk(0, 2, 5)], "1 of 2 chunks are not in the stream any more"),
        ([LoadedChunk(n, 1, 5) for n in range(3)], "1 chunks are in the stream that it does not"),
        ([LoadedChunk(0, 2, 5), LoadedChunk(1, 2, 6)], "its chunks have 4 rows, and it should"),
        ([LoadedChunk(0, 2, 5), LoadedChunk(1, 1, 7)], "chunk 1 is damaged"),
    ],
)
def test_chunks_are_those_of_the_meta_or_it_says_why_not(
    chunks: list[LoadedChunk], problem: str
) -> None:
    listed = [{"chunk": 0, "crc32": 5}, {"chunk": 1, "crc32": 6}]
    meta = {"batch_count": 2, "row_count": 3, "chunks": listed}
    assert differs(meta, chunks).startswith(problem)
    assert bool(differs(meta, chunks)) == bool(problem)
    if problem and "damaged" not in problem:
        assert differs({**meta, "chunks": None}, chunks)
