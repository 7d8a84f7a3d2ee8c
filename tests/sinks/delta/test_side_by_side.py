"""Tables are committed side by side, and each change is in its table once."""

import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.sinks.delta import DeltaSink, DeltaSinkSettings, lake
from tests.progress import Noted
from tests.sinks.delta.lake import Lake, ordered
from tests.sinks.postgres.test_write import ITEMS, rows_of

NAMES = ("items", "notes", "users")
Rows = dict[int, str]


@pytest.fixture
def there(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def sink_of(there: Lake, *, kind: str = "clone", **settings: Any) -> DeltaSink:
    tables = {name: {"type": kind} for name in NAMES}
    return DeltaSink(DeltaSinkSettings.model_validate({
        "location": f"{there.folder}/{{schema}}/{{table}}", "every": "20ms",
        "map": [{"backend": "default", "tables": tables}], **settings,
    }))  # fmt: skip


def transaction(commit: int, changes: Mapping[str, list[str]], **columns: Any) -> pa.RecordBatch:
    """Changes of several tables in one transaction."""
    found, start = [], 0
    for name, texts in changes.items():
        number = 16385 + NAMES.index(name)
        relation = {**ITEMS, "table": name, "relation_id": number}
        found.append(rows_of(
            *texts, commit=commit, start=start, relation=relation, relation_id=number,
            collection=name, **columns,
        ))  # fmt: skip
        start += len(texts)
    return pa.concat_batches(found)


def states(sink: DeltaSink) -> dict[str, str]:
    return {each["table"].partition(".")[2]: each["state"] for each in sink.tables()}


def before_merges(monkeypatch: pytest.MonkeyPatch, called: Callable[[str], None]) -> None:
    """`called` with the name of the table, in the thread that writes it."""
    real = lake.merge

    def merge(table: Any, *args: Any, **named: Any) -> None:
        called(table.table_uri.rstrip("/").rpartition("/")[2])
        real(table, *args, **named)

    monkeypatch.setattr(lake, "merge", merge)


FIRST = transaction(1, {name: ["INSERT 1 one"] for name in NAMES})
SECOND = transaction(2, {name: ["UPDATE 1 uno", "INSERT 2 two"] for name in NAMES})
BOTH = [(1, "uno"), (2, "two")]


def test_commits_of_several_tables_go_on_at_the_same_time(
    there: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of(there, workers=3)
    sink.write([FIRST], Noted())
    all_have_begun = threading.Barrier(3, timeout=30)
    before_merges(monkeypatch, lambda _: all_have_begun.wait() and None)
    sink.write([SECOND], Noted())
    assert {name: there.rows(name) for name in NAMES} == dict.fromkeys(NAMES, BOTH)
    assert states(sink) == dict.fromkeys(NAMES, "live")


@pytest.mark.parametrize("workers", [1, 2])
def test_as_many_tables_are_written_at_once_as_there_are_workers(
    there: Lake, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    sink = sink_of(there, workers=workers)
    sink.write([FIRST], Noted())
    threads = set[str]()
    before_merges(monkeypatch, lambda _: threads.add(threading.current_thread().name))
    sink.write([SECOND], Noted())
    assert {name.rpartition("_")[0] for name in threads} == (
        {""} if workers == 1 else {"penstock-table"}
    )
    assert len(threads) <= workers
    assert {name: there.rows(name) for name in NAMES} == dict.fromkeys(NAMES, BOTH)


def test_a_table_that_waits_does_not_keep_others_from_their_commits(
    there: Lake, tmp_path: Path
) -> None:
    sink = sink_of(there)
    sink.write([FIRST], Noted())
    shutil.copytree(there.folder / "public" / "notes", tmp_path / "kept")
    sink.write([SECOND], Noted())
    shutil.rmtree(there.folder / "public" / "notes")
    shutil.copytree(tmp_path / "kept", there.folder / "public" / "notes")
    sink.write([transaction(3, {name: ["INSERT 3 tri"] for name in NAMES})], Noted())
    assert states(sink) == {"items": "live", "notes": "waiting", "users": "live"}
    assert there.rows("items") == there.rows("users") == [*BOTH, (3, "tri")]
    held = {each["table"]: each["held"] for each in sink.tables()}
    assert held == {"public.items": 0, "public.notes": 1, "public.users": 0}


def test_a_refused_change_is_isolated_while_other_tables_are_committed(there: Lake) -> None:
    sink = sink_of(there, on_error="dead-letter")
    sink.write([FIRST], Noted())
    noted = Noted()
    changes = {name: ["INSERT 2 two", "INSERT 3 tri"] for name in NAMES}
    changes["notes"][0] = "INSERT x two"
    sink.write([transaction(2, changes)], noted)
    assert there.rows("items") == there.rows("users") == [(1, "one"), (2, "two"), (3, "tri")]
    assert there.rows("notes") == [(1, "one"), (3, "tri")]
    assert [each["table"] for each in sink.dead_letters()] == ["public.notes"]


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_without_an_answer_beside_others_is_once(
    there: Lake, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    sink = sink_of(there)
    sink.write([FIRST], Noted())
    versions = {name: there.table(name).version() for name in NAMES}
    real, failed = lake.merge, list[int]()

    def merge(table: Any, *args: Any, **named: Any) -> None:
        is_failing = table.table_uri.rstrip("/").endswith("notes") and not failed
        if is_failing:
            failed.append(1)
        if after or not is_failing:
            real(table, *args, **named)
        if is_failing:
            raise OSError("the storage is away")

    monkeypatch.setattr(lake, "merge", merge)
    sink.write([SECOND], Noted())
    assert failed
    assert {name: there.rows(name) for name in NAMES} == dict.fromkeys(NAMES, BOTH)
    now = {name: there.table(name).version() for name in NAMES}
    assert now == {name: number + 1 for name, number in versions.items()}


def test_sources_of_one_table_do_not_collide(there: Lake) -> None:
    sink = sink_of(there, sid_column="sid", workers=4)
    for commit, text in enumerate(("INSERT 1 one", "UPDATE 1 uno", "INSERT 2 two"), 1):
        sink.write([
            transaction(commit, {name: [text] for name in NAMES}, partition=sid)
            for sid in ("a", "b")
        ], Noted())  # fmt: skip
    want = ordered((sid, *row) for sid in ("a", "b") for row in BOTH)
    for name in NAMES:
        assert there.rows(name, ["sid", "id", "name"]) == want
        # Each commit is one version, after that which made the table.
        assert there.table(name).version() == 6


@pytest.mark.parametrize("kind", ["clone", "history", "log"])
@pytest.mark.parametrize("seed", range(3))
def test_tables_have_each_change_once_over_failures_and_kills(
    there: Lake, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    """A kill between the commits and the ledger's: the ledger is as it was before."""
    chance, ledger = random.Random(seed), there.folder / "_penstock.db"
    want: dict[str, Rows] = {name: {} for name in NAMES}
    counts = dict.fromkeys(NAMES, 0)
    fails = _failing(monkeypatch, "append" if kind == "log" else "merge", chance)
    transactions = []
    for commit in range(1, 21):
        changes = {}
        for name in chance.sample(NAMES, chance.randint(1, 3)):
            changes[name] = [_changed(want[name], chance, commit) for _ in range(3)]
            counts[name] += 3
        transactions.append(transaction(commit, changes))
    done = 0
    while done < len(transactions):
        some = transactions[done : done + chance.randint(1, 4)]
        with closing(sqlite3.connect(":memory:")) as before:
            is_killed = done > 0 and chance.random() < 0.5
            if is_killed:
                with closing(sqlite3.connect(ledger)) as now:
                    now.backup(before)
            fails.extend([1] * chance.randint(0, 1))
            sink_of(there, kind=kind).write(some, Noted())
            if is_killed:
                with closing(sqlite3.connect(ledger)) as now:
                    before.backup(now)
            else:
                done += len(some)
    for name in NAMES:
        found = there.table(name).to_pyarrow_table()
        if kind == "log":
            sequences = found.column("_sequence").to_pylist()
            assert len(sequences) == len({*sequences}) == counts[name]
            continue
        if kind == "history":
            ends = found.column("kvsz_end").to_pylist()
            found = found.filter(pa.array([end.year == 9999 for end in ends], pa.bool_()))
        rows = zip(found.column("id").to_pylist(), found.column("name").to_pylist(), strict=True)
        assert sorted(rows) == sorted(want[name].items())


def _changed(rows: Rows, chance: random.Random, commit: int) -> str:
    key, name = chance.randint(1, 8), f"n{commit}.{chance.randint(1, 9)}"
    if key in rows and chance.random() < 0.3:
        del rows[key]
        return f"DELETE {key}"
    kind = "UPDATE" if key in rows else "INSERT"
    rows[key] = name
    return f"{kind} {key} {name}"


def _failing(monkeypatch: pytest.MonkeyPatch, name: str, chance: random.Random) -> list[int]:
    """As long as there are items in the list, calls may fail: before, or after they are done."""
    real, fails, own = getattr(lake, name), list[int](), random.Random(chance.random())

    def called(*args: Any, **named: Any) -> None:
        is_failing = bool(fails) and own.random() < 0.5
        if not is_failing or own.random() < 0.5:
            real(*args, **named)
        if is_failing:
            if fails:
                fails.pop()
            raise OSError("the storage is away")

    monkeypatch.setattr(lake, name, called)
    return fails
