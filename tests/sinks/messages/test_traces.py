"""The header `traceparent`: of the transaction's logical message, or of the row's own field."""

from typing import Any

import orjson
import ormsgpack
import pyarrow as pa
import pytest
from pydantic import ValidationError

from penstock.model.change import Images
from penstock.nats.protocol import headers_of
from penstock.sinks.messages.message import Messages
from penstock.sinks.messages.settings import MessageSettings, TraceparentSettings
from penstock.sinks.messages.traces import Traces
from tests.sinks.changes import batch_of, encoded

pytestmark = pytest.mark.usefixtures("way")
ONE, TWO = (f"00-{digit * 32}-{digit * 16}-01" for digit in "12")


def packed(value: Any, images: Images) -> Any:
    return ormsgpack.packb(value) if images == "msgpack" else orjson.dumps(value).decode()


def said(content: str, commit: int, ordinal: int = 0, images: Images = "json") -> pa.RecordBatch:
    """A logical message of PostgreSQL."""
    after = packed({"prefix": "trace", "content": content}, images)
    return batch_of(
        1, commit, start=ordinal, images=images, operation="MESSAGE", collection="trace",
        namespace=None, key=None, document_id=None, after=[after],
    )  # fmt: skip


def joined(*batches: pa.RecordBatch) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def traces(messages: Messages) -> list[str | None]:
    return [headers_of(each + b"\r\n").get("traceparent") for each in messages.headers.to_pylist()]


def of_messages() -> Traces:
    return Traces(TraceparentSettings(message="trace"))


@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_a_logical_message_is_of_what_comes_after_it_in_its_transaction(images: Images) -> None:
    changes = joined(
        batch_of(1, 1, images=images),
        said(ONE, 1, ordinal=1, images=images),
        batch_of(2, 1, start=2, images=images),
        batch_of(2, 2, images=images),
        said(TWO, 3, images=images),
        batch_of(1, 3, start=1, images=images),
        batch_of(1, 3, start=1, images=images, backend="another"),
    )
    found = traces(encoded(changes, traces=of_messages(), encoding=images))
    assert found == [None, None, ONE, ONE, None, None, None, TWO, None]


def test_a_transaction_goes_on_in_later_batches_and_an_earlier_one_may_come_again() -> None:
    known = of_messages()
    first = joined(said(ONE, 1), batch_of(2, 1, start=1))
    assert traces(encoded(first, traces=known)) == [None, ONE, ONE]
    assert traces(encoded(batch_of(2, 1, start=3), traces=known)) == [ONE, ONE]
    assert traces(encoded(joined(said(TWO, 2), batch_of(1, 2, start=1)), traces=known))[1] == TWO
    assert traces(encoded(batch_of(1, 1, start=2), traces=known)) == [ONE], "a part is sent again"


@pytest.mark.parametrize(
    "content",
    ["", "no trace", f"{ONE}\r\nPenstock-Position: a b 1:1", ONE.upper() + "x", ONE + "\n"],
)
def test_what_is_no_traceparent_makes_no_header(content: str) -> None:
    changes = joined(said(content, 1), batch_of(2, 1, start=1))
    assert traces(encoded(changes, traces=of_messages())) == [None] * 3


@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_a_field_is_of_its_row_alone(images: Images) -> None:
    rows = [{"id": 1, "_trace": ONE}, {"id": 2}, {"id": 3, "_trace": 5}, None]
    changes = batch_of(
        4, images=images,
        after=[None if row is None else packed(row, images) for row in rows],
        before=[None, None, None, packed({"id": 4, "_trace": TWO}, images)],
    )  # fmt: skip
    known = Traces(TraceparentSettings(field="_trace"))
    assert traces(encoded(changes, traces=known, encoding=images)) == [ONE, None, None, TWO]


def test_other_headers_and_the_body_are_as_without_it() -> None:
    changes = joined(said(ONE, 1), batch_of(1, 1, start=1, schema_version="v7"))
    traced, plain = encoded(changes, traces=of_messages()), encoded(changes)
    assert traced.bodies == plain.bodies
    lines = traced.headers.to_pylist()[1].replace(f"traceparent: {ONE}\r\n".encode(), b"")
    assert lines == plain.headers.to_pylist()[1]


def test_a_message_of_several_changes_has_no_one_trace() -> None:
    with pytest.raises(ValidationError, match="set messages: change"):
        MessageSettings(messages="batch", traceparent={"field": "t"})


def test_what_is_remembered_is_bounded() -> None:
    known = of_messages()
    for first in range(0, 12_000, 1_000):
        encoded(joined(*[said(ONE, first + n) for n in range(1, 1_001)]), traces=known)
    assert traces(encoded(batch_of(1, 12_000, start=1), traces=known)) == [ONE]
    assert traces(encoded(batch_of(1, 1, start=1), traces=known)) == [None]
