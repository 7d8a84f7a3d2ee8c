import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import Malformed
from penstock.wire.pgoutput.lsn import format_lsn, message_cursor, parse_lsn

LSNS = st.integers(0, 2**64 - 1)


@pytest.mark.slow
@given(lsn=LSNS)
def test_an_lsn_goes_there_and_back(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn
    assert parse_lsn(f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:x}") == lsn


@given(one=LSNS, other=LSNS)
def test_lsns_compare_as_text(one: int, other: int) -> None:
    assert (format_lsn(one) < format_lsn(other)) == (one < other)


@pytest.mark.parametrize("text", ["", "0", "/", "0/", "/0", "G/0", "0/123456789", "0/0/0"])
def test_another_text_is_malformed(text: str) -> None:
    with pytest.raises(Malformed, match="not an LSN"):
        parse_lsn(text)


def test_a_messages_cursor_is_before_the_commit_at_its_end() -> None:
    assert message_cursor(0x1_0000_0000) == "00000000/FFFFFFFF"
