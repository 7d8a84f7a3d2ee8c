"""The native kernel makes of every page exactly what Python makes of it, or leaves it to Python."""

import resource
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import PenstockError
from penstock.model.page import Page
from penstock.native import describe, library
from penstock.wire.pgoutput.context import Context, TypeEntry
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from penstock.wire.pgoutput.kernel import Kernel
from penstock.wire.pgoutput.scan import Scan
from tests.wire.cells import CELLS, ODD, examples
from tests.wire.golden import golden, names, pages
from tests.wire.pages import (
    begin,
    commit,
    delete,
    insert,
    keepalive,
    logical_message,
    page_of,
    relation,
    truncate,
    update,
)

pytestmark = pytest.mark.skipif(library() is None, reason=f"the native library is {describe()}")

LSN = 255
IMAGES = ("json", "msgpack", "text")
Outcome = pa.RecordBatch | str | None


def outcome(decoder: PgoutputDecoder, page: Page) -> Outcome:
    """The batch, or what is wrong with the page."""
    try:
        batch = next((each for each in decoder.decode(page) if len(each)), None)
    except PenstockError as error:
        return f"{type(error).__name__}: {error} ({error.hint})"
    if batch is not None:
        batch.validate(full=True)
    return batch


@cache
def decoders(made: DecoderSettings) -> tuple[PgoutputDecoder, PgoutputDecoder]:
    """With the kernel, and without."""
    with_kernel, without = PgoutputDecoder(made), PgoutputDecoder(made)
    assert with_kernel._kernel is not None
    without._kernel = None
    return with_kernel, without


def both(page: Page, **settings: Any) -> tuple[Outcome, Outcome]:
    with_kernel, without = decoders(DecoderSettings(backend="b", database="db", **settings))
    return outcome(with_kernel, page), outcome(without, page)


def agree(page: Page, **settings: Any) -> Outcome:
    """Both give the same, in every encoding of images; whether they stop at errors, or go on."""
    mine: Outcome = None
    for images in IMAGES:
        for on_error in ("stop", "dead-letter"):
            mine, theirs = both(page, images=images, on_error=on_error, **settings)
            if isinstance(mine, pa.RecordBatch) and isinstance(theirs, pa.RecordBatch):
                assert mine.schema.equals(theirs.schema, check_metadata=True)
                assert mine.equals(theirs), (mine, theirs)
            else:
                assert mine == theirs
    return mine


