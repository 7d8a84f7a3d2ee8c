"""Row images from JSON to MessagePack and back: by the kernel and by Python the same bytes."""

import json
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.sinks.messages import convert
from penstock.sinks.messages.convert import Unconvertible, converted
from penstock.sinks.rows import kernel
from tests.wire.cells import examples

pytestmark = pytest.mark.skipif(
    kernel.kernel() is None, reason="the native library is not built: penstock/native/build.py"
)

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False).map(float),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=12)),
    lambda some: st.one_of(st.lists(some), st.dictionaries(st.text(max_size=5), some)),
    max_leaves=12,
)
IMAGES = st.dictionaries(st.text(max_size=8), VALUES, max_size=6)


def by_python(column: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "kernel", lambda: None)
        return converted(column, "msgpack")


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(st.lists(st.one_of(st.none(), IMAGES), max_size=20), st.integers(0, 3), st.booleans())
def test_the_kernel_and_python_agree(images: list[Any], skipped: int, spaced: bool) -> None:
    space = None if spaced else (",", ":")
    texts = [None if one is None else json.dumps(one, separators=space) for one in images]
    column = pa.array(texts, pa.string()).slice(skipped)
    found = converted(column, "msgpack")
    found.validate(full=True)
    assert found.to_pylist() == by_python(column).to_pylist()


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_the_kernel_takes_plain_images_alone(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(convert, "_to_msgpack")
    images = [{"id": number, "v": "ü" * number, "n": None, "f": 0.5} for number in range(300)]
    texts = [*map(orjson.dumps, images), None, b"{}"]
    column = pa.array([one and one.decode() for one in texts], pa.string()).cast(kind)
    found = converted(column, "msgpack").to_pylist()
    assert found == [*map(ormsgpack.packb, images), None, b"\x80"]


def test_no_rows() -> None:
    assert converted(pa.array([], pa.string()), "msgpack").to_pylist() == []


@pytest.mark.parametrize(
    ("image", "value"),
    [
        ('{"n":123456789012345678901234567890}', "123456789012345678901234567890"),
        ('{"n":0.10000000000000000000001}', "0.10000000000000000000001"),
        ('{"n":1e400}', "1e400"),
        ('{"n":"\\ud800"}', "?"),
        ('{"n":1,"n":2}', 2),
    ],
)
def test_what_messagepack_cannot_hold_is_what_it_is_without_a_transform(
    image: str, value: object
) -> None:
    column = pa.array(['{"n":0}', image, None])
    assert ormsgpack.unpackb(converted(column, "msgpack")[1].as_py()) == {"n": value}
    assert by_python(column).to_pylist() == converted(column, "msgpack").to_pylist()


@pytest.mark.parametrize(
    "image", ["{broken", "", "{}x", '{"a":NaN}', '{"a":' * 2000 + "1" + "}" * 2000]
)
def test_what_is_no_image_is_named_by_its_row(image: str) -> None:
    with pytest.raises(Unconvertible) as caught:
        converted(pa.array(["{}", image, "{}"]), "msgpack")
    assert caught.value.row == 1


def test_bytes_are_base64_in_json() -> None:
    packed = pa.array([None, ormsgpack.packb({"b": b"\xff", "l": [b"x"], "n": 2**60})])
    assert converted(packed, "json").to_pylist() == [
        None,
        b'{"b":"/w==","l":["eA=="],"n":%d}' % 2**60,
    ]
