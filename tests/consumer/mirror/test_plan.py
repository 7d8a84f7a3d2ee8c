"""Steps leave the rows that the changes leave one by one, in SQLite."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.consumer.mirror.followed import Followed
from penstock.consumer.mirror.plan import TablePlan
from penstock.consumer.mirror.steps import LoadedChunk, Step, TableRefused
from penstock.consumer.mirror.target import MirrorTarget
from penstock.consumer.mirror.target_table import TargetColumn, TargetTable
from penstock.nats.consumers import Delivered
from penstock.tables.fold import Merge, Recount
from penstock.tables.sqlite_database import SqliteDatabase

COLUMNS = tuple(TargetColumn(name=name, data_type="text") for name in ("a", "b", "large"))
KEYED = TargetTable(
    name="t", backend="", schema="public", table="t", target="t", columns=COLUMNS, key=("a",),
    state="live",
)  # fmt: skip
BAG = TargetTable(
    name="t", backend="", schema="public", table="t", target="t", columns=COLUMNS, state="live"
)


def change(operation: str, **fields: Any) -> dict[str, Any]:
    given = dict.fromkeys(("key", "before", "data"))
    return {"operation": operation, **given, "unchanged": [], **fields}


class Source:
    """Rows at a source; draws changes that it could send."""

    def __init__(self, draw: Any, *, keyed: bool) -> None:
        self.draw, self.keyed = draw, keyed
        self.others = ["truncate"] if draw(st.booleans()) else []
        self.rows: list[dict[str, Any]] = []
        self.more = count(70)  # keys after the first six

    def changes(self) -> Iterator[dict[str, Any]]:
        for _ in range(self.draw(st.integers(1, 25))):
            kinds = ["insert"] + ["update", "move", "delete"] * bool(self.rows) + self.others
            yield getattr(self, self.draw(st.sampled_from(kinds)))()

    def insert(self) -> dict[str, Any]:
        taken = {row["a"] for row in self.rows} if self.keyed else set()
        free = [name for name in "123456" if name not in taken] or [str(next(self.more))]
        row = {"a": self.draw(st.sampled_from(free)), "b": self._text(), "large": self._text()}
        self.rows.append(row)
        return change("INSERT", key=self._key(row), data=dict(row))

    def update(self) -> dict[str, Any]:
        return self._updated(lambda row: {})

    def move(self) -> dict[str, Any]:
        taken = {row["a"] for row in self.rows}
        free = [name for name in "123456" if name not in taken]
        if not free:
            return self.update()
        return self._updated(lambda row: {"a": self.draw(st.sampled_from(free))})

    def delete(self) -> dict[str, Any]:
        row = self._some()
        self.rows.remove(row)
        before = self._key(row) if self.keyed else dict(row)
        return change("DELETE", key=self._key(row), before=before)

    def truncate(self) -> dict[str, Any]:
        self.rows.clear()
        return change("TRUNCATE")

    def _updated(self, more: Any) -> dict[str, Any]:
        row = self._some()
        old = dict(row)
        row.update({"b": self._text(), **more(row)})
        unchanged = ["large"] if self.draw(st.booleans()) else []
        if not unchanged:
            row["large"] = self._text()
        moved = old["a"] != row["a"]
        before = (self._key(old) if moved else None) if self.keyed else old
        data = {name: value for name, value in row.items() if name not in unchanged}
        return change("UPDATE", key=self._key(row), before=before, data=data, unchanged=unchanged)

    def _some(self) -> dict[str, Any]:
        return self.rows[self.draw(st.integers(0, len(self.rows) - 1))]

    def _key(self, row: dict[str, Any]) -> dict[str, Any] | None:
        return {"a": row["a"]} if self.keyed else None

    def _text(self) -> str | None:
        return self.draw(st.sampled_from(["x", "y", None]))  # type: ignore[no-any-return]


@pytest.mark.slow
@given(st.data())
def test_steps_leave_the_rows_of_the_source(data: st.DataObject) -> None:
    table = data.draw(st.sampled_from([KEYED, BAG]))
    source = Source(data.draw, keyed=bool(table.key))
    target = MirrorTarget(SqliteDatabase(":memory:"))
    target.open([table.name])
    target.begin(table)
    target.finish(table)
    for _ in range(data.draw(st.integers(1, 3))):  # transactions of the target
        plan = TablePlan(table, target.encoders(table))
        for each in source.changes():
            plan.add(each)
        target.apply([(table, plan.steps())], {})
        assert _rows(target) == Counter(tuple(row.values()) for row in source.rows)
    target.close()


@pytest.mark.slow
@given(st.data())
def test_chunks_of_three_points_and_the_changes_between_them_leave_the_rows_of_the_source(
    data: st.DataObject,
) -> None:
    """A snapshot that was interrupted twice, as penstock/snapshots/store.py takes it: some keys
    were read at the first point, some at the second, and at the last the others and, of all, those
    that were written since the first."""
    source, log, target = (
        Source(data.draw, keyed=True),
        list[dict[str, Any]](),
        MirrorTarget(SqliteDatabase(":memory:")),
    )
    list(source.changes())  # before the first point
    read: set[str] = set()
    table = replace(
        KEYED, state="loading", snapshot_id="s", cursor=_cursor(0), last_point=_cursor(0)
    )
    target.open(["t"])
    target.begin(table)
    for point in range(3):
        written = {one["key"]["a"] for one in log if one["data"] is not None}
        if point < 2:
            wanted = data.draw(st.sets(st.sampled_from("123456"))) - read
            read |= wanted
        else:
            wanted = ({row["a"] for row in source.rows} - read) | written
        table = replace(table, last_point=_cursor(len(log)))
        rows = [tuple(row.values()) for row in source.rows if row["a"] in wanted]
        target.load(table, LoadedChunk(point, len(rows), 0), rows, is_late=table.has_several_points)
        before, changes = [dict(row) for row in source.rows], list(source.changes())
        log += changes
    table = replace(table, state="live")
    target.finish(table)
    followed = Followed(table, target, None, dropped="drop")  # type: ignore[arg-type]
    last = len(log) - len(changes)
    for number, one in enumerate(log):
        if number == last:
            assert _rows(target) == Counter(tuple(row.values()) for row in before)
        body = {"position": f"{_cursor(number)}:0", "schema_version": None, **one}
        followed.add(Delivered(number + 1, "t"), body)
        if number in (last - 1, len(log) - 1) or data.draw(st.booleans()):
            target.apply(followed.work(), {})
            followed.reached(number + 1)
    assert not followed.problem
    assert _rows(target) == Counter(tuple(row.values()) for row in source.rows)
    assert target._find("penstock_late_e3b98a4da31a127d") is None
    target.close()


def _cursor(number: int) -> str:
    return f"{number:08}"


def _rows(target: MirrorTarget) -> Counter[Any]:
    return Counter(target._run("SELECT a, b, large FROM t"))


def test_many_changes_of_a_row_are_one_step() -> None:
    plan = TablePlan(KEYED, {})
    plan.add(change("INSERT", key={"a": "1"}, data={"a": "1", "b": "x", "large": "l"}))
    for n in range(100):
        data = {"a": "1", "b": str(n)}
        plan.add(change("UPDATE", key={"a": "1"}, data=data, unchanged=["large"]))
    assert plan.steps() == [Merge(whole=[("1", "99", "l")])]
    for n in range(100):
        data = {"a": "1", "b": str(n)}
        plan.add(change("UPDATE", key={"a": "1"}, data=data, unchanged=["large"]))
    assert plan.steps() == [Merge(parts={(2,): [("1", "99", None)]})]


class CountingTarget(MirrorTarget):
    """Counts the steps that it does."""

    steps = 0

    def _step(self, table: TargetTable, step: Step) -> None:
        self.steps += 1
        super()._step(table, step)


@pytest.mark.slow
@pytest.mark.parametrize("table", [KEYED, BAG])
@given(refused=st.sets(st.integers(0, 999), min_size=1, max_size=4))
@settings(max_examples=5)
def test_the_first_row_that_is_refused_is_found_in_halves(
    table: TargetTable, refused: set[int]
) -> None:
    target = CountingTarget(SqliteDatabase(":memory:"))
    target.open([table.name])
    target.begin(table)
    target.finish(table)
    target._run("CREATE UNIQUE INDEX one ON t (b)")
    target._run("INSERT INTO t VALUES ('there', 'taken', NULL)")
    rows = [(f"{n}", "taken" if n in refused else f"{n}", None) for n in range(1000)]
    step = Merge([("none",)], {}, rows) if table.key else Recount(dict.fromkeys(rows, 1))
    with pytest.raises(TableRefused, match=rf"a={min(refused)} " if table.key else "is refused"):
        target.apply([(table, [step])], {})
    assert target.steps < 60
    target.close()