def left_over(page: Page, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> str:
    """The tags of the messages that the kernel left to Python."""
    tags = []
    step = Scan.step

    def watched(self: Scan, message: bytes) -> None:
        tags.append(chr(message[30]) if len(message) > 30 else "?")
        step(self, message)

    monkeypatch.setattr(Scan, "step", watched)
    made = DecoderSettings(backend="b", database="db", **settings)
    assert isinstance(outcome(PgoutputDecoder(made), page), pa.RecordBatch)
    return "".join(tags)


def one(oid: int, *cells: object, key: bool = False, types: Any = None) -> Page:
    """A page with these as rows: an id and the cell, or the cell and an id as the key."""
    columns = {"ü": oid, "id": 20}
    table = relation(1, columns, key=list(columns) if key else ["id"])
    rows = [insert(1, [cell, number]) for number, cell in enumerate(cells)]
    return page_of([begin(LSN), table, *rows, commit(LSN)], context=Context(types=types or {}))


@pytest.mark.parametrize("kind", CELLS)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_a_cell_of_every_kind_becomes_the_same(kind: str, data: st.DataObject) -> None:
    oid, cells = CELLS[kind]
    agree(one(oid, data.draw(cells)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CELLS)
@settings(max_examples=examples(8))
@given(data=st.data())
def test_a_key_and_a_tenant_of_every_kind_become_the_same(kind: str, data: st.DataObject) -> None:
    oid, cells = CELLS[kind]
    cell = data.draw(cells)
    agree(one(oid, cell, key=True), tenant="field:ü")
    table = relation(1, {"k": oid}, key=["k"])
    agree(page_of([begin(LSN), table, insert(1, [cell]), commit(LSN)]))


@pytest.mark.parametrize("kind", CELLS)
@settings(max_examples=examples(10))
@given(cell=ODD)
def test_a_cell_that_is_not_of_its_kind_is_the_same_fault(kind: str, cell: bytes) -> None:
    agree(one(CELLS[kind][0], cell))


ROWS = st.one_of(
    st.builds(lambda row: insert(1, row), st.tuples(st.integers(0, 9), st.text(max_size=3))),
    st.builds(lambda a, b: update(1, [a, b]), st.integers(0, 9), st.sampled_from(["x", None, ...])),
    st.builds(lambda a, b, c: update(1, [a, b], key=[c, None]),
              st.sampled_from([1, ...]), st.sampled_from(["x", ...]), st.sampled_from([2, ...])),
    st.builds(lambda a, b: update(1, [1, a], old=[b, "o"]),
              st.sampled_from(["x", ...]), st.sampled_from([2, ..., None])),
    st.builds(lambda a, b: delete(1, key=[a, b]), st.sampled_from([1, None, ...]), st.none()),
    st.builds(lambda a, b: delete(1, old=[a, b]), st.sampled_from([1, ...]), st.text(max_size=2)),
    st.just(truncate([1])),
    st.just(truncate([1, 2])),
    st.just(insert(2, ["é"])),
    st.just(insert(3, [5])),
    st.just(insert(1, [..., "x"])),
    st.just(insert(1, [1])),
    st.just(relation(1, {"id": 20, "v": 25}, key=["id"], name="renamed")),
    st.just(relation(1, {"id": 20, "v": 17}, identity="f")),
    st.builds(lambda n: logical_message("p", b"c", lsn=n, transactional=True), st.integers(0, 9)),
    st.builds(lambda n: logical_message("p", b"\xff", lsn=n, transactional=False),
              st.integers(1, 9)),
    st.just(logical_message("penstock.heartbeat", b"", lsn=9, transactional=True)),
    st.sampled_from([commit(LSN), begin(LSN), b"O" + bytes(8) + b"o\0", b"Y\0\0\0\1n\0t\0", b"?"]),
)  # fmt: skip
TABLES = [
    relation(1, {"id": 20, "v": 25}, key=["id"]),
    relation(2, {"k": 25}, key=["k"], namespace="other"),
    relation(3, {"n": 23}, name="filtered"),
]
SETTINGS = st.fixed_dictionaries({
    "tenant": st.sampled_from(["none", "database", "field:v", "field:id"]),
    "tables": st.sampled_from([None, frozenset({("public", "t"), ("other", "t")})]),
})  # fmt: skip


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(rows=st.lists(ROWS, min_size=1, max_size=8), ways=SETTINGS, context=st.booleans())
def test_a_page_of_any_messages_becomes_the_same(
    rows: list[bytes], ways: dict[str, Any], context: bool
) -> None:
    start = Context(
        commit_lsn=LSN if context else 0, xid=9, committed_at=5, ordinal=3,
        relations=tuple(TABLES), keys={1: ("v", "id")},
    )  # fmt: skip
    messages = [*([] if context else [begin(LSN)]), *rows, commit(LSN)]
    try:
        page = page_of(messages, context=start)
    except (PenstockError, IndexError):
        return  # not even a planner could make a page of them
    agree(page, **ways)


@settings(max_examples=examples(25))
@given(rows=st.lists(st.sampled_from([
    insert(1, [1, "x"], xid=5), truncate([1], xid=6), TABLES[2][:1] + b"\0\0\0\7" + TABLES[2][1:],
    insert(3, [1], xid=7), b"I\0\0", logical_message("p", b"c", lsn=3, transactional=True, xid=5),
]), min_size=1, max_size=5))  # fmt: skip
def test_a_streamed_page_becomes_the_same(rows: list[bytes]) -> None:
    start = Context(streamed=True, commit_lsn=LSN, xid=5, ordinal=2, relations=tuple(TABLES))
    try:
        page = page_of(rows, context=start)
    except (PenstockError, IndexError):
        return
    agree(page)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size"),
    [
        *((name, 10**9) for name in names()),
        *((name, 20) for name in ("pg15-v1", "pg16-v2", "pg18-v2")),
        pytest.param("pg16-v2", 1, marks=pytest.mark.slow),
    ],
)
def test_what_servers_sent_becomes_the_same(name: str, size: int) -> None:
    for page in pages(golden(name), size)[:: 1 if size > 20 else 20]:
        assert isinstance(agree(page), pa.RecordBatch)


REAL = [page for page in pages(golden("pg16-v2"), 20) if len(page.payload) < 20_000]


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3),
    number=st.integers(0, 10**6),
)
def test_flipped_bytes_become_the_same(flips: list[tuple[int, int]], number: int) -> None:
    page = REAL[number % len(REAL)]
    payload = bytearray(page.payload)
    for at, value in flips:
        payload[at % len(payload)] = value
    agree(replace(page, payload=bytes(payload)))


