r"""Images `text`: lines of COPY, and descriptions to read them with."""

import json
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.change import Passed
from penstock.wire.eras import EraDecoder
from penstock.wire.pgoutput import kernel
from penstock.wire.pgoutput.context import Context, TypeEntry
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from tests.wire.golden import golden, names, pages
from tests.wire.lines import Lines, Row, cells
from tests.wire.pages import (
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
from tests.wire.reference import reference

LSN = 255
NAMES = [name for name in names() if "two-phase" not in name]


@pytest.fixture(params=["kernel", "python"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the native kernel, and without."""
    if request.param == "python":
        monkeypatch.setattr(kernel, "library", lambda: None)
    elif kernel.library() is None:
        pytest.skip("there is no native library")


def decoder(**settings: Any) -> PgoutputDecoder:
    made = {"backend": "b", "database": "db", "images": "text", **settings}
    return PgoutputDecoder(DecoderSettings(**made))


def batch_of(*messages: bytes, context: Context | None = None, **settings: Any) -> pa.RecordBatch:
    page = page_of([begin(LSN), *messages, commit(LSN)], context=context)
    (batch,) = decoder(**settings).decode(page)
    return batch


def images(*messages: bytes, context: Context | None = None) -> list[tuple[Any, ...]]:
    rows = batch_of(*messages, context=context).to_pylist()
    return [(row["key"], row["before"], row["after"]) for row in rows]


TWO = relation(1, {"id": 23, "v": 25}, key=["id"])
PAIR = relation(1, {"a": 25, "v": 25, "b": 23}, key=["b", "a"])
FULL = relation(1, {"id": 23, "v": 25}, key=["id", "v"], identity="f")
KEYS = Context(keys={1: ("id",)})
SPECIAL = '\\b\b\f\n\r\t\v\x01\x0e"é😀'
ESCAPED = '\\\\b\\b\\f\\n\\r\\t\\v\x01\x0e"é😀'

CASES: dict[str, tuple[bytes, bytes, tuple[Any, ...]]] = {
    "a row": (TWO, insert(1, [1, "x"]), ("1", None, "1\tx")),
    "null": (TWO, insert(1, [1, None]), ("1", None, "1\t\\N")),
    "an empty string": (TWO, insert(1, [1, ""]), ("1", None, "1\t")),
    "escapes": (TWO, insert(1, [1, SPECIAL]), ("1", None, f"1\t{ESCAPED}")),
    "what looks like null": (TWO, insert(1, [1, "\\N"]), ("1", None, "1\t\\\\N")),
    "what looks unsent": (TWO, insert(1, [1, "\\U"]), ("1", None, "1\t\\\\U")),
    "what looks like the end": (TWO, insert(1, [1, "\\."]), ("1", None, "1\t\\\\.")),
    "unchanged toast": (TWO, update(1, [1, ...]), ("1", None, "1\t\\U")),
    "nothing sent": (TWO, update(1, [..., ...]), (None, None, "\\U\t\\U")),
    "a key of another row": (TWO, update(1, [2, "x"], key=[1, None]), ("2", "1\t\\U", "2\tx")),
    "an unsent key": (TWO, update(1, [..., "x"], key=[1, None]), ("1", "1\t\\U", "\\U\tx")),
    "a delete": (TWO, delete(1, key=[1, None]), ("1", "1\t\\U", None)),
    "a composite key": (PAIR, insert(1, ["x\ty", "v", 2]), ("x\\ty\t2", None, "x\\ty\tv\t2")),
    "a composite key changes": (
        PAIR, update(1, ["x", ..., 3], key=["x", None, 2]), ("x\t3", "x\t\\U\t2", "x\t\\U\t3"),
    ),
    "a whole old row": (FULL, update(1, [1, ...], old=[1, "v"]), ("1", "1\tv", "1\t\\U")),
    "a whole row deleted": (FULL, delete(1, old=[1, None]), ("1", "1\t\\N", None)),
    "no key": (relation(1, {"n": 23}), insert(1, [1]), (None, None, "1")),
    "no columns": (relation(1, {}), insert(1, []), (None, None, "")),
    "one empty column": (relation(1, {"v": 25}), insert(1, [""]), (None, None, "")),
    "1,600 columns": (
        relation(1, {f"column {n}": 25 for n in range(1600)}, key=["column 1599"]),
        insert(1, range(1600)), ("1599", None, "\t".join(map(str, range(1600)))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_row_is_a_line(case: str) -> None:
    table, message, wanted = CASES[case]
    assert images(table, message, context=KEYS) == [wanted]


def test_a_value_is_the_text_of_the_source() -> None:
    """Through JSON, these have another form, or lose something."""
    texts = ['{"a":1,"a":1.10}', "0044-03-15 BC", "1e5", "t", "\\x00ff", "[0:0]={x}", "05"]
    oids = dict(zip("abcdefg", (114, 1082, 701, 16, 17, 1009, 23), strict=True))
    ((_, _, after),) = images(relation(1, oids), insert(1, texts))
    assert cells(after) == texts


def test_a_value_is_not_read_as_its_type() -> None:
    assert images(TWO, relation(1, {"n": 23, "b": 16}), insert(1, ["one", "yes"])) == [
        (None, None, "one\tyes")
    ]


@given(rows=st.lists(st.tuples(st.none() | st.text(), st.none() | st.text()), min_size=1))
def test_any_text_comes_back(rows: list[tuple[str | None, str | None]]) -> None:
    table = relation(1, {"a": 25, "b": 25})
    found = images(table, *(insert(1, row) for row in rows))
    assert [tuple(cells(after)) for _, _, after in found] == rows


def test_the_document_id_and_the_tenant_are_those_of_json() -> None:
    table = relation(1, {"k": 17, "n": 20, "t": 1184}, key=["k", "n"])
    rows = [insert(1, ["\\x00ff", n, "2026-01-02 03:04:05+00"]) for n in (5, 6)]
    moved = update(1, ["\\x01", 7, ...], key=["\\x00ff", 5, None])
    for tenant in ("none", "database", "field:t", "field:k", "field:n"):
        mine, wanted = (
            batch_of(table, *rows, moved, truncate([1]), tenant=tenant, images=form)
            .select(["document_id", "tenant", "unchanged", "operation"])
            for form in ("text", "json")
        )  # fmt: skip
        assert mine.to_pylist() == wanted.to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size"), [*((name, 10**9) for name in NAMES), ("pg15-v1", 7), ("pg16-v2", 7)]
)
def test_what_servers_sent_can_be_read_by_the_descriptions(name: str, size: int) -> None:
    text, plain, lines = decoder(), decoder(images="json"), Lines()
    for page in pages(golden(name), size):
        (batch,), (other,) = text.decode(page), plain.decode(page)
        ids = other.column("document_id").to_pylist()
        for row, wanted, document_id in zip(
            lines.read(batch), reference(page, "text"), ids, strict=True
        ):
            expected = wanted | {"document_id": document_id}
            del expected["committed_at"]
            assert {field: row[field] for field in expected} == expected
        assert batch.drop_columns(["key", "before", "after", "delta"]).equals(
            other.drop_columns(["key", "before", "after", "delta"])
        )


def deltas(batch: pa.RecordBatch) -> list[Any]:
    return [text and json.loads(text) for text in batch.column("delta").to_pylist()]


def test_the_first_change_of_each_relation_and_version_describes_it() -> None:
    wider = relation(1, [("id", 23), ("v", 25), ("m", 9001)], key=["id"])
    other = relation(2, {"x": 1043}, name="o", namespace="s")
    context = Context(types={9001: TypeEntry(kind="e", name="mood"),
                             9002: TypeEntry(kind="d", name="other", inner=23)})  # fmt: skip
    batch = batch_of(
        TWO, other, truncate([1]), logical_message("p", b"c", lsn=9, transactional=True),
        insert(1, [1, "x"]), insert(1, [2, "x"]), insert(2, ["y"]), wider,
        insert(1, [3, "x", "sad"]), insert(2, ["z"]),
        context=context,
    )  # fmt: skip
    found = deltas(batch)
    assert [number for number, delta in enumerate(found) if delta] == [0, 4, 5]
    versions = batch.column("schema_version").to_pylist()
    columns = [
        {"name": "id", "type": 23, "modifier": -1, "key": True},
        {"name": "v", "type": 25, "modifier": -1, "key": False},
    ]
    first = {"schema": "public", "table": "t", "relation_id": 1, "version": versions[0]}
    assert found[0] == {**first, "columns": columns, "types": {}}
    mood = {"kind": "e", "name": "mood", "inner": 0, "delimiter": ","}
    assert found[5] == {
        **first, "version": versions[5], "types": {"9001": mood},
        "columns": [*columns, {"name": "m", "type": 9001, "modifier": -1, "key": False}],
    }  # fmt: skip
    assert (found[4]["schema"], found[4]["table"], found[4]["relation_id"]) == ("s", "o", 2)


def test_each_batch_describes_its_relations_again() -> None:
    made = decoder()
    page = page_of(
        [begin(LSN), insert(1, [1, "x"]), commit(LSN)], context=Context(relations=(TWO,))
    )
    assert [bool(delta) for _ in range(2) for delta in deltas(made.decode(page)[0])] == [True] * 2


def test_the_key_that_only_the_catalogue_knows_is_described() -> None:
    (delta,) = deltas(batch_of(FULL, insert(1, [1, "x"]), context=KEYS))
    assert [column["key"] for column in delta["columns"]] == [True, False]


def test_an_undecodable_row_is_an_error_in_json_and_describes_nothing() -> None:
    bad = [insert(1, [1, b"\xff"]), insert(1, ["", "x"]), insert(1, [1])]
    batch = batch_of(TWO, *bad, insert(1, [2, "x"]), on_error="dead-letter")
    rows: list[Row] = batch.to_pylist()
    assert [row["operation"] for row in rows] == ["ERROR"] * 3 + ["INSERT"]
    reasons = [orjson.loads(row["after"])["reason"] for row in rows[:3]]
    assert reasons == ["not-utf8", "not-its-type", "broken-row"]
    assert [bool(delta) for delta in deltas(batch)] == [False] * 3 + [True]
    assert rows[3]["after"] == "2\tx"


def test_a_logical_message_is_json() -> None:
    for content, wanted in (
        (b"x", {"content": "x"}),
        (b"\xff", {"content": "/w==", "binary": True}),
    ):
        batch = batch_of(logical_message("p", content, lsn=9, transactional=True))
        (after,) = batch.column("after").to_pylist()
        assert json.loads(after) == {"prefix": "p", **wanted}
        assert deltas(batch) == [None]


OTHER = relation(2, {"id": 23, "v": 25}, key=["id"], name="other")
KEPT = frozenset({("public", "t")})


@pytest.mark.parametrize(
    ("messages", "rows"),
    [
        ((TWO, insert(1, [1, "x"]), OTHER, insert(2, [1, "x"])), [1, 0]),
        ((OTHER, insert(2, [1, "x"])), [0]),
        ((TWO, insert(1, [1, "x"])), [1]),
    ],
)
@pytest.mark.parametrize("era", ["", "e0001-"])
def test_what_the_tables_filter_drops_at_the_end_is_said(
    messages: tuple[bytes, ...], rows: list[int], era: str
) -> None:
    page = page_of([begin(LSN), *messages, commit(LSN)], context=Context(mark='{"system":"7"}'))
    page = replace(
        page, first=page.first._replace(cursor=era + page.first.cursor),
        last=page.last._replace(cursor=era + page.last.cursor),
    )  # fmt: skip
    batches = EraDecoder(decoder(tables=KEPT)).decode(page)
    assert [len(each) for each in batches] == rows
    if not rows[-1]:
        expected = Passed("b", page.partition, page.last, '{"system":"7"}')
        assert Passed.of(batches[-1]) == expected
    assert len(decoder(tables=KEPT, images="json").decode(page_of([begin(LSN), *messages,
        commit(LSN)]))) == (rows[0] > 0)  # fmt: skip
