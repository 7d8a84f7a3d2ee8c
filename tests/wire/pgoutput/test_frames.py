import struct

import pytest

from penstock.wire.pgoutput.frames import ByteReader, from_pg_time, standby_status, to_pg_time
from penstock.wire.pgoutput.messages import Begin, decode_message
from tests.wire.golden import parts


@pytest.mark.parametrize("name", ["pg15-frames", "pg16-frames", "pg18-frames"])
def test_frames_of_a_real_server_read(name: str) -> None:
    """XLogData and keepalives have an LSN and a time of this century."""
    for raw in parts(name):
        reader = ByteReader(raw)
        if reader.tag() == b"w":
            reader.lsn()
        assert reader.lsn() < 2**40
        assert reader.timestamp() > 1_700_000_000_000_000
        if raw[:1] == b"w":
            assert isinstance(decode_message(reader.take(len(raw) - 25)), Begin)
        else:
            reader.boolean()
        reader.end()


def test_a_status_update_is_34_bytes_and_in_postgres_time() -> None:
    raw = standby_status(written=3, flushed=2, applied=1, now_us=946_684_800_000_004, reply=True)
    assert raw == b"r" + struct.pack(">QQQqB", 3, 2, 1, 4, 1)
    assert len(raw) == 34
    assert from_pg_time(to_pg_time(12345)) == 12345