def test_every_prefix_becomes_the_same() -> None:
    for page in sorted(REAL, key=lambda page: len(page.payload))[::40]:
        for end in range(0, len(page.payload), max(1, len(page.payload) // examples(60))):
            agree(replace(page, payload=page.payload[:end]))


ORDINARY = {
    "a": (20, "-5"), "b": (16, "t"), "c": (701, "0.14285714285714285"), "d": (25, 'é "x" \\ \n'),
    "e": (1700, "12.5000"), "f": (17, "\\x00ff"), "g": (3802, '{"a": [1, 2.5, "x", null]}'),
    "h": (1184, "2026-01-02 03:04:05.678+00"), "i": (1114, "2026-01-02 03:04:05"),
    "j": (1082, "2026-01-02"), "k": (1009, '{a,NULL,"b c"}'), "l": (1007, "{{1,2},{3,4}}"),
    "m": (701, "NaN"), "n": (1184, "infinity"), "o": (114, '{"pi": 3.141592653589793}'),
    "p": (9001, "enum"), "q": (9002, "7"), "r": (9003, "{sad,NULL}"), "s": (25, None),
}  # fmt: skip
TYPES = {
    9001: TypeEntry(kind="e", name="mood"), 9002: TypeEntry(kind="d", name="d", inner=23),
    9003: TypeEntry(kind="a", name="_mood", inner=9001),
}  # fmt: skip


@pytest.mark.parametrize("images", IMAGES)
def test_ordinary_rows_are_not_left_to_python(images: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tests above would hold for a kernel that does nothing."""
    cells = [cell for _, cell in ORDINARY.values()]
    table = relation(1, {name: oid for name, (oid, _) in ORDINARY.items()}, key=["a", "d"])
    nulls = [None] * len(cells)
    rows = [insert(1, cells), update(1, cells, old=cells), update(1, [..., *cells[1:]], key=nulls),
            delete(1, key=cells), delete(1, old=cells)]  # fmt: skip
    page = page_of([begin(LSN), table, *rows, commit(LSN)], context=Context(types=TYPES))
    assert left_over(page, monkeypatch, images=images) == "R"
    agree(page)


def test_only_strange_rows_are_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    page = one(1082, "2026-01-01", "0044-03-15 BC", "2026-01-02")
    assert left_over(page, monkeypatch) == "RI"
    assert [row["document_id"] for row in agree(page).to_pylist()] == ["0", "1", "2"]  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_large_page_becomes_the_same() -> None:
    """Past every first size of a buffer, and with many relations."""
    tables = [
        relation(oid, {"id": 20, "v": 25}, key=["id"], name=f"t{oid}") for oid in range(1, 90)
    ]
    rows = [insert(n % 89 + 1, [n, "x" * (n % 700)]) for n in range(3000)]
    context = Context(relations=tuple(tables))
    agree(page_of([begin(LSN), *rows, commit(LSN), begin(LSN + 9), *rows, commit(LSN + 9)],
                  context=context))  # fmt: skip


def test_keepalives_become_the_same() -> None:
    page = page_of([begin(LSN), TABLES[0], insert(1, [1, "x"]), commit(LSN)])
    agree(replace(page, payload=keepalive() + page.payload + keepalive(reply=True)))


@pytest.mark.slow
def test_a_wide_row_becomes_the_same() -> None:
    columns = {f"column {number}": 23 for number in range(1600)}
    table = relation(1, columns, key=["column 0"])
    agree(page_of([begin(LSN), table, insert(1, list(range(1600))), commit(LSN)]))


def test_a_batch_outlives_its_page_and_its_decoder() -> None:
    """Its memory is its own."""
    made = DecoderSettings(backend="b", database="db")
    (batch,) = PgoutputDecoder(made).decode(one(25, *(["x" * 1000] * 100)))
    column = batch.column("after")
    del batch
    assert column.to_pylist()[99].startswith('{"ü":"xxx')


@pytest.mark.slow
def test_what_a_page_took_is_given_back() -> None:
    page = one(25, *(["x" * 1000] * 1000))
    decoder = PgoutputDecoder(DecoderSettings(backend="b", database="db"))
    for _ in range(20):
        decoder.decode(page)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        decoder.decode(page)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 50_000  # kB; a hundred pages take 200 MB


def test_without_the_library_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.wire.pgoutput.kernel.library", lambda: None)
    assert Kernel.of(DecoderSettings(backend="b", database="d")) is None
