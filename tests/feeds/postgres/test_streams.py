"""In-progress transactions: bounded memory, files without names, everything in order."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.feeds.postgres.streams import StreamedTransaction, Streams
from penstock.model.errors import Unavailable


def content(stream: StreamedTransaction) -> bytes:
    pieces = []
    while piece := stream.read(0):
        pieces.append(piece)
    return b"".join(pieces)


@given(
    memory=st.integers(0, 50),
    pieces=st.lists(st.tuples(st.integers(1, 3), st.binary(min_size=1, max_size=30)), max_size=30),
)
def test_each_transaction_comes_back_whole_and_in_order(
    memory: int, pieces: list[tuple[int, bytes]]
) -> None:
    streams = Streams(memory=memory)
    for xid, piece in pieces:
        streams.append(xid, piece)
        assert streams.held <= memory
    for xid in (1, 2, 3):
        expected = b"".join(piece for owner, piece in pieces if owner == xid)
        assert content(streams.take(xid)) == expected
    assert (len(streams), streams.held) == (0, 0)


def test_the_largest_is_spilled_first() -> None:
    streams = Streams(memory=100)
    streams.append(1, b"a" * 60)
    streams.append(2, b"b" * 30)
    streams.append(2, b"b" * 20)
    assert (streams.spilled, streams.held) == (60, 50)


def test_a_spilled_transaction_is_read_piece_by_piece() -> None:
    streams = Streams(memory=0)
    for _ in range(5):
        streams.append(1, b"x" * 2**20)
    stream = streams.take(1)
    assert len(stream.read(0)) == 2**20
    assert len(stream.read(3 * 2**20)) == 3 * 2**20


def test_no_file_has_a_name(tmp_path: Path) -> None:
    streams = Streams(memory=0, folder=tmp_path)
    streams.append(1, b"secret row")
    assert streams.spilled == 10
    assert list(tmp_path.iterdir()) == []


def test_files_are_closed_when_their_transaction_ends(tmp_path: Path) -> None:
    def open_files() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    before = open_files()
    streams = Streams(memory=0, folder=tmp_path)
    for xid in range(5):
        streams.append(xid, b"x")
    assert open_files() == before + 5
    streams.abort(0, 0)
    content(streams.take(1))
    assert open_files() == before + 3
    streams.close()
    assert open_files() == before


def test_a_folder_that_can_not_be_written_is_unavailable_with_a_remedy(tmp_path: Path) -> None:
    streams = Streams(memory=0, folder=tmp_path / "missing")
    with pytest.raises(Unavailable) as caught:
        streams.append(1, b"x")
    assert "`spill`" in caught.value.hint


def test_an_aborted_subtransaction_is_remembered_with_its_transaction() -> None:
    streams = Streams(memory=100)
    streams.append(1, b"x")
    streams.abort(1, 2)
    streams.abort(7, 8)  # nothing of it came
    assert streams.take(1).aborted == {b"\0\0\0\2"}
    assert len(streams) == 0


def test_a_transaction_of_which_nothing_came_is_empty() -> None:
    assert content(Streams(memory=1).take(9)) == b""
