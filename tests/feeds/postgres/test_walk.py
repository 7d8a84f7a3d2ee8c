"""The native walk over a stream, and Python's: the same pages, and the same to acknowledge."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.feeds.postgres.walk import NativeWalk, rows_ahead
from penstock.model.position import Place
from penstock.wire.pgoutput.context import Context
from penstock.wire.pgoutput.lsn import format_lsn
from tests.feeds.postgres.loop import INT, OTHER, TABLE, THIRD, Loop, framed, transaction
from tests.wire.cells import examples
from tests.wire.pages import begin, commit, insert, keepalive, logical_message, relation, truncate


def parts() -> "st.SearchStrategy[list[bytes]]":
    """Streams of small transactions, and of whatever else may come between and inside them."""
    tables = st.sampled_from([TABLE, OTHER, THIRD])
    rows = st.lists(
        st.builds(lambda t, n: insert(t, [n]), tables, st.integers(0, 10**9)), max_size=5
    )
    odd = st.sampled_from([
        framed(truncate([OTHER])), framed(relation(OTHER, INT)), framed(relation(OTHER, {"n": 23})),
        framed(logical_message("a", b"b", lsn=1, transactional=True)),
    ])  # fmt: skip
    plain = st.builds(lambda rows: [framed(*rows)], rows)
    mixed = st.builds(lambda a, odd, b: [framed(*a), odd, framed(*b)], rows, odd, rows)
    # After each transaction so many keepalives, the last of which may ask for an answer.
    alive = st.sampled_from([(0, False), (0, False), (1, False), (2, False), (1, True)])
    bodies = st.lists(st.tuples(st.one_of(plain, plain, plain, mixed), alive), max_size=20)
    return st.builds(
        lambda bodies: [
            part
            for number, (body, (keepalives, asks)) in enumerate(bodies, 1)
            for part in (
                framed(begin(16 * number)), *body, framed(commit(16 * number)),
                *(
                    keepalive(wal_end=16 * number + 8 + each, reply=asks)
                    for each in range(1, keepalives + 1)
                ),
            )
        ],
        bodies,
    )  # fmt: skip


KNOWN = framed(*(relation(oid, INT) for oid in (TABLE, OTHER, THIRD)))


@pytest.mark.slow
@pytest.mark.skipif(NativeWalk.create() is None, reason="the native library is not built")
@settings(max_examples=examples(300))
@given(
    stream=parts(),
    cuts=st.lists(st.integers(0, 2000), max_size=8),
    rows=st.integers(1, 12),
    size=st.integers(60, 900),
    after=st.one_of(st.none(), st.tuples(st.integers(1, 8), st.integers(0, 3))),
)
def test_the_native_walk_and_pythons_make_the_same_pages(
    stream: list[bytes], cuts: list[int], rows: int, size: int, after: tuple[int, int] | None
) -> None:
    place = None if after is None else Place(format_lsn(16 * after[0]), after[1])
    data = b"".join(stream)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    made = []
    for native in (True, False):
        loop = Loop(place, rows=rows, size=size)
        if not native:
            loop.framer._native, loop.framer._walk_rows = None, rows_ahead
        loop.feed(KNOWN)
        for start, end in pairwise(edges):
            loop.feed(data[start:end])
        made.append((loop, loop.all()))
    (native_loop, native_pages), (python_loop, python_pages) = made
    assert native_pages == python_pages
    ours, theirs = native_loop.progress, python_loop.progress
    assert native_loop.framer.transactions == python_loop.framer.transactions
    assert (ours.received, ours.in_flight) == (theirs.received, theirs.in_flight)
    assert (ours.keepalives, ours.clock) == (theirs.keepalives, theirs.clock)
    assert ours.due(0.0) == theirs.due(0.0)  # whether an answer is asked for
    for page in native_pages:  # also in the middle of a page
        for shown in {page.first, page.last}:
            assert ours.after(shown) == theirs.after(shown)
    for page in native_pages:
        for shown in sorted({page.first, page.last}):
            ours.acknowledged(shown)
            theirs.acknowledged(shown)
            assert ours.durable == theirs.durable


@pytest.mark.slow
def test_many_tables_in_one_walk_are_all_remembered() -> None:
    oids = range(30_000, 30_200)
    announced = framed(*(relation(oid, INT) for oid in oids))
    one = framed(begin(16), *(insert(oid, [1]) for oid in oids), commit(16))
    many = b"".join(
        framed(begin(32 + 16 * n), insert(oid, [2]), commit(32 + 16 * n))
        for n, oid in enumerate(oids)
    )
    loop = Loop().feed(announced, transaction(8, 1), one, many)
    (page,) = loop.all()
    assert page.count == 401
    assert len(Context.unpack(page.context).relations) == 200
    # Cut anywhere, the places in between are as of single transactions.
    loop.progress.acknowledged(Place(format_lsn(32 + 16 * 77), 0))
    assert loop.progress.durable == 32 + 16 * 77 + 8
