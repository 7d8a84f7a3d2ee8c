"""Lines of COPY, folded: the steps leave the rows that the changes leave, one after the other."""

from collections import Counter
from collections.abc import Iterator, Sequence

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.tables.fold import Clear, Merge, Move, Recount, RowFold, RowStep
from penstock.tables.lines import (
    NULL,
    UNSENT,
    LineChange,
    RelationColumn,
    SourceRelation,
    replaced_columns,
)

RELATION = SourceRelation(
    schema="public",
    table="item",
    columns=(
        RelationColumn("name", "mood", oid=99999),
        RelationColumn("id", "", is_key=True, oid=23),
        RelationColumn("large", "", oid=1043, modifier=84),
    ),
)  # fmt: skip
KEYLESS = SourceRelation(schema="public", table="log", columns=(RelationColumn("line", "text"),))

Rows = dict[str, tuple[str, str]]


def line(key: str, row: tuple[str, str]) -> str:
    return f"{row[0]}\t{key}\t{row[1]}"


@st.composite
def histories(draw: st.DrawFn) -> tuple[Rows, list[LineChange], Rows]:
    """Rows that are there, changes of them as the source sends them, and the rows after these."""
    values = st.sampled_from(["a", "b", NULL, "\\\\U"])
    keys = st.sampled_from("1234")
    rows: Rows = draw(st.dictionaries(keys, st.tuples(values, values), max_size=3))
    begin, changes = dict(rows), []
    for _ in range(draw(st.integers(0, 12))):
        key = draw(keys)
        if key not in rows:
            rows[key] = draw(st.tuples(values, values))
            changes.append(LineChange("INSERT", key, None, line(key, rows[key])))
            continue
        kind = draw(st.sampled_from(["UPDATE", "UNSENT", "MOVE", "MOVE-UNSENT", "FULL", "DELETE"]))
        free = next(one for one in map(str, range(1, 20)) if one not in rows)
        old = rows.pop(key)
        if kind == "DELETE":
            changes.append(LineChange("DELETE", key, f"{UNSENT}\t{key}\t{UNSENT}", None))
            continue
        now = key if "MOVE" not in kind else free
        has_unsent = "UNSENT" in kind or kind == "FULL"
        rows[now] = (draw(values), old[1] if has_unsent else draw(values))
        sent = line(now, (rows[now][0], UNSENT) if has_unsent else rows[now])
        before = {"FULL": line(key, old)}.get(kind)
        if now != key:
            before = f"{UNSENT}\t{key}\t{UNSENT}"
        changes.append(LineChange("UPDATE", now, before, sent, has_unsent))
    return begin, changes, rows


def applied(rows: Rows, steps: Sequence[RowStep]) -> Rows:
    """What a target does."""
    rows = dict(rows)

    def put(text: str) -> None:
        name, key, large = text.split("\t")
        rows[key] = (name, large)

    for step in steps:
        match step:
            case Clear():
                rows.clear()
            case Merge(gone, parts, whole):
                for key in gone:
                    rows.pop(key, None)
                for unsent, lines in parts.items():
                    assert unsent == (2,)
                    for text in lines:
                        name, key, _ = text.split("\t")
                        if key in rows:
                            rows[key] = (name, rows[key][1])
                for text in whole:
                    put(text)
            case Move(old, text):
                name, key, large = text.split("\t")
                if old in rows:
                    was = rows.pop(old)
                    assert key not in rows, "a unique index refuses it"
                    rows[key] = (name, was[1] if large == UNSENT else large)
            case Recount():
                raise AssertionError(step)
    return rows


@given(histories(), st.booleans())
def test_the_steps_leave_the_rows_of_the_source(
    history: tuple[Rows, list[LineChange], Rows], moves: bool
) -> None:
    begin, changes, end = history
    fold = RowFold(RELATION.key, moves=moves)
    for change in changes:
        fold.add(change)
    assert applied(begin, fold.steps()) == end
    assert fold.steps() == []


@given(st.lists(st.tuples(st.sampled_from(["INSERT", "DELETE", "UPDATE"]), st.sampled_from("abc"))))
def test_equal_rows_without_a_key_are_counted(drawn: list[tuple[str, str]]) -> None:
    rows, fold = Counter("aab"), RowFold(KEYLESS.key)
    for operation, value in drawn:
        if operation != "INSERT" and not rows[value]:
            continue
        before = None if operation == "INSERT" else value
        after = {"INSERT": value, "UPDATE": "c"}.get(operation)
        rows.subtract([] if before is None else [before])
        rows.update([] if after is None else [after])
        fold.add(LineChange(operation, None, before, after))
    found = Counter("aab")
    for step in fold.steps():
        assert isinstance(step, Recount)
        found.update(step.counts)
    assert +found == +rows


def test_after_a_truncate_only_later_rows_are_there() -> None:
    fold = RowFold(RELATION.key)
    for change in _changes("INSERT 1", "TRUNCATE", "INSERT 2"):
        fold.add(change)
    assert fold.steps() == [Clear(), Merge([], {}, ["x\t2\ty"])]


def test_an_append_keeps_rows_that_are_deleted() -> None:
    fold = RowFold(RELATION.key, keeps=True)
    for change in _changes("INSERT 1", "DELETE 1", "TRUNCATE", "INSERT 2", "DELETE 3"):
        fold.add(change)
    assert fold.steps() == [Merge([], {}, ["x\t1\ty", "x\t2\ty"])]


@pytest.mark.parametrize("moves", [False, True])
def test_in_an_append_a_row_takes_the_place_of_one_that_was_deleted(moves: bool) -> None:
    fold = RowFold(RELATION.key, moves=moves, keeps=True)
    fold.add(LineChange("DELETE", "2", f"{UNSENT}\t2\t{UNSENT}", None))
    fold.add(LineChange("UPDATE", "2", f"{UNSENT}\t1\t{UNSENT}", f"b\t2\t{UNSENT}", True))
    fold.add(LineChange("UPDATE", "3", f"{UNSENT}\t4\t{UNSENT}", "c\t3\tz"))
    rows = {key: ("a", key) for key in "1234"}
    assert applied(rows, fold.steps()) == {"2": ("b", "1"), "3": ("c", "z")}


def test_a_relation_is_read_from_its_text() -> None:
    assert SourceRelation.of(orjson.loads(RELATION.to_json())) == RELATION


def _changes(*texts: str) -> Iterator[LineChange]:
    for text in texts:
        operation, _, key = text.partition(" ")
        after = f"x\t{key}\ty" if operation == "INSERT" else None
        yield LineChange(operation, key or None, None, after)


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ("abc", "abc", []),
        ("abc", "ac", []),
        ("abc", "abcd", []),
        ("abc", "axc", [("b", "x")]),
        ("abc", "abx", [("c", "x")]),
        ("abcd", "xbyz", [("a", "x"), ("cd", "yz")]),
        ("", "ab", []),
    ],
)
def test_a_column_in_the_place_of_another_may_be_the_same(
    before: str, now: str, found: list[tuple[str, str]]
) -> None:
    pairs = replaced_columns(before, now)
    assert [("".join(gone), "".join(new)) for gone, new in pairs] == found
