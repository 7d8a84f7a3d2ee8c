import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.pgoutput.values.binary import binary, binary_as_base64
from penstock.wire.pgoutput.values.numbers import boolean, floating


@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_floats_read_back_the_same(value: float) -> None:
    read = floating(repr(value).encode())
    assert isinstance(read, float)
    assert math.copysign(1, read) == math.copysign(1, value)
    assert read == value


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_is_its_name(name: str) -> None:
    assert floating(name.encode()) == name


@pytest.mark.parametrize("written", ["", "x", "1e999", "inf", "1,5"])
def test_other_floats_are_a_value_error(written: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        floating(written.encode())


def test_a_boolean_is_t_or_f() -> None:
    assert boolean(b"t") is True
    assert boolean(b"f") is False
    for written in (b"", b"true", b"T", b"1"):
        with pytest.raises(ValueError, match="neither"):
            boolean(written)


@given(data=st.binary())
def test_bytea_reads_back_the_same(data: bytes) -> None:
    written = b"\\x" + data.hex().encode()
    assert binary(written) == data
    assert binary_as_base64(written).isascii()


@pytest.mark.parametrize("written", [b"", b"\\", b"hi", b"\\x1", b"\\xzz", b"\\000"])
def test_other_bytea_is_a_value_error(written: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        binary(written)
