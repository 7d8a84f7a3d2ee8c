"""A change is in a Delta table once, whatever ends between its commit and the ledger's."""

import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from penstock.model.errors import Unavailable
from penstock.model.position import PartitionId
from penstock.sinks.delta import DeltaSink, DeltaSinkSettings, lake
from tests.progress import Noted
from tests.servers import Database
from tests.sinks.delta.lake import Lake, ordered
from tests.sinks.postgres.test_load import Point, load_of, loaded
from tests.sinks.postgres.test_write import rows_of
from tests.sinks.tables.test_steps import follow_through_kills

SinkOf = Callable[..., DeltaSink]


@pytest.fixture
def there(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def sink_of(there: Lake) -> SinkOf:
    """`sink_of(settings, **options of the table items)`."""

    def make(settings: dict[str, Any] | None = None, **options: Any) -> DeltaSink:
        entries = [{"backend": "default", "tables": {"items": options}}]
        found = {
            "location": f"{there.folder}/{{schema}}/{{table}}",
            "map": entries,
            "every": "20ms",
        }
        return DeltaSink(DeltaSinkSettings.model_validate({**found, **(settings or {})}))

    return make


def states(sink: DeltaSink) -> dict[str, str]:
    return {each["state"]: str(each["error"]) for each in sink.tables()}


def failing(monkeypatch: pytest.MonkeyPatch, name: str, *, after: bool) -> None:
    """The next call fails as where the storage is away: before, or after it was done."""
    real, calls = getattr(lake, name), []

    def failed(*args: Any) -> None:
        if not calls:
            calls.append(1)
            if after:
                real(*args)
            raise OSError("the storage is away")
        real(*args)

    monkeypatch.setattr(lake, name, failed)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("kind", "name"), [("clone", "merge"), ("log", "append")])
def test_a_commit_without_an_answer_is_once(
    there: Lake, sink_of: SinkOf, monkeypatch: pytest.MonkeyPatch, kind: str, name: str,
    after: bool,
) -> None:  # fmt: skip
    sink = sink_of(type=kind)
    sink.write([rows_of("INSERT 1 one", commit=1)], Noted())
    failing(monkeypatch, name, after=after)
    batch = rows_of("INSERT 2 two", "UPDATE 1 uno", commit=2)
    sink.write([batch], Noted())
    sink.write([batch, rows_of("INSERT 3 three", commit=3)], Noted())
    many = {"clone": [(1, "uno"), (2, "two"), (3, "three")],
            "log": [(1, "one"), (1, "uno"), (2, "two"), (3, "three")]}  # fmt: skip
    assert there.rows("items", ["id", "name"]) == ordered(many[kind])
    assert there.table("items").transaction_version("penstock/default/shop/public.items") == 3


@pytest.mark.parametrize("kind", ["clone", "log"])
def test_a_commit_that_the_ledger_lacks_counts_for_each_part_of_it(
    there: Lake, sink_of: SinkOf, kind: str
) -> None:
    first, second, third = (
        rows_of(*changes, commit=number)
        for number, changes in enumerate([["INSERT 1 one"], ["INSERT 2 two"], ["UPDATE 1 uno"]], 1)
    )
    sink_of(type=kind).write([first], Noted())
    with closing(sqlite3.connect(":memory:")) as before:
        with closing(sqlite3.connect(there.folder / "_penstock.db")) as ledger:
            ledger.backup(before)
        sink_of(type=kind).write([pa.concat_batches([second, third])], Noted())
        with closing(sqlite3.connect(there.folder / "_penstock.db")) as ledger:
            before.backup(ledger)
    sink = sink_of(type=kind)
    for batch in (second, third, rows_of("INSERT 3 three", commit=4)):
        sink.write([batch], Noted())
    many = {"clone": [(1, "uno"), (2, "two"), (3, "three")],
            "log": [(1, "one"), (1, "uno"), (2, "two"), (3, "three")]}  # fmt: skip
    assert there.rows("items", ["id", "name"]) == ordered(many[kind])


def test_changes_that_come_to_nothing_are_no_commit(there: Lake, sink_of: SinkOf) -> None:
    sink = sink_of()
    for number, changes in enumerate((
        ["INSERT 1 one"], ["INSERT 2 two", "DELETE 2"], ["DELETE 7"], ["INSERT 3 three"],
        ["TRUNCATE"], ["TRUNCATE"], ["INSERT 4 four"],
    ), 1):  # fmt: skip
        sink.write([rows_of(*changes, commit=number)], Noted())
    assert states(sink).keys() == {"live"}
    assert there.rows("items") == [(4, "four")]


