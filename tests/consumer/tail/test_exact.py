"""JSON that keeps its text reads as any parser reads it, and knows what was written."""

import json
from typing import Any

import pytest
from hypothesis import given

from penstock.consumer.tail import exact
from tests.wire.cells import SCALARS


@given(text=SCALARS["json"][2])
def test_values_are_those_of_another_parser(text: str) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    try:
        found = exact.loads(text)
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
    found = exact.loads(message)
    assert found["v"].text == found["list"][0].text == document
    assert found["name"] == "a, {b"


def test_integers_are_of_any_size() -> None:
    digits = "9" * 400
    value: Any = exact.loads(f"[{digits}, -{digits}, 0]")
    assert value == [int(digits), -int(digits), 0]


def test_great_depth_is_read() -> None:
    value = exact.loads("[" * 5000 + "]" * 5000)
    assert len(value.text) == 10_000
