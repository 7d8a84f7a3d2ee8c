"""COPY's rows as Insert messages: in C the same as in Python, cut anywhere."""

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.feeds.postgres import rows as module
from penstock.feeds.postgres.rows import CopyFramer, RowPages, line_framer, row_framer
from penstock.model.errors import Malformed, SettingsError
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.native import library
from tests.wire.cells import examples
from tests.wire.pages import relation

TABLE = {"a": 25, "b": 25, "c": 25}
# copyto.c, CopyAttributeOutText.
ESCAPED = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", "\v": "v", "\\": "\\"}
READY = [b"c" + struct.pack(">I", 4), b"C" + struct.pack(">I", 8) + b"1234", b"Z\0\0\0\x05T"]


def form(columns: int = 3) -> RowPages:
    names = dict(list(TABLE.items())[:columns])
    return RowPages(
        partition=PartitionId("s"), place=Place("00000000/00000010", 0),
        relation=relation(7, names), columns=columns, types={}, key=(), lsn=16, taken_at=1,
    )  # fmt: skip


def copy_of(rows: Sequence[tuple[str | None, ...]]) -> bytes:
    """What the server sends for these rows."""
    parts = [b"H" + struct.pack(">I", 4)]
    for row in rows:
        texts = [r"\N" if v is None else "".join(
            "\\" + ESCAPED[c] if c in ESCAPED else c for c in v) for v in row]  # fmt: skip
        line = "\t".join(texts).encode() + b"\n"
        parts.append(b"d" + struct.pack(">I", len(line) + 4) + line)
    return b"".join([*parts, *READY])


def framed(data: bytes, *, native: bool, cuts: list[int], **limits: int) -> list[Page]:
    patch = pytest.MonkeyPatch()
    if not native:
        patch.setattr(module, "library", lambda: None)
    framer = row_framer(form(), what="reading", **{"rows": 1000, "size": 2**20, **limits})
    patch.undo()
    return [form().page(*piece) for piece in fed(framer, data, cuts)]


def fed(framer: CopyFramer, data: bytes, cuts: list[int]) -> list[tuple[bytes, int]]:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    found: list[tuple[bytes, int]] = []
    for start, stop in zip([0, *ends], ends, strict=False):
        found += framer.feed(data[start:stop])
    assert framer.is_over
    return found


def cells_of(page: Page) -> list[tuple[str | None, ...]]:
    """The rows of a page, read by the letter of the protocol."""
    found, at = [], 0
    while at < len(page.payload):
        (length,) = struct.unpack_from(">I", page.payload, at + 1)
        assert page.payload[at : at + 1] == b"d" and page.payload[at + 30 : at + 31] == b"I"
        body, offset = page.payload[at + 38 : at + 1 + length], 0
        values: list[str | None] = []
        while offset < len(body):
            if body[offset : offset + 1] == b"n":
                values.append(None)
                offset += 1
                continue
            (size,) = struct.unpack_from(">I", body, offset + 1)
            values.append(body[offset + 5 : offset + 5 + size].decode())
            offset += 5 + size
        found.append(tuple(values))
        at += 1 + length
    return found


CELL = st.one_of(
    st.none(),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
    st.sampled_from(["\\N", "\\", "\\\\t", "", "\t", "x" * 300, "\n\r\b\f\v"]),
)


@pytest.mark.slow
@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(CELL, CELL, CELL), max_size=12),
    st.lists(st.integers(0, 2000), max_size=12),
    st.integers(1, 5),
    st.integers(1, 700),
)
def test_c_and_python_wrap_alike(rows: Any, cuts: list[int], most: int, size: int) -> None:
    if library() is None:
        pytest.skip("the native library was not built")
    data = copy_of(rows)
    fast = framed(data, native=True, cuts=cuts, rows=most, size=size)
    slow = framed(data, native=False, cuts=cuts, rows=most, size=size)
    assert fast == slow
    assert [row for page in fast for row in cells_of(page)] == rows
    assert all(0 < page.count <= most for page in fast)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(CELL, CELL, CELL), max_size=12),
    st.lists(st.integers(0, 2000), max_size=12),
    st.sampled_from([b"", b"berlin\t"]),
    st.integers(1, 700),
)
def test_lines_stay_as_they_are_after_a_prefix(
    rows: Any, cuts: list[int], prefix: bytes, size: int
) -> None:
    data = copy_of(rows)
    patch = pytest.MonkeyPatch()
    found = fed(line_framer(prefix, size=size, what="reading"), data, cuts)
    patch.setattr(module, "library", lambda: None)
    assert fed(line_framer(prefix, size=size, what="reading"), data, cuts) == found
    patch.undo()
    text = b"".join(piece for piece, _ in found)
    assert text.count(b"\n") == sum(count for _, count in found) == len(rows)
    assert all(line.startswith(prefix) for line in text.split(b"\n")[:-1])
    plain = text.replace(b"\n" + prefix, b"\n").removeprefix(prefix)
    framed_lines = framed(copy_of(rows), native=False, cuts=cuts)
    assert [row for page in framed_lines for row in cells_of(page)] == rows
    again = b"".join(
        b"d" + struct.pack(">I", len(line) + 5) + line + b"\n" for line in plain.split(b"\n")[:-1]
    )
    assert data.endswith(again + b"".join(READY))


@pytest.mark.slow
@pytest.mark.parametrize("native", [True, False])
def test_a_row_that_is_larger_than_a_page_is_a_page(native: bool) -> None:
    rows = [("a", None, "b"), ("x" * 3_000_000, "\t" * 70_000, None), ("a", "b", "c")]
    pages = framed(copy_of(rows), native=native, cuts=[100, 2_000_000], size=1000)
    assert [row for page in pages for row in cells_of(page)] == rows


@pytest.mark.parametrize("native", [True, False])
def test_columns_that_are_not_these_are_malformed(native: bool) -> None:
    for row in (("a", "b"), ("a", "b", "c", "d")):
        with pytest.raises(Malformed, match="reading"):
            framed(copy_of([row]), native=native, cuts=[])
    with pytest.raises(Malformed, match="reading"):
        framed(b"d\0\0\0\x09a\tb\tc", native=native, cuts=[])
    with pytest.raises(Malformed, match="answered COPY"):
        framed(b"D\0\0\0\x04", native=native, cuts=[])


def test_what_the_server_refuses_is_said() -> None:
    fields = b"SERROR\0C42501\0Mpermission denied for table t\0\0"
    data = b"E" + struct.pack(">I", len(fields) + 4) + fields
    with pytest.raises(SettingsError, match="permission denied"):
        framed(data, native=True, cuts=[])
