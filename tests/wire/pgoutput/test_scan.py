"""Broken pages are Malformed, never another exception, and never show what is in a row."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.wire.pgoutput.context import Context
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from penstock.wire.pgoutput.messages import StreamStart
from tests.wire.cells import examples
from tests.wire.golden import golden
from tests.wire.pages import (
    begin,
    commit,
    copy_data,
    delete,
    frame,
    insert,
    logical_message,
    page_of,
    relation,
    truncate,
    update,
)
from tests.wire.reference import image, reference

LSN = 255
COLUMNS = {"id": 20, "t": 25, "b": 16, "n": 1700, "f": 701, "z": 1184, "j": 3802, "a": 1009,
           "x": 17, "d": 1082}  # fmt: skip
TABLE = relation(1, COLUMNS, key=["id"])
FULL = [1, "text", "t", "1.50", "2.5", "2026-01-02 03:04:05+00", '{"a": [1]}', "{a,NULL}",
        "\\x00ff", "2026-01-02"]  # fmt: skip
MANY = 43
DECODERS = [
    PgoutputDecoder(DecoderSettings(backend="b", database="db", images="json")),
    PgoutputDecoder(DecoderSettings(backend="b", database="db", images="msgpack")),
]


def decode(payload: bytes, context: Context | None = None, like: Page | None = None) -> Any:
    """Decodes both ways; the page's other fields are those of `like`."""
    page = Page(
        partition=PartitionId("p"),
        first=like.first if like else Place("00000000/000000FF", 0),
        last=like.last if like else Place("00000000/000000FF", 0),
        count=like.count if like else 1,
        captured_at=0,
        context=(context or Context()).pack(),
        payload=payload,
    )
    batches = [decoder.decode(page) for decoder in DECODERS]
    return batches[0]


def transaction(*messages: bytes) -> bytes:
    return b"".join(map(frame, [begin(LSN), TABLE, *messages, commit(LSN)]))


def old_row(*cells: object) -> list[object]:
    return [*cells, *[None] * (len(COLUMNS) - len(cells))]


ROWS = [
    insert(1, FULL),
    update(1, FULL),
    update(1, [1, ..., *FULL[2:]], key=old_row(2)),
    update(1, FULL, old=FULL),
    delete(1, key=old_row(1)),
    delete(1, old=FULL),
    truncate([1]),
    logical_message("p", b"content", lsn=9, transactional=True),
]


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda raw: chr(raw[0]))
def test_a_row_message_cut_anywhere_is_malformed(row: bytes) -> None:
    assert decode(transaction(row))
    for end in range(len(row)):
        with pytest.raises(Malformed):
            decode(transaction(row[:end]))


@pytest.mark.parametrize("row", ROWS, ids=lambda raw: chr(raw[0]))
def test_bytes_behind_a_row_are_malformed(row: bytes) -> None:
    for tail in (b"\0", b"n", b"t\0\0\0\1x"):
        with pytest.raises(Malformed):
            decode(transaction(row + tail))


@pytest.mark.parametrize("row", ROWS, ids=lambda raw: chr(raw[0]))
def test_a_payload_cut_anywhere_is_malformed_or_ends_between_messages(row: bytes) -> None:
    payload = transaction(row)
    whole = len(payload) - len(frame(commit(LSN)))
    for end in range(len(payload)):
        if end == whole:
            assert decode(payload[:end])
        else:
            with pytest.raises(Malformed):
                decode(payload[:end])


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(at=st.integers(0, 10**6), value=st.integers(0, 255), which=st.integers(0, len(ROWS) - 1))
def test_a_changed_byte_is_malformed_or_a_change(at: int, value: int, which: int) -> None:
    payload = bytearray(transaction(ROWS[which]))
    payload[at % len(payload)] = value
    try:
        (batch,) = decode(bytes(payload))
    except Malformed:
        return
    batch.validate(full=True)


@given(noise=st.binary(max_size=200))
def test_noise_is_malformed(noise: bytes) -> None:
    with pytest.raises(Malformed):
        decode(noise)


