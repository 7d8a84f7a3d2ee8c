"""A page's changes become the same messages whether Arrow ever has them or not."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.feeds.postgres.feed import PostgresFeed
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.microbatch.page_client import Handed
from penstock.model.page import Page
from penstock.native import describe, library
from penstock.native.batch import (
    NativeBatch,
    NativeDecoder,
    backend_of,
    last_committed,
    last_place,
)
from penstock.process.table_counts import TableCounts
from penstock.sinks.messages.message import Messages
from penstock.sinks.rows.intake import Gather
from penstock.sinks.rows.measured import Sample, counted, sampled, waited
from penstock.sinks.rows.part import Part
from penstock.sinks.settings import BatchSettings
from penstock.wire.pgoutput.context import Context
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from tests.sinks.changes import encoded
from tests.sinks.messages.test_formatter import FORMS, frames, without_kernel
from tests.wire.cells import examples
from tests.wire.golden import golden, names, pages
from tests.wire.pages import (
    EPOCH,
    begin,
    commit,
    delete,
    insert,
    logical_message,
    page_of,
    relation,
    truncate,
    update,
)

pytestmark = pytest.mark.skipif(library() is None, reason=f"the native library is {describe()}")

KEYED, KEYLESS, FULL = 1, 2, 3
TABLES = [
    relation(KEYED, {"id": 23, "note": 25}, key=["id"], name="a"),
    relation(KEYLESS, {"id": 23, "note": 25}, name="b.c", identity="n"),
    relation(FULL, {"id": 23, "note": 25}, key=["id", "note"], name="ü", identity="f"),
]
CELL = st.one_of(st.none(), st.text(st.characters(min_codepoint=1, codec="utf-8"), max_size=40))
NUMBER = st.integers(-(2**31), 2**31 - 1)


@st.composite
def rows(draw: Any) -> bytes:
    table = draw(st.sampled_from([KEYED, KEYED, KEYLESS, FULL]))
    number, cell = draw(NUMBER), draw(CELL)
    match draw(st.sampled_from("IIUUKDT")):
        case "I":
            return insert(table, [number, cell])
        case "U":
            return update(table, [number, draw(st.sampled_from([cell, ...]))])
        case "K":
            return update(table, [number, cell], key=[draw(NUMBER), None])
        case "D":
            return delete(table, key=[number, None])
    return truncate([table])


@st.composite
def transactions(draw: Any) -> Page:
    messages: list[bytes] = [*TABLES]
    for number in range(draw(st.integers(1, 4))):
        lsn = 1000 + 100 * number
        messages.append(begin(lsn, at=EPOCH + draw(st.integers(0, 2**40))))
        messages += draw(st.lists(rows(), min_size=1, max_size=6))
        messages.append(commit(lsn))
        if draw(st.integers(0, 5)) == 0:
            messages.append(logical_message("p", b"x", lsn=lsn + 50, transactional=False))
    marks = st.sampled_from(["", '{"system":"7","slot":"ü"}'])
    return page_of(messages, context=Context(mark=draw(marks)))


def decoder(images: Any, **more: Any) -> PgoutputDecoder:
    return PgoutputDecoder(DecoderSettings(backend="b", database="d", images=images, **more))


def both(page: Page, made: PgoutputDecoder) -> tuple[NativeBatch, pa.RecordBatch]:
    (native,) = made.decode_natively(page)
    (batch,) = made.decode(page)
    assert isinstance(native, NativeBatch)
    return native, batch


@settings(max_examples=examples(80))
@given(
    page=transactions(), form=st.sampled_from(FORMS), images=st.sampled_from(["json", "msgpack"])
)
def test_messages_and_frames_are_the_same(page: Page, form: dict[str, Any], images: str) -> None:
    native, batch = both(page, decoder(images))
    mine, theirs = encoded(native, limit=1 << 30, **form), encoded(batch, limit=1 << 30, **form)
    for start in {0, len(theirs) // 2}:
        assert frames(mine, start=start) == frames(theirs, start=start)
    assert (mine.runs, mine.weight, mine.keys.last_id) == (
        theirs.runs, theirs.weight, theirs.keys.last_id,
    )  # fmt: skip
    assert told(mine) == told(theirs)
    with without_kernel():
        assert told(encoded(batch, limit=1 << 30, **form))[:4] == told(theirs)[:4]


def told(messages: Messages) -> Sequence[Any]:
    """Column by column; of bodies the last, which are equal in value only."""
    keys = messages.keys
    columns = keys.cursors, keys.ordinals, keys.ids, messages.subjects, messages.headers
    return [*(column.to_pylist() for column in columns), messages.bodies.to_pylist()]


@settings(max_examples=examples(80))
@given(page=transactions(), images=st.sampled_from(["json", "msgpack"]))
def test_what_is_known_of_a_part_is_the_same(page: Page, images: str) -> None:
    native, batch = both(page, decoder(images))
    assert (len(native), native.num_rows) == (len(batch), len(batch))
    mine, theirs = Part.of(native), Part.of(batch)
    assert (mine.runs, mine.weight, mine.images) == (theirs.runs, theirs.weight, theirs.images)
    assert mine.is_keyed == (batch.column("key").null_count == 0) == theirs.is_keyed
    assert mine.last_id == theirs.last_id == batch.column("event_id")[-1].as_py()
    (run,) = mine.runs
    mark = batch.column("mark")[-1].as_py()
    assert mine.mark(run) == theirs.mark(run) == (None if mark is None else mark.encode())
    assert last_committed(native) == last_committed(batch)
    assert last_place(native) == last_place(batch) == run.last
    assert backend_of(native) == backend_of(batch) == "b"
    one, other = sampled(native), sampled(batch)
    assert np.array_equal(waited([(9.0, [one] * 2)]), waited([(9.0, [other] * 2)]))
    tables, others = TableCounts(), TableCounts()
    others.add([other] * 2)
    if isinstance(one, Sample):
        tables.add_counted(counted([one] * 2))
    else:  # a row without a time
        assert batch.column("committed_at").null_count
        tables.add([one] * 2)
    assert by_table(tables) == by_table(others)
    size = batch.get_total_buffer_size()
    assert size / 2 <= native.get_total_buffer_size() <= 2 * size
    assert mine.batch.equals(batch)
    assert mine.runs == Part.of(mine.batch).runs


def by_table(counts: TableCounts) -> Any:
    return {(each["backend"], each["table"]): each["applied"] for each in counts.take()}


@pytest.mark.parametrize("name", names())
def test_what_servers_sent_is_the_same(name: str) -> None:
    made = decoder("msgpack")
    for page in pages(golden(name), 2000):
        for native, batch in zip(made.decode_natively(page), made.decode(page), strict=True):
            if isinstance(native, NativeBatch):
                mine, theirs = encoded(native), encoded(batch)
                assert frames(mine, start=0) == frames(theirs, start=0)
                assert told(mine) == told(theirs)
                assert native.batch.equals(batch)


def test_a_feeds_own_decoder_hands_on_what_the_kernel_made() -> None:
    feed = PostgresFeed(PostgresSettings(connection="postgresql://host/db"))
    made: Any = pickle.loads(pickle.dumps(feed.decoder("msgpack")))
    page = page_of([begin(1), TABLES[0], insert(KEYED, [1, "x"]), commit(1)])
    (native,) = made.decode_natively(page)
    assert isinstance(made, NativeDecoder) and isinstance(native, NativeBatch)
    assert native.batch.equals(*made.decode(page))
    first, last = (each._replace(cursor=f"e0001-{each.cursor}") for each in (page.first, page.last))
    later = replace(page, first=first, last=last)
    (renamed,) = made.decode_natively(later)
    assert renamed.equals(*made.decode(later)) and last_place(renamed) == last


def test_pages_that_are_gathered_are_one_batch() -> None:
    made, gather = decoder("msgpack"), Gather(BatchSettings())
    pages = [
        page_of([begin(lsn), TABLES[0], insert(KEYED, [lsn, "x"]), commit(lsn)]) for lsn in range(3)
    ]
    for page in pages:
        (native,) = made.decode_natively(page)
        assert gather.takes(native)
        gather.add(native, 0.0)
    (batch,) = gather.take()
    expected = [batch for page in pages for batch in made.decode(page)]
    assert pa.Table.from_batches([batch]).equals(pa.Table.from_batches(expected))


@settings(max_examples=examples(30))
@given(page=transactions())
def test_a_page_that_a_filter_shortens_is_handed_on_the_same(page: Page) -> None:
    made = decoder("msgpack", tables=frozenset({("public", "a")}))
    mine, theirs = Handed(), Handed()
    mine.note(page, made.decode_natively(page))
    theirs.note(page, made.decode(page))
    assert mine._pages == theirs._pages


def test_memory_is_given_back() -> None:
    made = decoder("msgpack")
    page = page_of([begin(1), TABLES[0], insert(KEYED, [1, "x" * 1_000_000]), commit(1)])
    used = resident()
    for number in range(300):
        (native,) = made.decode_natively(page)
        assert isinstance(native, NativeBatch)
        if number % 2:
            column = native.column("after")
            del native
            assert len(column[0].as_py()) > 1_000_000
    assert resident() - used < 100_000_000, "of some 600 MB that were made"


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