@pytest.mark.parametrize("after", [False, True])
def test_a_part_of_a_load_without_an_answer_is_once(
    there: Lake, sink_of: SinkOf, monkeypatch: pytest.MonkeyPatch,
    after: bool,
) -> None:  # fmt: skip
    sink: Any = sink_of({"initial": True})
    sink.enter("default", PartitionId("shop"), initial=True)
    load, point = load_of(sink), Point(2)
    first, second, third = load.plan(point, ["a", "b", "c"])
    with load.writer(point) as writer:
        writer.write(first, [b"1\ta\n"])
    failing(monkeypatch, "append", after=after)
    with pytest.raises(Unavailable), load.writer(point) as writer:
        writer.write(third, [b"3\tc\n"])
    again = load_of(sink)
    assert again.begin(point) == [second, third]
    with again.writer(point) as writer:
        writer.write(second, [b"2\tb\n"])
        writer.write(third, [b"3\tc\n"])
    assert again.finish([("public", "items")])
    assert there.rows("items") == [(1, "a"), (2, "b"), (3, "c")]


def test_a_second_writer_is_found(there: Lake, sink_of: SinkOf, tmp_path: Path) -> None:
    ours, theirs = sink_of(), sink_of({"ledger": tmp_path / "theirs.db"})
    ours.write([rows_of("INSERT 1 one", commit=1)], Noted())
    theirs.write([rows_of("INSERT 1 one", "INSERT 2 two", commit=2)], Noted())
    ours.write([rows_of("INSERT 1 one", "INSERT 2 two", commit=2)], Noted())
    assert "another pipeline writes" in states(ours)["waiting"]
    assert there.rows("items") == [(1, "one"), (2, "two")]


