"""The streaming replication protocol around pgoutput: what travels inside CopyData.

XLogData and keepalives come from the server, status updates go to it. The CopyData frame itself
(`d`, int32 length) is libpq's business, or the framing loop's.
"""

import struct
from dataclasses import dataclass

from penstock.errors import Malformed
from penstock.wire.pgoutput.reader import PG_EPOCH_US, ByteReader

_STATUS = struct.Struct(">cQQQqB")


@dataclass(frozen=True, slots=True, kw_only=True)
class XLogData:
    """`w`: one pgoutput message. LSNs as numbers, `sent_at` in microseconds since 1970 UTC."""

    start: int
    wal_end: int
    sent_at: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimaryKeepalive:
    """`k`: the server is alive; `reply` asks for a status update at once."""

    wal_end: int
    sent_at: int
    reply: bool


def decode_frame(data: bytes) -> XLogData | PrimaryKeepalive:
    """What one CopyData message holds, without its `d` and length; raises Malformed."""
    reader = ByteReader(data)
    tag = reader.tag()
    if tag == b"w":
        return XLogData(
            start=reader.lsn(),
            wal_end=reader.lsn(),
            sent_at=reader.timestamp(),
            data=reader.rest(),
        )
    if tag != b"k":
        raise Malformed(f"there is no replication message {tag!r}")
    alive = PrimaryKeepalive(
        wal_end=reader.lsn(), sent_at=reader.timestamp(), reply=bool(reader.uint8())
    )
    reader.end()
    return alive


def standby_status(
    *, written: int, flushed: int, applied: int, now_us: int, reply: bool = False
) -> bytes:
    """`r`, the standby status update: 34 bytes for one CopyData message.

    The server moves `confirmed_flush_lsn` to `flushed`; `now_us` is microseconds since 1970 UTC;
    `reply` asks the server to answer at once.
    """
    return _STATUS.pack(b"r", written, flushed, applied, to_pg_time(now_us), reply)


def to_pg_time(microseconds: int) -> int:
    """Microseconds since 1970 -> since 2000, both UTC."""
    return microseconds - PG_EPOCH_US


def from_pg_time(microseconds: int) -> int:
    """Microseconds since 2000 -> since 1970, both UTC."""
    return microseconds + PG_EPOCH_US
