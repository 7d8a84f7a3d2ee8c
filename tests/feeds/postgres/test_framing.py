"""Bytes of a replication stream -> pages, without a server."""

import struct
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import Malformed, PenstockError, SettingsError, Unavailable
from penstock.model.position import Place
from penstock.wire.pgoutput.context import Context
from penstock.wire.pgoutput.lsn import format_lsn
from tests.feeds.postgres.loop import (
    ANNOUNCED,
    INT,
    OTHER,
    TABLE,
    THIRD,
    Loop,
    changes,
    framed,
    transaction,
)
from tests.wire.cells import examples
from tests.wire.pages import (
    begin,
    commit,
    frame,
    insert,
    keepalive,
    logical_message,
    relation,
    truncate,
)


def stream_start(xid: int) -> bytes:
    return b"S" + struct.pack(">IB", xid, 1)


def stream_commit(xid: int, lsn: int) -> bytes:
    return b"c" + struct.pack(">IBQQq", xid, 0, lsn, lsn + 8, 0)


def stream_abort(xid: int, subxid: int) -> bytes:
    return b"A" + struct.pack(">II", xid, subxid)


MIXED = b"".join((
    framed(begin(16), relation(TABLE, INT, key=["id"])),
    framed(*(insert(TABLE, [number]) for number in range(5)), commit(16)),
    keepalive(wal_end=20),
    framed(logical_message("a", b"b", lsn=32, transactional=False)),
    framed(begin(32), relation(OTHER, INT), insert(OTHER, [7]), truncate([TABLE, OTHER])),
    framed(logical_message("a", b"b", lsn=30, transactional=True), insert(TABLE, [8]), commit(32)),
    framed(begin(48), commit(48)),
    framed(stream_start(9), relation(TABLE, INT, xid=9), insert(TABLE, [1], xid=9), b"E"),
    framed(stream_start(9), insert(TABLE, [2], xid=10), b"E"),
    transaction(64, 9),
    framed(stream_abort(9, 10), stream_start(9), insert(TABLE, [3], xid=9), b"E"),
    framed(stream_commit(9, 80)),
    framed(begin(96), relation(TABLE, {"id": 23, "n": 23}), insert(TABLE, [1, 2]), commit(96)),
))  # fmt: skip


def test_a_transaction_becomes_a_page_at_its_own_places() -> None:
    (page,) = Loop().feed(ANNOUNCED, transaction(16, 1, 2, 3)).all()
    cursor = format_lsn(16)
    assert (page.first, page.last, page.count) == (Place(cursor, 0), Place(cursor, 2), 3)
    assert [change[:2] for change in changes([page])] == [(cursor, n) for n in range(3)]
    assert page.captured_at == 1_000_000


def test_an_empty_transaction_makes_no_page_and_is_acknowledged() -> None:
    loop = Loop().feed(framed(begin(16), commit(16)))
    assert loop.all() == []
    assert loop.progress.durable == 24


def test_a_page_is_cut_by_rows_and_the_next_starts_inside_the_transaction() -> None:
    loop = Loop(rows=2).feed(ANNOUNCED, transaction(16, 1, 2, 3, 4, 5))
    assert [page.count for page in loop.all()] == [2, 2, 1]
    contexts = [Context.unpack(page.context) for page in loop.pages]
    assert [(each.commit_lsn, each.ordinal) for each in contexts] == [(0, 0), (16, 2), (16, 4)]
    assert len(changes(loop.pages)) == 5