def test_a_commit_of_another_program_meanwhile_is_no_harm(
    there: Lake, sink_of: SinkOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of()
    sink.write([rows_of("INSERT 1 one", commit=1)], Noted())
    real, others = lake.merge, [there.table("items")]

    def merge(*args: Any) -> None:
        if others:
            others.pop().optimize.compact()
            table = there.table("items")
            write_deltalake(table, table.to_pyarrow_table().slice(0, 0), mode="append")
        real(*args)

    monkeypatch.setattr(lake, "merge", merge)
    sink.write([rows_of("INSERT 2 two", commit=2)], Noted())
    assert there.rows("items") == [(1, "one"), (2, "two")]


def load_seven(sink: Any) -> None:
    """The load of a table that waits for one: one row."""
    load, point = load_of(sink), Point(9)
    assert load.begin(point) is None
    loaded(load, point, b"7\tseven")
    assert load.finish([("public", "items")])
    load_of(sink).settle("stop")


def test_a_table_that_went_back_waits_until_it_is_loaded_anew(
    there: Lake, sink_of: SinkOf, tmp_path: Path
) -> None:
    sink: Any = sink_of()
    sink.write([rows_of("INSERT 1 one", commit=1)], Noted())
    shutil.copytree(there.folder / "public", tmp_path / "kept")
    sink.write([rows_of("INSERT 2 two", commit=2)], Noted())
    shutil.rmtree(there.folder / "public")
    shutil.copytree(tmp_path / "kept", there.folder / "public")
    sink.write([rows_of("INSERT 3 three", commit=3)], Noted())
    assert "has less than it had" in states(sink)["waiting"]
    sink.reload("items", None)
    load_seven(sink)
    sink.write([rows_of("INSERT 10 ten", commit=10)], Noted())
    assert there.rows("items") == ordered([(7, "seven"), (10, "ten")])
    assert [*states(sink)] == ["live"]


def test_changes_are_held_while_a_part_of_a_load_is_read(there: Lake, sink_of: SinkOf) -> None:
    sink: Any = sink_of()
    sink.write([rows_of("INSERT 1 one", commit=1)], Noted())
    sink.reload("items", None)
    load, point = load_of(sink), Point(9)
    assert load.begin(point) is None
    (part,) = load.plan(point, ["all"])

    def pieces() -> Iterator[bytes]:
        yield b"7\tseven\n"
        begun = time.monotonic()
        sink.write([rows_of("INSERT 10 ten", commit=10)], Noted())
        assert time.monotonic() - begun < 10
        yield b"8\teight\n"

    with load.writer(point) as writer:
        writer.write(part, pieces())
    assert load.finish([("public", "items")])
    load_of(sink).settle("stop")
    assert there.rows("items") == ordered([(7, "seven"), (8, "eight"), (10, "ten")])


@pytest.mark.parametrize("kind", ["clone", "append", "log"])
def test_a_table_that_was_restored_waits_until_it_is_loaded_anew(
    there: Lake, sink_of: SinkOf, kind: str
) -> None:
    sink: Any = sink_of(type=kind)
    sink.write([rows_of("INSERT 1 one", commit=1)], Noted())
    version = there.table("items").version()
    sink.write([rows_of("INSERT 2 two", commit=2)], Noted())
    there.table("items").restore(version)
    sink.write([rows_of("INSERT 3 three", commit=3)], Noted())
    assert "has less than it had" in states(sink)["waiting"]
    sink.reload("items", None)
    load_seven(sink)
    sink.write([rows_of("INSERT 10 ten", commit=10)], Noted())
    assert [*states(sink)] == ["live"]
    kept = [] if kind == "clone" else [1]
    assert sorted(key for (key,) in there.rows("items", ["id"])) == [*kept, 7, 10]


def test_a_table_is_compacted_now_and_then(there: Lake, sink_of: SinkOf) -> None:
    sink = sink_of({"clean": "1ms"}, type="log")
    for number in range(1, 5):
        sink.write([rows_of(f"INSERT {number} x", commit=number)], Noted())
    assert len(there.rows("items")) == 4
    assert len(there.table("items").file_uris()) == 1
    assert "OPTIMIZE" in {each["operation"] for each in there.table("items").history()}


@pytest.mark.fault
def test_a_kill_at_each_step_loses_and_repeats_nothing(
    database: Database, there: Lake, tmp_path: Path
) -> None:
    for table in ("items", "notes"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, name text, n int)")
        database.execute(f"INSERT INTO {table} SELECT -g, 'old', 0 FROM generate_series(1, 2000) g")
    query = "SELECT id, name, n FROM {}"
    follow_through_kills(database, str(there.folder), tmp_path, there.rows, query)


def test_an_append_keeps_what_its_source_deletes(there: Lake, sink_of: SinkOf) -> None:
    sink = sink_of({"mode": "append"})
    sink.write([rows_of("INSERT 1 one", "INSERT 2 two", commit=1)], Noted())
    gone = rows_of("DELETE 1", "TRUNCATE", "INSERT 2 zwei", commit=2, key=["1", None, "2"])
    sink.write([gone], Noted())
    assert there.rows("items") == [(1, "one"), (2, "zwei")]


def test_a_truncate_is_one_commit_with_the_rows_after_it(there: Lake, sink_of: SinkOf) -> None:
    sink = sink_of()
    sink.write([rows_of("INSERT 1 one", "INSERT 2 two", commit=1)], Noted())
    before = there.table("items").version()
    emptied = rows_of("INSERT 3 x", "TRUNCATE", "INSERT 4 four", commit=2, key=["3", None, "4"])
    sink.write([emptied], Noted())
    assert there.rows("items") == [(4, "four")]
    assert there.table("items").version() == before + 1
    sink.write([rows_of("TRUNCATE", commit=3, key=[None])], Noted())
    assert there.rows("items") == []


def test_a_preview_shows_rows_and_makes_nothing(there: Lake, sink_of: SinkOf) -> None:
    sink = sink_of()
    (table,) = sink.settings.tables()
    with sink.previewing() as preview:
        good, bad = preview(table, "shop", Point().schema, ["1\tone", "x\ttwo"])
    assert (good.before, good.after) == ({"id": 1, "name": "one"},) * 2
    assert "cannot hold" in str(bad.problem)
    assert not there.folder.exists()


@pytest.mark.parametrize(
    ("settings", "options", "problem"),
    [
        ({"location": "/lake/table"}, {}, "write {table}"),
        ({"location": "/lake/{other}/{table}"}, {}, "write {table}"),
        ({"location": "s3://lake/{table}"}, {}, "name a SQLite file"),
        ({"history": {"start": "sid"}}, {}, "both have the name sid"),
        ({}, {"partitions": "items_.*"}, "`partitions`, which a sink of type delta does not have"),
        ({}, {"schema": "_id STRING", "filter": "true"}, "neither `filter` nor `set`: filter and"),
    ],
)
def test_settings_that_it_does_not_have_are_refused(
    sink_of: SinkOf, settings: dict[str, Any], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        sink_of(settings, **options)
