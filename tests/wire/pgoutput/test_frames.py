import struct

import pytest

from penstock.model.errors import Malformed
from penstock.wire.pgoutput.frames import from_pg_time, standby_status, to_pg_time
from penstock.wire.pgoutput.messages import Begin, decode_message
from tests.wire.frames import PrimaryKeepalive, XLogData, decode_frame
from tests.wire.golden import parts

FILES = ["pg15-frames", "pg16-frames", "pg18-frames"]


@pytest.mark.parametrize("name", FILES)
def test_frames_of_a_real_server_read(name: str) -> None:
    frames = [decode_frame(raw) for raw in parts(name)]
    assert {type(frame) for frame in frames} == {XLogData, PrimaryKeepalive}
    for frame in frames:
        assert frame.wal_end < 2**40
        assert frame.sent_at > 1_700_000_000_000_000  # this century, in microseconds since 1970
        if isinstance(frame, XLogData):
            assert isinstance(decode_message(frame.data), Begin)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_frame_is_malformed(name: str) -> None:
    for raw in parts(name):
        # XLogData ends where its message does, so that only its header has a length of its own.
        for end in range(25 if raw[:1] == b"w" else len(raw)):
            with pytest.raises(Malformed):
                decode_frame(raw[:end])


def test_a_keepalive_ends_where_it_should() -> None:
    raw = b"k" + struct.pack(">QqB", 7, 0, 1)
    assert decode_frame(raw) == PrimaryKeepalive(wal_end=7, sent_at=946_684_800_000_000, reply=True)
    with pytest.raises(Malformed):
        decode_frame(raw + b"\0")


def test_another_frame_is_malformed() -> None:
    with pytest.raises(Malformed, match="replication message"):
        decode_frame(b"x" + bytes(30))


def test_a_status_update_is_34_bytes_and_in_postgres_time() -> None:
    raw = standby_status(written=3, flushed=2, applied=1, now_us=946_684_800_000_004, reply=True)
    assert raw == b"r" + struct.pack(">QQQqB", 3, 2, 1, 4, 1)
    assert len(raw) == 34


def test_times_go_there_and_back() -> None:
    assert to_pg_time(946_684_800_000_000) == 0
    assert from_pg_time(to_pg_time(12345)) == 12345
