"""A body is a change, or several, in a form that its headers tell; anything else is malformed. JSON
that keeps its text reads as any parser reads it, and knows what was written.

That all that the sink writes is read back: tests/sinks/messages/test_encoders.py.
"""

import json
from typing import Any

import orjson
import ormsgpack
import pytest
from hypothesis import given

from penstock.consumer.tail.bodies import changes_of, exact_json
from penstock.model.errors import Malformed
from tests.wire.cells import SCALARS

CHANGE = {"event_id": "shop:00000000/016B3748:12", "backend": "shop", "operation": "MESSAGE"}


def test_either_encoding_gives_the_same_change() -> None:
    for data in (orjson.dumps(CHANGE), ormsgpack.packb(CHANGE)):
        assert changes_of({}, data) == [CHANGE]


@pytest.mark.parametrize("data", [b"", b"{", b"hello", b"[1]", b"{}", b"\x80", b"\xc1", b"\x01"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Penstock-Schema": "debezium-1"},
        {"Penstock-Schema": "cloudevents-1"},
        {"Content-Type": "application/vnd.apache.arrow.stream"},
    ],
)
def test_anything_else_is_malformed(headers: dict[str, str], data: bytes) -> None:
    with pytest.raises(Malformed):
        changes_of(headers, data)


@pytest.mark.slow
@given(text=SCALARS["json"][2])
def test_values_are_those_of_another_parser(text: str) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    try:
        found = exact_json(text)
    except ValueError:
        assert "\\ud" in text  # messages have no half surrogates outside of text
        return
    assert found == value
    if isinstance(value, (dict, list)):
        assert found.text == text


@pytest.mark.parametrize(
    "written", ["1.50", "-0", "1e400", "1E-7", "1" * 5000, '{"a":1,"a":2}', "[ ]"]
)
@pytest.mark.parametrize("around", ["", " ", "\n\t"])
def test_a_document_keeps_its_text(written: str, around: str) -> None:
    document = around + written + around
    message = f'{{"name":"a, {{b","v":{document},"list":[{document},1]}}'.encode()
    found = exact_json(message)
    assert found["v"].text == found["list"][0].text == document
    assert found["name"] == "a, {b"


def test_integers_are_of_any_size() -> None:
    digits = "9" * 400
    value: Any = exact_json(f"[{digits}, -{digits}, 0]")
    assert value == [int(digits), -int(digits), 0]


def test_great_depth_is_read() -> None:
    value = exact_json("[" * 5000 + "]" * 5000)
    assert len(value.text) == 10_000