@given(noise=st.binary(max_size=100))
def test_framed_noise_is_malformed(noise: bytes) -> None:
    with pytest.raises(Malformed):
        decode(copy_data(noise))
    with pytest.raises(Malformed):
        decode(frame(begin(LSN)) + frame(TABLE) + frame(b"I" + noise))


@given(noise=st.binary(max_size=100))
def test_a_context_of_noise_is_malformed(noise: bytes) -> None:
    with pytest.raises(Malformed):
        Context.unpack(noise)


BROKEN_CELLS = {
    "id": ["", "x", "1.5"], "t": [b"\xff", b"a\xc3"], "b": ["", "true"], "n": [b"\xff"],
    "f": ["", "x", "1e999"], "z": ["yesterday"], "j": [b'"\xff"', "", "{", "NaN"],
    "a": ["", "{", "{\"a}", b"{\xff}"], "x": ["00ff", "\\x0"], "d": ["today!!!"],
}  # fmt: skip


@pytest.mark.parametrize("column", COLUMNS)
def test_a_broken_value_names_its_table_and_column_and_not_itself(column: str) -> None:
    position = list(COLUMNS).index(column)
    for cell in BROKEN_CELLS[column]:
        row = list(FULL)
        row[position] = cell
        for message in (insert(1, row), update(1, row), update(1, FULL, old=row)):
            with pytest.raises(Malformed, match=f"column {column} of public.t") as caught:
                decode(transaction(message))
            text = str(cell) if isinstance(cell, str) else repr(cell)[2:-1]
            assert len(text) < 4 or text not in str(caught.value)
            assert caught.value.__cause__ is None
            assert caught.value.__suppress_context__


@pytest.mark.parametrize("column", COLUMNS)
def test_one_broken_value_among_many_rows_is_found(column: str) -> None:
    row = list(FULL)
    position = list(COLUMNS).index(column)
    row[position] = BROKEN_CELLS[column][0]
    rows = [insert(1, FULL)] * MANY
    page = page_of([begin(LSN), TABLE, *rows, insert(1, row), *rows, commit(LSN)])
    for decoder in DECODERS:
        with pytest.raises(Malformed, match=f"column {column} of public.t"):
            decoder.decode(page)


def test_a_row_with_another_tuple_than_a_new_one_is_malformed() -> None:
    wrong = insert(1, FULL).replace(b"N", b"K", 1)
    for before, after in ((0, 0), (0, MANY), (MANY, 0), (MANY, MANY)):
        rows = [*[insert(1, FULL)] * before, wrong, *[insert(1, FULL)] * after]
        with pytest.raises(Malformed, match="where b'N' belongs"):
            decode(transaction(*rows), like=LONG)


def test_a_table_without_columns_has_rows() -> None:
    rows = [begin(LSN), relation(1, {}), *[insert(1, [])] * MANY, commit(LSN)]
    (batch,) = DECODERS[0].decode(page_of(rows))
    assert batch.column("after").to_pylist() == ["{}"] * MANY


@pytest.mark.slow
def test_a_table_of_1600_columns_has_rows() -> None:
    columns = {f"column {number} \" \\ 'x": 23 for number in range(1600)}
    rows = [insert(1, list(range(1600)))] * MANY
    page = page_of([begin(LSN), relation(1, columns), *rows, commit(LSN)])
    (batch,) = DECODERS[1].decode(page)
    wanted = dict(zip(columns, range(1600), strict=True))
    assert [image(data, "msgpack") for data in batch.column("after").to_pylist()] == [wanted] * MANY