@pytest.mark.parametrize("native", [True, False])
def test_pages_of_whole_transactions_have_one_context(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr("penstock.feeds.postgres.framing.NativeWalk.create", lambda: None)
    loop = Loop(rows=3).feed(ANNOUNCED, transaction(16, 1))
    for lsn in range(32, 128, 16):
        loop.all()  # each is cut
        loop.feed(transaction(lsn, 1, 2))
    loop.all()
    assert [page.count for page in loop.pages] == [1, *[2] * 6]
    assert len({page.context for page in loop.pages}) == 1
    assert len(changes(loop.pages)) == 13


def test_a_page_is_cut_by_size() -> None:
    row = len(frame(insert(TABLE, [1])))
    loop = Loop(size=3 * row).feed(ANNOUNCED, transaction(16, *range(7)))
    assert [page.count for page in loop.all()] == [3, 3, 1]


def test_a_page_spans_transactions_and_keepalives() -> None:
    loop = Loop().feed(ANNOUNCED, transaction(16, 1), keepalive(wal_end=24), transaction(32, 2, 3))
    (page,) = loop.all()
    assert [change[:2] for change in changes([page])] == [
        (format_lsn(16), 0),
        (format_lsn(32), 0),
        (format_lsn(32), 1),
    ]


@pytest.mark.parametrize("had", range(6))
def test_what_the_reader_has_is_dropped_inside_a_truncate_too(had: int) -> None:
    def stream() -> bytes:
        return framed(
            begin(16), insert(TABLE, [1]), truncate([TABLE, OTHER, THIRD]), insert(OTHER, [2]),
            commit(16),
        )  # fmt: skip

    announced = framed(*(relation(oid, INT) for oid in (TABLE, OTHER, THIRD)))
    whole = changes(Loop().feed(announced, stream()).all())
    assert len(whole) == 5
    after = Place(format_lsn(16), had - 1)
    assert changes(Loop(after).feed(announced, stream()).all()) == whole[had:]


def test_transactions_before_the_place_are_dropped_whole() -> None:
    loop = Loop(Place(format_lsn(32), 0)).feed(
        ANNOUNCED, transaction(16, 1, 2), transaction(32, 3), transaction(48, 4)
    )
    assert [change[0] for change in changes(loop.all())] == [format_lsn(48)]


def test_what_was_dropped_is_acknowledged_only_when_the_place_is_durable() -> None:
    after = Place(format_lsn(16), 1)
    loop = Loop(after).feed(ANNOUNCED, transaction(16, 1, 2))
    loop.feed(keepalive(wal_end=64))
    assert loop.progress.durable == 0
    loop.progress.acknowledged(after)
    assert loop.progress.durable == 64


def test_a_row_before_a_schema_change_keeps_the_old_relation() -> None:
    loop = Loop().feed(
        ANNOUNCED,
        framed(begin(16), insert(TABLE, [1]), relation(TABLE, {"id": 23, "n": 23})),
        framed(insert(TABLE, [2, 3]), commit(16)),
    )
    assert [change[3] for change in changes(loop.all())] == ['{"id":1}', '{"id":2,"n":3}']
    assert [page.count for page in loop.pages] == [1, 1]


def test_a_relation_that_says_nothing_new_does_not_cut() -> None:
    loop = Loop().feed(ANNOUNCED, transaction(16, 1), ANNOUNCED, transaction(32, 2))
    assert [page.count for page in loop.all()] == [2]


def test_a_context_has_only_the_relations_in_use() -> None:
    many = framed(*(relation(oid, INT) for oid in range(30_000, 30_100)))
    loop = Loop(rows=1).feed(ANNOUNCED, many, transaction(16, 1, 2))
    for page in loop.all():
        assert Context.unpack(page.context).relations == (relation(TABLE, INT, key=["id"]),)


def test_each_relation_is_described_once_when_it_comes() -> None:
    loop = Loop(rows=1).feed(ANNOUNCED, transaction(16, 1, 2, 3))
    assert loop.described == [relation(TABLE, INT, key=["id"])]


def test_a_streamed_transaction_shows_at_its_commit_without_its_aborted_part() -> None:
    loop = Loop().feed(
        framed(stream_start(9), relation(TABLE, INT, xid=9), insert(TABLE, [1], xid=9), b"E"),
        framed(stream_start(9), insert(TABLE, [2], xid=10), insert(TABLE, [3], xid=9), b"E"),
    )
    assert loop.all() == []
    loop.feed(framed(stream_abort(9, 10), stream_commit(9, 80)))
    assert [change[1:] for change in changes(loop.all())] == [
        (0, "INSERT", '{"id":1}'),
        (1, "INSERT", '{"id":3}'),
    ]
    assert Context.unpack(loop.pages[0].context).streamed
    assert len(loop.streams) == 0


def test_a_streamed_transaction_that_aborts_leaves_nothing() -> None:
    loop = Loop().feed(framed(stream_start(9), insert(TABLE, [1], xid=9), b"E", stream_abort(9, 9)))
    assert loop.all() == []
    assert (len(loop.streams), loop.streams.held) == (0, 0)


@pytest.mark.parametrize("had", range(3))
def test_resuming_inside_a_streamed_transaction(had: int) -> None:
    stream = framed(
        stream_start(9), relation(TABLE, INT, xid=9), insert(TABLE, [0], xid=9),
        truncate([TABLE], xid=9), insert(TABLE, [2], xid=9), b"E", stream_commit(9, 80),
    )  # fmt: skip
    whole = changes(Loop().feed(stream).all())
    rest = Loop(Place(format_lsn(80), had - 1)).feed(stream).all()
    assert changes(rest) == whole[had:]


def test_a_relation_of_a_streamed_transaction_holds_after_it() -> None:
    loop = Loop().feed(
        framed(stream_start(9), relation(TABLE, INT, xid=9), insert(TABLE, [1], xid=9), b"E"),
        framed(stream_commit(9, 16)),
        transaction(32, 2),
    )
    assert [change[3] for change in changes(loop.all())] == ['{"id":1}', '{"id":2}']


def test_a_newer_relation_from_outside_survives_the_commit_of_a_stream() -> None:
    loop = Loop().feed(
        framed(stream_start(9), relation(TABLE, INT, xid=9), insert(TABLE, [1], xid=9), b"E"),
        framed(relation(TABLE, {"n": 23})),
        framed(stream_commit(9, 16)),
        transaction(32, 2),
    )
    assert [change[3] for change in changes(loop.all())] == ['{"id":1}', '{"n":2}']


def test_a_message_sorts_before_the_commit_right_behind_it() -> None:
    loop = Loop().feed(
        ANNOUNCED,
        framed(logical_message("a", b"b", lsn=16, transactional=False)),
        transaction(16, 1),
    )
    (page,) = loop.all()
    assert page.first < page.last
    assert [change[2] for change in changes([page])] == ["MESSAGE", "INSERT"]


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(
    cuts=st.lists(st.integers(0, len(MIXED)), max_size=25),
    rows=st.integers(1, 6),
    dry=st.booleans(),
)
def test_a_stream_cut_anywhere_gives_the_same_changes(
    cuts: list[int], rows: int, dry: bool
) -> None:
    expected = changes(Loop().feed(MIXED).all())
    assert len(expected) == 5 + 1 + 1 + 2 + 1 + 1 + 1 + 2 + 1
    edges = [0, *sorted(cuts), len(MIXED)]
    loop = Loop(rows=rows, memory=100)
    for start, end in pairwise(edges):
        loop.feed(MIXED[start:end])
        if dry:
            loop.pages += loop.framer.flush(1.0)
    pages = loop.all()
    assert changes(pages) == expected
    assert sum(page.count for page in pages) == len(expected)
    # Each page stands for itself: in any order, by decoders that saw no other.
    assert sorted(changes(pages[::-1])) == sorted(expected)


@settings(max_examples=examples(60))
@given(number=st.integers(0, 14), rows=st.integers(1, 6))
def test_resuming_after_any_place_gives_the_rest(number: int, rows: int) -> None:
    expected = changes(Loop().feed(MIXED).all())
    cursor, ordinal, *_ = expected[number]
    assert (
        changes(Loop(Place(cursor, ordinal), rows=rows).feed(MIXED).all())
        == (expected[number + 1 :])
    )


def test_everything_mixed_is_acknowledged_at_the_end() -> None:
    loop = Loop().feed(MIXED)
    loop.progress.acknowledged(loop.all()[-1].last)
    assert (loop.progress.durable, loop.progress.in_flight) == (104, 0)


@settings(max_examples=examples(300))
@given(data=st.binary(min_size=1, max_size=200), keep=st.integers(0, len(MIXED)))
def test_garbage_is_one_of_our_errors_and_never_another(data: bytes, keep: int) -> None:
    loop = Loop()
    with suppress(PenstockError):
        loop.feed(MIXED[:keep], data)


@pytest.mark.parametrize(
    "data",
    [
        b"d\0\0\0\1",  # shorter than its own length
        b"d\xff\xff\xff\xff",  # longer than anything
        b"d\0\0\0\5x",  # neither w nor k
        b"d\0\0\0\5k",  # a keepalive without a body
        b"?\0\0\0\4",  # no message of the protocol
        framed(b"?"),  # no message of pgoutput
        framed(b"B\0"),
        framed(b"C\0"),
    ],
)
def test_what_breaks_the_protocol_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        Loop().feed(data)


def test_notices_and_parameters_between_messages_are_skipped() -> None:
    aside = b"N" + struct.pack(">I", 6) + b"\0\0" + b"S" + struct.pack(">I", 8) + b"a\0b\0"
    loop = Loop().feed(ANNOUNCED, aside, transaction(16, 1), aside, transaction(32, 2))
    assert len(changes(loop.all())) == 2


def test_an_error_in_the_stream_is_translated() -> None:
    fields = b"SFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
    with pytest.raises(Unavailable, match="terminating connection"):
        Loop().feed(b"E" + struct.pack(">I", len(fields) + 4) + fields)


def test_the_end_of_the_stream_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        Loop().feed(b"c" + struct.pack(">I", 4))


def test_two_phase_messages_name_the_remedy() -> None:
    prepare = b"b" + struct.pack(">QQqI", 1, 2, 3, 4) + b"gid\0"
    with pytest.raises(SettingsError, match="two_phase = false"):
        Loop().feed(framed(prepare))


def test_a_message_far_larger_than_the_reads_is_assembled_once() -> None:
    big = framed(begin(16), insert(TABLE, ["9" * 3_000_000]), commit(16))
    loop = Loop().feed(framed(relation(TABLE, {"id": 25})))
    for start in range(0, len(big), 5000):
        loop.framer.feed(big[start : start + 5000])
        loop.pages += loop.framer.scan(1.0)
    (change,) = changes(loop.all())
    assert len(change[3] or "") > 3_000_000
