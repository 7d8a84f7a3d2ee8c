"""A part of a load may be a whole table: its rows go through files, some at a time."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.position import PartitionId
from penstock.sinks.delta import DeltaSink, DeltaSinkSettings, lake
from penstock.sinks.delta.rows import SpooledRows
from penstock.sinks.tables import row_writer
from tests.progress import Noted
from tests.sinks.delta.lake import Lake, ordered
from tests.sinks.postgres.test_load import Point, load_of, loaded


@pytest.mark.parametrize("kind", ["clone", "history", "log"])
@pytest.mark.parametrize("on_error", ["stop", "dead-letter"])
def test_the_rows_of_a_part_come_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, on_error: Any
) -> None:
    there, most, handed = Lake(tmp_path / "lake"), 1000, list[int]()
    monkeypatch.setattr(row_writer, "_TOGETHER", most)
    monkeypatch.setattr(row_writer, "_IN_MEMORY", most)
    append = lake.append

    def noted(table: Any, parts: Any, commit: Any) -> None:
        append(table, (handed.append(part.nbytes) or part for part in parts), commit)

    monkeypatch.setattr(lake, "append", noted)
    entry = {"backend": "default", "tables": {"items": {"type": kind}}}
    found = {"location": f"{there.folder}/{{schema}}/{{table}}", "map": [entry], "initial": True}
    sink: Any = DeltaSink(DeltaSinkSettings.model_validate({**found, "on_error": on_error}))
    sink.enter("default", PartitionId("shop"), initial=True)
    load, point = load_of(sink), Point(2)
    (part,) = load.plan(point, ["a"])
    lines = [f"{number}\trow {number}\n".encode() for number in range(1000)]
    if on_error == "dead-letter":
        lines.insert(500, b"one\tis no number\n")
    with load.writer(point, on_error, progress=Noted()) as writer:
        writer.write(part, iter(lines))
    assert load.finish([("public", "items")])
    wanted = [(number, f"row {number}") for number in range(1000)]
    assert there.rows("items", ["id", "name"]) == ordered(wanted)
    assert len(handed) > 10
    assert max(handed) < 10 * most, "rows of Arrow are larger than their lines, but not all of them"
    letters = [each["error"] for each in sink.dead_letters()]
    assert len(letters) == (on_error == "dead-letter")
    assert list(there.folder.glob("tmp*")) == [], "their files have no name, or are gone"


def test_a_reload_of_a_history_without_rows_ends_all_versions(tmp_path: Path) -> None:
    there = Lake(tmp_path / "lake")
    entry = {"backend": "default", "tables": {"items": {"type": "history"}}}
    found = {"location": f"{there.folder}/{{schema}}/{{table}}", "map": [entry], "initial": True}
    sink: Any = DeltaSink(DeltaSinkSettings.model_validate(found))
    sink.enter("default", PartitionId("shop"), initial=True)
    for lines in (b"1\ta\n2\tb", b"", b"2\tb"):
        loaded(load_of(sink), Point(), lines)
        load_of(sink).finish([("public", "items")])
        load_of(sink).settle("stop")
        sink.reload("items", None)
    names = ["id", "kvsz_deleted"]
    assert there.rows("items", names) == ordered([(1, True), (2, True), (2, False)])


def test_of_rows_with_one_key_the_last_counts(tmp_path: Path) -> None:
    names = ["id", "name"]

    def spooled(*key: str) -> list[tuple[int, str]]:
        rows = SpooledRows(tmp_path, key)
        assert not rows
        for ids, texts in (([1, 2, 1], "abc"), ([3], "d"), ([2, 4], "ef"), ([], "")):
            columns = [pa.array(ids, pa.int64()), pa.array([*texts], pa.string())]
            rows.add(pa.Table.from_arrays(columns, names=names))
        assert rows
        parts = pa.concat_tables(rows.parts()).to_pylist()
        return [(each["id"], each["name"]) for each in parts]

    assert spooled() == [(1, "a"), (2, "b"), (1, "c"), (3, "d"), (2, "e"), (4, "f")]
    assert spooled("id") == [(1, "c"), (3, "d"), (2, "e"), (4, "f")]
    assert list(tmp_path.iterdir()) == []
