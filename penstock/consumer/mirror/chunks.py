"""The messages of a snapshot, as docs/reference/messages.md has them -> rows. Pure."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa

from penstock.consumer.mirror.targets import LoadedChunk
from penstock.model.errors import Malformed
from penstock.nats.compression import Decompressor

_ARROW = "application/vnd.apache.arrow.stream"


def body_of(
    headers: Mapping[str, str],
    payload: bytes,
    decompressor: Decompressor | None = None,
    load_json: Callable[[bytes], Any] = orjson.loads,
) -> Mapping[str, Any]:
    """A chunk, a meta or an error. Raises Malformed, and what the decompressor raises; without one
    there are no dictionaries."""
    try:
        payload = (decompressor or Decompressor()).plain(headers, payload, "snapshot")
        if headers.get("Content-Type") == _ARROW:
            return _tabular(payload)
        load: Any = load_json if payload[:1] == b"{" else ormsgpack.unpackb
        found = load(payload)
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise Malformed(f"a message of {len(payload)} bytes is no part of a snapshot") from error
    if not isinstance(found, dict):
        raise Malformed(f"a message of {len(payload)} bytes is no part of a snapshot")
    return found


def loaded(body: Mapping[str, Any], payload: bytes) -> LoadedChunk:
    """What is to be remembered of a chunk."""
    return LoadedChunk(int(body["chunk"]), len(body["data"]), zlib.crc32(payload))


def differs(meta: Mapping[str, Any], chunks: Sequence[LoadedChunk]) -> str:
    """Why the chunks are not those that the meta names; "" if they are."""
    have, listed = {each.chunk: each for each in chunks}, meta["chunks"]
    wanted = set(range(meta["batch_count"])) if listed is None else {one["chunk"] for one in listed}
    if missing := wanted - have.keys():
        return f"{len(missing)} of {meta['batch_count']} chunks are not in the stream any more"
    if other := have.keys() - wanted:
        return f"{len(other)} chunks are in the stream that it does not name"
    rows = sum(each.rows for each in chunks)
    if rows != meta["row_count"]:
        return f"its chunks have {rows} rows, and it should have {meta['row_count']}"
    for one in listed or ():
        if have[one["chunk"]].crc32 != one["crc32"]:
            return f"chunk {one['chunk']} is damaged"
    return ""


def _tabular(payload: bytes) -> Mapping[str, Any]:
    table = pa.ipc.open_stream(payload).read_all()
    given = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    load: Any = ormsgpack.unpackb if given.get("images") == "msgpack" else orjson.loads
    images = {name: [load(one) for one in table[name].to_pylist()] for name in table.column_names}
    return {**given, **images}
