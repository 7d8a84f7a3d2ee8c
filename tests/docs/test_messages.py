"""The reference of messages is true: every combination, header and field, and no other."""

import re
from itertools import product
from pathlib import Path
from typing import Any, get_args

import orjson
import pyarrow as pa
import pytest
from psycopg import postgres
from pydantic import ValidationError

from penstock.model.change import schema
from penstock.nats.protocol import headers_of
from penstock.process.plugins import known
from penstock.sinks.jetstream.publishing.publisher import nats_framing
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.messages.encoders import encoder
from penstock.sinks.messages.message import Messages
from penstock.sinks.messages.settings import Encoding, Packing
from penstock.sinks.rows.part import Part
from penstock.sinks.subject import parse_template
from penstock.wire.pgoutput.values import BUILT_IN, value_of

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "messages.md").read_text()
TEMPLATE = parse_template("cdc.{collection}.{operation}")
Row = list[list[str]]


def table(heading: str) -> Row:
    """The quoted names in the cells of a heading's table, row by row."""
    section = PAGE.partition(f"# {heading}\n")[2].partition("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[", ".join(re.findall(r"`([^`]+)`", c)) for c in line.split(" | ")] for line in lines]


def first(heading: str) -> list[str]:
    """The names of a table's first column."""
    return [name for row in table(heading) for name in row[0].split(", ")]


def messages(operation: str = "INSERT", **fields: Any) -> Messages:
    columns: dict[str, Any] = {name: [None] for name in schema("json").names}
    columns |= {"backend": ["b"], "partition": ["p"], "cursor": ["c"], "ordinal": [0]}
    columns |= {"operation": [operation], "event_id": ["b:c:0"], "collection": ["t"]}
    batch = pa.RecordBatch.from_pydict(columns, schema=schema("json"))
    settings = JetStreamSettings(url="nats://h", **fields)
    return encoder(settings, TEMPLATE, nats_framing()).encode(Part.of(batch))


def body(operation: str = "INSERT", **fields: Any) -> Any:
    return orjson.loads(messages(operation, encoding="json", **fields).bodies[0].as_py())


def headers(**fields: Any) -> dict[str, str]:
    return headers_of(messages(**fields).headers[0].as_py() + b"\r\n")


@pytest.mark.slow
def test_every_combination_is_documented_or_refused() -> None:
    documented = {tuple(row[:3]): row[3] for row in table("Messages")}
    for chosen in product(get_args(Packing), known("layouts"), get_args(Encoding)):
        fields = dict(zip(("messages", "layout", "encoding"), chosen, strict=True))
        if chosen in documented:
            assert headers(**fields)["Content-Type"] == documented[chosen]
        else:
            with pytest.raises(ValidationError, match=r"set (encoding|messages)"):
                JetStreamSettings(url="nats://h", **fields)


def test_every_header_of_a_body_is_documented() -> None:
    for packing in get_args(Packing):
        assert headers(messages=packing).keys() <= set(first("Headers"))
    assert headers(layout="debezium", encoding="json")["Penstock-Schema"] == "debezium-1"


def test_every_field_is_documented_in_its_order() -> None:
    assert list(body()) == first("The layout `penstock`")
    several = body(messages="batch")
    assert list(several) == first("Several changes in one message")
    assert several["fields"] == table("Several changes in one message")[1][2].split(", ")
    stream = messages(messages="batch", encoding="arrow").bodies[0].as_py()
    assert pa.ipc.open_stream(stream).schema.names == first("Arrow")


def test_every_field_of_the_other_layouts_is_documented() -> None:
    documented = first("The layout `debezium`")
    for operation, absent in (("INSERT", "message"), ("MESSAGE", "after")):
        envelope = body(operation, layout="debezium")
        envelope |= {"updateDescription": None}  # see tests/sinks/messages/test_layouts.py
        source = [f"source.{name}" for name in envelope.pop("source")]
        assert sorted([*envelope, *source]) == sorted(set(documented) - {absent})
    event = body(layout="cloudevents")
    assert sorted(event) == sorted(first("The layout `cloudevents`"))
    assert list(event["data"]) == first("The layout `penstock`")
    assert list(body(layout="puller")) == first("The layout `puller`")


_OTHER_NAMES = {"pg_snapshot": 5038}  # which psycopg does not have


def _oid(name: str) -> int:
    scalar = name.removesuffix("[]")
    known = postgres.types.get(scalar)
    if known is None:
        return _OTHER_NAMES[scalar]
    return known.array_oid if scalar != name else known.oid


def _values() -> list[tuple[list[str], str, str, str]]:
    section = PAGE.partition("## Values of PostgreSQL\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    found = []
    for kinds, *cells in (line.strip("| ").split(" | ") for line in rows):
        text, as_json, packed = (cell.strip("`") for cell in cells)
        found.append((re.findall(r"`([^`]+)`", kinds), text, as_json, packed))
    return found


def test_every_built_in_type_is_documented() -> None:
    names = {name for kinds, *_ in _values() for name in kinds if not name.endswith("[]")}
    assert {_oid(name) for name in names} == set(BUILT_IN)


@pytest.mark.parametrize(("kinds", "text", "as_json", "packed"), _values())
def test_values_are_as_documented(kinds: list[str], text: str, as_json: str, packed: str) -> None:
    for name in kinds:
        value = value_of(_oid(name), {}, "json", set())[0](text.encode())
        image = orjson.dumps(value)
        assert image.replace(b", ", b",") == as_json.encode().replace(b", ", b",")
        other = value_of(_oid(name), {}, "msgpack", set())[0](text.encode())
        if isinstance(other, bytes):
            assert packed == f"the bytes `{other.hex()}"
        else:
            assert other == orjson.loads(as_json if packed == "same" else packed)
