import json
from typing import Any

import orjson
import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.documents import document_as_json, image_as_written
from tests.wire.cells import SCALARS

NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner),
    max_leaves=20,
)


def nested(raw: bytes) -> bytes:
    """The document as a consumer finds it in a JSON image, which every parser reads."""
    image = orjson.dumps({"v": document_as_json(raw)})
    assert json.loads(image).keys() == orjson.loads(image).keys() == {"v"}
    value = orjson.loads(image)["v"]
    if isinstance(value, str):
        return value.encode()
    orjson.dumps({"row": [value]})
    return image.removeprefix(b'{"v":').removesuffix(b"}")


@pytest.mark.slow
@given(value=DOCUMENTS)
def test_documents_read_as_they_were(value: Any) -> None:
    raw = json.dumps(value).encode()
    assert image_as_written(raw) == value
    assert nested(raw) == raw


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("9007199254740993", 9007199254740993),
        ("18446744073709551615", 18446744073709551615),
        ("18446744073709551616", "18446744073709551616"),
        ("-9223372036854775809", "-9223372036854775809"),
        ("1" * 5000, "1" * 5000),
        ("0.1", 0.1),
        ("0.12345678901234567890", "0.12345678901234567890"),
        ("1.50000000000000000000", 1.5),
        ("1e400", "1e400"),
        ("-1e400", "-1e400"),
        ("1e22", 1e22),
        ("1E-400", "1E-400"),
        ("5e-324", 5e-324),
    ],
)
def test_a_number_that_fits_nowhere_is_its_digits(written: str, value: Any) -> None:
    raw = f'{{"n": [{written}]}}'.encode()
    assert image_as_written(raw) == {"n": [value]}
    ormsgpack.packb(image_as_written(raw))
    assert nested(raw) == raw  # JSON keeps what was written


def test_half_a_surrogate_pair_crosses() -> None:
    raw = rb'{"a": "x\ud800y", "b": "\ud83d\ude00"}'
    assert image_as_written(raw) == {"a": "x?y", "b": "😀"}
    assert nested(raw) == raw


@pytest.mark.slow
@given(raw=SCALARS["json"][2])
def test_every_reader_reads_what_is_written(raw: str) -> None:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return
    assert nested(raw.encode()) == raw.encode()
    found = document_as_json(raw.encode())
    assert isinstance(found, str) or not isinstance(value, (str, type(None)))


@pytest.mark.parametrize("scalar", ['"x"', '"null"', " null", "null", '"\\ud83d"', "1e400"])
def test_a_string_in_a_column_of_documents_is_json_text(scalar: str) -> None:
    assert document_as_json(scalar.encode()) == scalar


@pytest.mark.parametrize("depth", [1, 100, 239, 255, 300, 1024, 1025, 5000])
def test_great_depth_never_crashes(depth: int) -> None:
    raw = b"[" * depth + b"]" * depth
    value = image_as_written(raw)
    assert (value == raw.decode()) == (depth > 241)
    ormsgpack.packb({"row": [[[[[[value]]]]]]})
    assert isinstance(document_as_json(raw), str) == (depth > 200)
    assert nested(raw) == raw


@pytest.mark.parametrize("written", ["", "{", "nul", "[1,]", "{'a': 1}", "NaN", "[Infinity]", "01"])
def test_what_is_not_json_is_a_value_error(written: str) -> None:
    for convert in (image_as_written, document_as_json):
        with pytest.raises(ValueError, match=r".*"):
            convert(written.encode())


@pytest.mark.slow
@given(value=DOCUMENTS, cut=st.integers(0, 10**6))
def test_any_prefix_of_an_object_is_a_value_error(value: Any, cut: int) -> None:
    raw = json.dumps({"a": value}).encode()
    for convert in (image_as_written, document_as_json):
        with pytest.raises(ValueError, match=r".*"):
            convert(raw[: cut % len(raw)])


def test_bytes_that_are_not_utf8_are_a_value_error() -> None:
    for convert in (image_as_written, document_as_json):
        with pytest.raises(ValueError, match=r".*"):
            convert(b'"\xff"')
