"""The layout of the how-to page, installed as anybody's would be: it is written and read back."""

from pathlib import Path
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa
import pytest

from penstock.consumer.tail.bodies import changes_of
from penstock.model.errors import Malformed, SettingsError
from penstock.nats.protocol import headers_of
from penstock.process.plugins import plugin
from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.publishing.publisher import nats_framing
from penstock.sinks.messages.encoders import encoder
from penstock.sinks.messages.message import Messages
from penstock.sinks.rows.part import Part
from penstock.sinks.subject import parse_template
from tests.docs.pages import DOCS, blocks, section
from tests.sinks.changes import batch_of

# a fixture

PAGE = section((DOCS / "how-to" / "write-a-sink.md").read_text(), "A layout of your own")
LOAD: dict[str, Any] = {"json": orjson.loads, "msgpack": ormsgpack.unpackb}


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "short_layout.py").write_text(blocks(PAGE, "python")[0])
    info = tmp_path / "short_layout-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: short-layout\nVersion: 1.0\n")
    points = blocks(PAGE, "toml")[0].replace(
        'project.entry-points."penstock.layouts"', "penstock.layouts"
    )
    (info / "entry_points.txt").write_text(points.replace('"', ""))
    monkeypatch.syspath_prepend(tmp_path)
    plugin.cache_clear()
    yield
    plugin.cache_clear()


def written(batch: pa.RecordBatch, **fields: Any) -> Messages:
    settings = JetStreamSettings(url="nats://h", layout="short", **fields)
    template = parse_template(settings.subject)
    return encoder(settings, template, nats_framing()).encode(Part.of(batch))


@pytest.mark.parametrize("images", ["json", "msgpack"])
@pytest.mark.parametrize("encoding", ["json", "msgpack"])
@pytest.mark.parametrize("packing", ["change", "batch"])
def test_the_layout_of_the_page_is_written_and_read_back(
    images: Any, encoding: str, packing: Any
) -> None:
    batch = batch_of(3, 7, images=images, operation=["INSERT", "UPDATE", "UPDATE"])
    messages = written(batch, encoding=encoding, messages=packing)
    bodies = [LOAD[encoding](body) for body in messages.bodies.to_pylist()]
    first = bodies[0] if packing == "change" else bodies[0][0]
    place = "00000000/00000007:0"
    assert first == {
        "id": f"default:{place}", "of": ["default", "items"], "did": "insert",
        "row": {"id": 0, "name": f"n{place}"},
    }  # fmt: skip
    headers = [headers_of(one + b"\r\n") for one in messages.headers.to_pylist()]
    assert {one["Penstock-Schema"] for one in headers} == {"short-1"}
    pairs = zip(headers, messages.bodies.to_pylist(), strict=True)
    found = [change for one, body in pairs for change in changes_of(one, body)]
    names = ("event_id", "operation", "backend", "collection")
    assert [[change[name] for name in names] for change in found] == [
        [row["event_id"], row["operation"], "default", "items"] for row in batch.to_pylist()
    ]


def test_numbers_keep_their_digits() -> None:
    digits = b'{"n":123456789012345678901234567890.10}'
    (body,) = written(batch_of(1, after=digits.decode()), encoding="json").bodies.to_pylist()
    assert b'"row":' + digits in body


def test_a_body_that_is_no_such_layout_is_malformed() -> None:
    for body in (b"{}", b"[1]", b'{"id":"a","of":1,"did":"x","row":null}'):
        with pytest.raises(Malformed):
            changes_of({"Penstock-Schema": "short-1"}, body)


@pytest.mark.slow
def test_an_unknown_layout_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="short") as caught:
        JetStreamSettings(url="nats://h", layout="shart")
    assert "debezium" in str(caught.value)
    with pytest.raises(SettingsError, match="no layout 'other'"):
        changes_of({"Penstock-Schema": "other-1"}, b"{}")
    with pytest.raises(ValueError, match="set encoding: json or msgpack"):
        written(batch_of(1), encoding="arrow", messages="batch")
