"""Bodies as zstd frames, by the headers of their messages, and the dictionaries that they take.

The bucket `dictionaries` has them: under `id.ID` for ever, because messages name it; and under
`table.STREAM.BACKEND.NAMESPACE.TABLE` the name of the one that writers use from their next start
on. See docs/reference/messages.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, Literal

import orjson
import pyarrow as pa

from penstock.model.errors import Malformed, SettingsError
from penstock.nats.buckets import Bucket, WrongRevision, key_of
from penstock.nats.connection import Connection
from penstock.process.plugins import driver

ENCODING = "Content-Encoding"
DICTIONARY = "Penstock-Dictionary"
_BUCKET = "dictionaries"
_LEVEL = 1  # more costs twice the time and gains a tenth

# By backend, namespace and collection: whose changes a dictionary is for.
Dictionaries = Mapping[tuple[str | None, ...], bytes]


class Frames:
    """Makes frames, whose `headers` name the dictionary's `identity`. For one thread."""

    def __init__(self, dictionary: bytes = b"") -> None:
        self.zstd = driver("zstandard")
        known = self.zstd.ZstdCompressionDict(dictionary) if dictionary else None
        # With a checksum another dictionary of the same id is found out.
        self.compressor = self.zstd.ZstdCompressor(
            level=_LEVEL, dict_data=known, write_checksum=known is not None
        )
        self.identity = None if known is None else str(known.dict_id())
        self.headers = {ENCODING: b"zstd"}
        if self.identity is not None:
            self.headers[DICTIONARY] = self.identity.encode()


def large_frame(body: bytes) -> bytes:
    """A frame without a dictionary, for which no driver is needed."""
    return pa.Codec("zstd", compression_level=_LEVEL).compress(body, asbytes=True)


class Decompressor:
    """`dictionary` gives the dictionary of an id, or None; it is asked once for each."""

    def __init__(self, dictionary: Callable[[str], bytes | None] = lambda _: None) -> None:
        self._dictionary = dictionary
        self._known: dict[str, Any] = {}

    def plain(
        self,
        headers: Mapping[str, str],
        data: bytes,
        of: Literal["message", "snapshot"] = "message",
    ) -> bytes:
        """The plain body. Raises Malformed, SettingsError, and what `dictionary` raises."""
        encoding, id = headers.get(ENCODING, "none"), headers.get(DICTIONARY, "")
        if encoding == "none":
            return data
        if encoding != "zstd":
            setting = f"{'sink' if of == 'message' else of}.compression"
            raise SettingsError(
                f"a {of} is compressed with {encoding!r}, which this version cannot read",
                "nats",
                hint=f"upgrade penstock here, or set {setting}: none in the pipeline file",
            )
        if of == "snapshot" and not id:  # which needs no driver, and takes long for small bodies
            return pa.input_stream(BytesIO(data), compression="zstd").read()
        zstd, known = driver("zstandard"), self._of(id)
        try:
            plain: bytes = known.decompress(data)
        except zstd.ZstdError as error:
            raise Malformed(
                f"a body of {len(data)} bytes is no whole zstd frame: {error}", "nats"
            ) from None
        return plain

    def _of(self, id: str) -> Any:
        if id not in self._known:
            zstd = driver("zstandard")
            dictionary = self._dictionary(id) if id else None
            if id and not dictionary:
                raise SettingsError(
                    f"a message is compressed with the dictionary {id}, which the bucket {_BUCKET}"
                    " lacks",
                    "nats",
                    hint="is it another account, or may the user not read the bucket? where it is"
                    " lost, messages with it cannot be read: take a snapshot",
                )
            known = zstd.ZstdCompressionDict(dictionary) if dictionary else None
            self._known[id] = zstd.ZstdDecompressor(dict_data=known)
        return self._known[id]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDictionary:
    """Which dictionary a table has. `ratio`: how many times smaller bodies were that it was not
    trained on, and `plain_ratio` without it."""

    id: str
    backend: str
    namespace: str
    table: str
    size: int
    samples: int
    ratio: float
    plain_ratio: float
    trained_at: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.backend, self.namespace, self.table


class DictionaryBucket:
    """Over an open connection. Everything raises Unavailable, SettingsError."""

    def __init__(self, connection: Connection) -> None:
        self._bucket = Bucket(connection, _BUCKET)

    def get(self, id: str) -> bytes | None:
        found = self._bucket.get(f"id.{id}")
        return None if found is None else found.value

    def tables(self, stream: str) -> list[TableDictionary]:
        """Those of a stream that have one."""
        found = self._bucket.scan(f"table.{key_of([stream])}.>")
        return [TableDictionary(**orjson.loads(entry.value or b"")) for entry in found]

    def newest(self, stream: str) -> Dictionaries:
        tables = self.tables(stream)
        found = self._bucket.lasts([f"id.{one.id}" for one in tables])
        return {
            table.key: entry.value
            for table, entry in zip(tables, found, strict=True)
            if entry is not None and entry.value is not None
        }

    def put(
        self, stream: str, dictionaries: Sequence[tuple[TableDictionary, bytes]], *,
        replicas: int = 1, storage: str = "file",
    ) -> None:  # fmt: skip
        """Stores new ones. The bucket is made if it is missing."""
        self._bucket.create(replicas=replicas, storage=storage)
        for table, data in dictionaries:
            try:
                self._bucket.insert(f"id.{table.id}", data)
            except WrongRevision:
                raise SettingsError(
                    f"there is another dictionary with the id {table.id}",
                    "nats",
                    hint="train it again",
                ) from None
            now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            document: dict[str, Any] = asdict(table) | {"trained_at": now}
            self._bucket.put("table." + key_of([stream, *table.key]), orjson.dumps(document))
