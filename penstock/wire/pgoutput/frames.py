"""The streaming replication protocol around pgoutput: the status update, and its times."""

import struct

from penstock.wire.pgoutput.reader import PG_EPOCH_US

_STATUS = struct.Struct(">cQQQqB")


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
