"""What travels inside CopyData, read slowly: the framing loop reads it in place, and must agree."""

from dataclasses import dataclass

from penstock.model.errors import Malformed
from penstock.wire.pgoutput.reader import ByteReader


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