def test_what_a_page_may_not_hold_is_malformed() -> None:
    row = insert(1, FULL)
    stream = golden("pg16-v2")
    start = next(sent.raw for sent in stream.sent if isinstance(sent.message, StreamStart))
    cases: dict[str, list[bytes]] = {
        "outside of a transaction": [TABLE, row],
        "transactional message comes outside": [
            logical_message("p", b"", lsn=1, transactional=True)
        ],
        "begins inside another": [begin(LSN), begin(LSN)],
        "did not begin": [begin(LSN), TABLE, row, commit(LSN + 1)],
        "relation 2 was not announced": [begin(LSN), TABLE, insert(2, FULL)],
        "relation 3 was not announced": [begin(LSN), TABLE, truncate([3])],
        "has 1 columns, its relation has 10": [begin(LSN), TABLE, insert(1, [1])],
        "StreamStart message": [begin(LSN), start],
        "no pgoutput message": [begin(LSN), b"?"],
        "column t of public.t came in binary": [
            begin(LSN), relation(1, {"t": 25}), b"I\0\0\0\1N\0\1b\0\0\0\1x"
        ],
        "can't be decoded": [begin(LSN), TABLE, insert(1, [..., *FULL[1:]])],
        "0 changes|and has 0": [begin(LSN), TABLE, commit(LSN)],
    }  # fmt: skip
    for words, messages in cases.items():
        with pytest.raises(Malformed, match=words):
            decode(b"".join(map(frame, messages)))


def test_a_time_beyond_all_times_is_malformed() -> None:
    late = begin(LSN)[:9] + b"\x7f" + b"\xff" * 7 + begin(LSN)[17:]
    with pytest.raises(Malformed):
        decode(b"".join(map(frame, [late, TABLE, insert(1, FULL)])))


def test_a_context_with_something_else_among_its_relations_is_malformed() -> None:
    with pytest.raises(Malformed, match="Begin among its relations"):
        decode(frame(commit(LSN)), Context(commit_lsn=LSN, relations=(begin(LSN),)))


LONG = page_of([begin(LSN), TABLE, *[insert(1, FULL)] * MANY, commit(LSN)])

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
CELLS = [
    st.integers(-(2**63), 2**63 - 1), TEXT, st.sampled_from("tf"),
    st.decimals(allow_nan=True, allow_infinity=False).map(str), st.floats().map(
        lambda value: {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(
            repr(value), repr(value))),
    st.sampled_from(["infinity", "2026-01-02 03:04:05.6+00", "0044-03-15 00:00:00+00 BC"]),
    st.sampled_from(["null", "1", '{"a": [1, {"b": "c"}]}', "12345678901234567890123", "[]"]),
    st.sampled_from(["{}", "{a,b}", '{"a b",NULL}', "{{a},{b}}", "[0:0]={x}"]),
    st.binary().map(lambda data: "\\x" + data.hex()), st.dates().map(str),
]  # fmt: skip
NEW = st.tuples(CELLS[0], *[st.none() | cell for cell in CELLS[1:]]).map(list)
CHANGED = st.tuples(CELLS[0], *[st.none() | st.just(...) | c for c in CELLS[1:]]).map(list)
MESSAGES = st.one_of(
    NEW.map(lambda row: insert(1, row)),
    CHANGED.map(lambda row: update(1, row)),
    st.tuples(CHANGED, CELLS[0]).map(lambda pair: update(1, pair[0], key=old_row(pair[1]))),
    st.tuples(CHANGED, NEW).map(lambda pair: update(1, pair[0], old=pair[1])),
    CELLS[0].map(lambda key: delete(1, key=old_row(key))),
    NEW.map(lambda row: delete(1, old=row)),
    st.just(truncate([1])),
)


@pytest.mark.slow
@given(messages=st.lists(MESSAGES, min_size=1, max_size=5), times=st.sampled_from([1, MANY]))
def test_the_row_path_agrees_with_the_messages(messages: list[bytes], times: int) -> None:
    page = page_of([begin(LSN), TABLE, *(messages * times), commit(LSN)])
    for decoder in DECODERS:
        images = decoder.settings.images
        (batch,) = decoder.decode(page)
        for row, wanted in zip(batch.to_pylist(), reference(page, images), strict=True):
            for name in ("key", "before", "after"):
                row[name] = image(row[name], images)
            assert {name: row[name] for name in wanted if name != "committed_at"} == {
                name: value for name, value in wanted.items() if name != "committed_at"
            }
