"""A body is a change, or several, in a form that its headers tell; anything else is malformed.

That all that the sink writes is read back: tests/sinks/encoding/test_encoders.py.
"""

import orjson
import ormsgpack
import pytest

from penstock.consumer.tail.bodies import changes_of
from penstock.model.errors import Malformed

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
