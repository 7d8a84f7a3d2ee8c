"""The streaming replication protocol around pgoutput: its bytes, its times, the status update.

A decoder that only takes through a ByteReader can't run off the end: what is missing is Malformed.
"""

import struct

from penstock.model.errors import Malformed

# PostgreSQL counts microseconds from 2000-01-01 UTC; this is that moment since 1970.
PG_EPOCH_US = 946_684_800_000_000

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT64 = struct.Struct(">q")
_UINT64 = struct.Struct(">Q")


class ByteReader:
    """Takes values off the front of `data`; network byte order. Every method raises Malformed.

    `lenient`: names that are not UTF-8 are escaped instead (`caf\\xe9`).
    """

    __slots__ = ("_at", "_data", "_lenient")

    def __init__(self, data: bytes, *, lenient: bool = False) -> None:
        self._data = data
        self._at = 0
        self._lenient = lenient

    def take(self, size: int) -> bytes:
        at = self._at
        if size < 0 or at + size > len(self._data):
            left = len(self._data) - at
            raise Malformed(f"a message ends early: {size} bytes wanted, {left} left", "wire")
        self._at = at + size
        return self._data[at : self._at]

    def uint8(self) -> int:
        return self.take(1)[0]

    def boolean(self) -> bool:
        return bool(self.uint8())

    def int16(self) -> int:
        return int(_INT16.unpack(self.take(2))[0])

    def int32(self) -> int:
        return int(_INT32.unpack(self.take(4))[0])

    def uint32(self) -> int:
        """An OID or a transaction id."""
        return int(_UINT32.unpack(self.take(4))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self.take(8))[0])

    def lsn(self) -> int:
        return int(_UINT64.unpack(self.take(8))[0])

    def timestamp(self) -> int:
        """A TimestampTz, as microseconds since 1970 UTC."""
        return self.int64() + PG_EPOCH_US

    def tag(self) -> bytes:
        return self.take(1)

    def string(self) -> str:
        """Up to a NUL byte, which is taken too; in UTF-8."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise Malformed("a message ends early: a string has no end", "wire")
        text = self.take(end - self._at)
        self._at += 1
        try:
            return text.decode(errors="backslashreplace" if self._lenient else "strict")
        except UnicodeDecodeError:
            raise Malformed("a name is not UTF-8", "wire") from None

    def end(self) -> None:
        """Nothing may be left."""
        left = len(self._data) - self._at
        if left:
            raise Malformed(f"a message has {left} bytes after its end", "wire")


_STATUS = struct.Struct(">cQQQqB")


def standby_status(
    *, written: int, flushed: int, applied: int, now_us: int, reply: bool = False
) -> bytes:
    """`r`, the standby status update: 34 bytes for one CopyData message. The server moves
    `confirmed_flush_lsn` to `flushed`; `now_us` is microseconds since 1970 UTC; `reply` asks the
    server to answer at once."""
    return _STATUS.pack(b"r", written, flushed, applied, to_pg_time(now_us), reply)


def to_pg_time(microseconds: int) -> int:
    """Microseconds since 1970 -> since 2000, both UTC."""
    return microseconds - PG_EPOCH_US


def from_pg_time(microseconds: int) -> int:
    """Microseconds since 2000 -> since 1970, both UTC."""
    return microseconds + PG_EPOCH_US
