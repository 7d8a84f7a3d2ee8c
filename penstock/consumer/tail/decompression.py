"""Bodies that are compressed -> plain ones, by their headers. See docs/reference/messages.md."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.model.errors import Malformed, SettingsError
from penstock.nats.buckets import Bucket
from penstock.nats.connection import Connection
from penstock.process.plugins import driver

ENCODING = "Content-Encoding"
DICTIONARY = "Penstock-Dictionary"
BUCKET = "dictionaries"


def stored_dictionary(connection: Connection, id: str) -> bytes | None:
    """Of the bucket `dictionaries`. Raises Unavailable, SettingsError."""
    found = Bucket(connection, BUCKET).get(f"id.{id}")
    return None if found is None else found.value


class Decompressor:
    """`dictionary` gives the dictionary of an id, or None; it is asked once for each."""

    def __init__(self, dictionary: Callable[[str], bytes | None] = lambda _: None) -> None:
        self._dictionary = dictionary
        self._known: dict[str, Any] = {}

    def plain(self, headers: Mapping[str, str], data: bytes) -> bytes:
        """The body that was compressed. Raises Malformed, SettingsError for what this reader lacks,
        and what `dictionary` raises."""
        encoding = headers.get(ENCODING)
        if encoding is None:
            return data
        if encoding != "zstd":
            raise SettingsError(
                f"a message is compressed with {encoding!r}, which this version cannot read",
                hint="upgrade penstock here, or set sink.compression: none in the pipeline file",
            )
        zstd, known = driver("zstandard"), self._of(headers.get(DICTIONARY, ""))
        try:
            plain: bytes = known.decompress(data)
        except zstd.ZstdError as error:
            raise Malformed(
                f"a body of {len(data)} bytes is no whole zstd frame: {error}"
            ) from None
        return plain

    def _of(self, id: str) -> Any:
        if id not in self._known:
            zstd = driver("zstandard")
            dictionary = self._dictionary(id) if id else None
            if id and not dictionary:
                raise SettingsError(
                    f"a message is compressed with the dictionary {id}, which the bucket {BUCKET}"
                    " lacks",
                    hint="is it another account, or may the user not read the bucket? where it is"
                    " lost, messages with it cannot be read: take a snapshot",
                )
            known = zstd.ZstdCompressionDict(dictionary) if dictionary else None
            self._known[id] = zstd.ZstdDecompressor(dict_data=known)
        return self._known[id]
