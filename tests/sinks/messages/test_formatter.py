"""With the compiled kernel and without it messages are the same: bodies in value, and subjects,
headers and frames byte for byte."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import numpy as np
import orjson
import ormsgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.change import IMAGES, schema
from penstock.sinks.jetstream.publishing.atomic import Atomic
from penstock.sinks.jetstream.publishing.flight import FlightBatch
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.messages.formatter import Formatter
from penstock.sinks.messages.message import Messages
from penstock.sinks.messages.pieces import (
    Behind,
    Count,
    Edge,
    Pick,
    RawPiece,
    Size,
    TextPiece,
    Time,
)
from penstock.sinks.messages.plain import LineBreak
from penstock.sinks.rows import kernel
from penstock.sinks.rows.columns import BINARY, Columns, Values
from penstock.sinks.rows.flow import Flow
from penstock.sinks.rows.intake import Order
from penstock.sinks.rows.loop import Tally
from penstock.sinks.rows.part import Part
from penstock.sinks.subject import parse_template
from tests.sinks.changes import encoded
from tests.wire.cells import examples

pytestmark = pytest.mark.skipif(
    kernel.kernel() is None, reason="the native library is not built: penstock/native/build.py"
)

FORMS = [
    {"layout": layout, "encoding": encoding, "messages": packing}
    for layout, encoding in (
        ("penstock", "msgpack"), ("penstock", "json"), ("penstock", "arrow"), ("debezium", "json"),
        ("cloudevents", "json"), ("puller", "json"),
    )
    for packing in ("change", "batch")
    if (encoding, packing) != ("arrow", "change")
]  # fmt: skip
SETTINGS = JetStreamSettings(url="nats://h")
TEMPLATE = parse_template("cdc.{collection}.{operation}")
WORD = st.text(max_size=8)
# Of every header size of MessagePack, and with everything that JSON escapes.
TEXT = st.one_of(
    WORD,
    st.text(st.characters(max_codepoint=0x7F), max_size=40),
    st.integers(28, 36).map("x".__mul__),
    st.sampled_from([254, 255, 256, 257, 65535, 65536]).map("y".__mul__),
)
TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(lambda t: t.replace(tzinfo=UTC))


def maybe(strategy: Any) -> Any:
    return st.one_of(st.none(), strategy)


@contextmanager
def without_kernel() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.sinks.rows.kernel.kernel", lambda: None)
        yield


@st.composite
def batches(draw: Any, images: Literal["msgpack", "json"]) -> pa.RecordBatch:
    """A batch of one origin, in order, with anything else in it; perhaps a slice of a larger."""
    count = draw(st.integers(1, 12))
    pack: Any = ormsgpack.packb if images == "msgpack" else lambda v: orjson.dumps(v).decode()
    image = maybe(st.dictionaries(WORD, maybe(WORD), max_size=2).map(pack))
    cursors = sorted(draw(st.lists(WORD.filter(_plain), min_size=count, max_size=count)), key=_raw)
    each: dict[str, Any] = {
        "operation": st.sampled_from(["INSERT", "UPDATE", "DELETE", "TRUNCATE", "MESSAGE"]),
        "tenant": maybe(WORD), "database": maybe(st.just("shop")), "namespace": maybe(WORD),
        "collection": maybe(st.sampled_from(["a", "b.c", "ü*"])), "document_id": maybe(TEXT),
        "relation_id": maybe(st.integers(-5, 2**40)), "schema_version": maybe(WORD), "key": image,
        "before": image,
        "after": image, "unchanged": maybe(st.lists(TEXT, max_size=20)),
        "transaction": maybe(TEXT), "committed_at": maybe(TIMES), "captured_at": maybe(TIMES),
        "event_id": WORD.filter(_plain), "delta": image, "mark": maybe(st.just('{"token":"ü"}')),
        "route": maybe(st.integers(0, 1023)),
    }  # fmt: skip
    columns = {
        name: draw(st.lists(one, min_size=count, max_size=count)) for name, one in each.items()
    }
    columns |= {
        "backend": [draw(WORD)] * count, "partition": [draw(WORD)] * count, "cursor": cursors,
        "ordinal": list(range(count)),
    }  # fmt: skip
    chosen = schema(images)
    batch = pa.RecordBatch.from_pydict({n: columns[n] for n in chosen.names}, schema=chosen)
    start = draw(st.integers(0, count - 1))
    return batch.slice(start, draw(st.integers(1, count - start)))


def _plain(text: str) -> bool:
    return "\r" not in text and "\n" not in text


def _raw(text: str) -> bytes:
    return text.encode()


def _values(messages: Messages, encoding: str) -> list[Any]:
    if encoding == "arrow":
        tables = [pa.ipc.open_stream(body).read_all() for body in messages.bodies.to_pylist()]
        return [(table.schema.metadata, table.to_pylist()) for table in tables]
    load: Any = orjson.loads if encoding == "json" else ormsgpack.unpackb
    return [load(body) for body in messages.bodies.to_pylist()]


class _Connection:
    inbox = "_INBOX.abc"


def frames(messages: Messages, *, ids: bool = True, start: int) -> bytes:
    atomic = Atomic(
        Tally(), Flow(SETTINGS.pressure, SETTINGS.breaker), stream="CDC", template=TEMPLATE
    )
    atomic._name = b"name"
    atomic._refusals.code = 0 if ids else 10201
    pieces = [messages.slice(0, start), messages.slice(start, len(messages))]
    batch = FlightBatch(7, [piece for piece in pieces if len(piece)])
    connection: Any = _Connection()
    return bytes(atomic._encode(connection, batch))


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(data=st.data(), form=st.sampled_from(FORMS), ids=st.booleans())
def test_messages_are_the_same(data: Any, form: dict[str, Any], ids: bool) -> None:
    batch = data.draw(batches(data.draw(st.sampled_from(["msgpack", "json"]))))
    formatted = encoded(batch, ids=ids, limit=1 << 30, **form)
    with without_kernel():
        plain = encoded(batch, ids=ids, limit=1 << 30, **form)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.sinks.messages.encode.Usual.of", lambda *_: None)
        apart = encoded(batch, ids=ids, limit=1 << 30, **form)  # one column after the other
    assert apart.bodies == formatted.bodies
    assert formatted.keys.ids == plain.keys.ids
    for name in ("subjects", "headers"):
        assert getattr(formatted, name).to_pylist() == getattr(plain, name).to_pylist()
        assert getattr(formatted, name) == getattr(apart, name)
    assert _values(formatted, form["encoding"]) == _values(plain, form["encoding"])
    for one in (formatted, plain, apart):
        rows = zip(one.headers.to_pylist(), one.bodies.to_pylist(), strict=True)
        assert one.sizes.tolist() == [len(headers) + len(body) for headers, body in rows]
        assert one.weight == sum(one.sizes.tolist())


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(data=st.data(), ids=st.booleans())
def test_frames_are_the_same_bytes(data: Any, ids: bool) -> None:
    messages = encoded(data.draw(batches("msgpack")), ids=ids, limit=1 << 30)
    start = data.draw(st.integers(0, len(messages)))
    written = frames(messages, ids=ids, start=start)
    with without_kernel():
        assert frames(messages, ids=ids, start=start) == written


@settings(max_examples=examples(60))
@given(
    rows=st.lists(st.tuples(WORD, st.integers(0, 3), st.sampled_from("ab")), min_size=1),
    data=st.data(),
)
def test_batches_are_ordered_and_cut_the_same_way(rows: list[Any], data: Any) -> None:
    names = schema("json").names
    columns: dict[str, Any] = {name: [None] * len(rows) for name in names}
    columns |= {"backend": ["b"] * len(rows), "event_id": ["e"] * len(rows)}
    columns |= {"operation": ["INSERT"] * len(rows), "partition": [row[2] for row in rows]}
    columns |= {"cursor": [row[0] for row in rows], "ordinal": [row[1] for row in rows]}
    batch = pa.RecordBatch.from_pydict(columns, schema=schema("json"))
    formatted = [known(part) for part in Order().arrange(batch)]
    with without_kernel():
        assert [known(part) for part in Order().arrange(batch)] == formatted


def known(part: Part) -> Any:
    rows = part.batch.to_pylist()
    places: dict[str, list[Any]] = {}
    assert [run.start for run in part.runs] == [0, *(run.stop for run in part.runs[:-1])]
    assert part.runs[-1].stop == len(rows)
    for run in part.runs:
        found = rows[run.start : run.stop]
        assert {(row["backend"], row["partition"]) for row in found} == {tuple(run.origin)}
        mine = [(row["cursor"], row["ordinal"]) for row in found]
        assert [tuple(run.first), tuple(run.last)] == [mine[0], mine[-1]]
        places.setdefault(run.origin.partition, []).extend(mine)
    assert all(one == sorted(set(one)) for one in places.values())
    assert part.weight in (None, sum(len(row[name] or "") for row in rows for name in IMAGES))
    return rows


@pytest.mark.parametrize(
    "when", [datetime(1970, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999),
             datetime(2000, 2, 29), datetime(1900, 2, 28), datetime(9999, 12, 31, 23, 59, 59),
             datetime(1, 1, 1), datetime(2100, 3, 1) - timedelta(microseconds=1)]
)  # fmt: skip
def test_any_calendar_day_is_written(when: datetime) -> None:
    column = pa.array([when.replace(tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    formatter = Formatter([Time("t", "json", b"null")], ("t",), batch=False)
    said = orjson.loads(formatter.run(Columns(1, t=column))[0].as_py())
    assert said == f"{when.isoformat(timespec='microseconds')}Z"


def test_sizes_and_counts() -> None:
    pieces = [Size(2, 4), b" ", Pick("i", "v"), Count()]
    formatter = Formatter(pieces, ("i", "v"), batch=False)
    values = Values([b"", b"four"])
    columns = Columns(3, i=np.array([1, 0, 1], np.int32), v=values)
    assert formatter.run(columns, 9).to_pylist() == [b"5 four9", b"2 10", b"6 four11"]
    assert formatter.bytes(columns, 9).to_pybytes() == b"5 four92 106 four11"
    with without_kernel():
        assert formatter.bytes(columns, 9).to_pybytes() == b"5 four92 106 four11"


@given(
    ids=st.lists(WORD, min_size=1, max_size=5),
    said=st.lists(st.binary(max_size=40), min_size=5, max_size=9),
    data=st.data(),
)
def test_rows_know_where_they_are(ids: list[str], said: list[bytes], data: Any) -> None:
    start = data.draw(st.integers(0, len(ids) - 1))
    at = data.draw(st.integers(0, len(said) - 4))
    first = data.draw(st.integers(0, len(said) - 1))
    rows = ids[start:]
    middle, head, last, only = said[at : at + 4]
    edge = [only] if len(rows) == 1 else [head, *[middle] * (len(rows) - 2), last]
    before = [said[first], *(row.encode() for row in rows[:-1])]
    pieces = [Size(1, 3), Edge("v", at), Behind("ids", "v", first)]
    formatter = Formatter(pieces, ("ids", "v"), batch=False)
    column = pa.array(ids, pa.string()).slice(start)
    expected = [b"%d%b%b" % (len(a + b), a, b) for a, b in zip(edge, before, strict=True)]
    columns = Columns(len(rows), ids=column, v=Values(said))
    assert formatter.run(columns).to_pylist() == expected
    bound = kernel.kernel().penstock_format_bound(formatter.native, 3, columns.native, len(rows))
    assert sum(map(len, expected)) <= bound
    with without_kernel():
        assert formatter.run(columns).to_pylist() == expected


def test_a_line_break_is_told_by_its_row() -> None:
    column = pa.array(["a", None, "b\nc"], pa.string())
    formatter = Formatter([RawPiece("t", "line", b"none")], ("t",), batch=False)
    for rows in (3, 2):
        for way in (None, without_kernel):
            with way() if way else pytest.MonkeyPatch.context():
                part = column.slice(0, rows)
                if rows == 3:
                    with pytest.raises(LineBreak) as caught:
                        formatter.run(Columns(3, t=part))
                    assert caught.value.row == 2
                else:
                    assert formatter.run(Columns(2, t=part)).to_pylist() == [b"a", b"none"]


def test_nothing_is_written_behind_the_bound() -> None:
    """The worst case of JSON: every byte becomes six."""
    column = pa.array([b"\x01" * 1000, b"", None], BINARY)
    formatter = Formatter([TextPiece("t", "json", b"null")], ("t",), batch=False)
    columns = Columns(3, t=column)
    bound = kernel.kernel().penstock_format_bound(formatter.native, 1, columns.native, 3)
    written = sum(map(len, formatter.run(columns).to_pylist()))
    assert written == 6002 + 2 + 4
    assert written <= bound
