"""`penstock tables list` shows the size of each table, which is read when it is asked for; the
status has the one that is known since the last commit."""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from penstock.cli import main
from penstock.config import load_pipeline
from penstock.sinks import Sink, ignore
from penstock.sinks.delta import lake
from tests.progress import Noted
from tests.sinks.postgres.test_load import Point, load_of, loaded
from tests.sinks.postgres.test_write import rows_of

FILE = """
name: lake
backends:
  - {{name: default, type: postgres, connection: "postgresql://localhost/", slot: lake}}
sink:
  type: delta
  location: {folder}/{{schema}}/{{table}}
  commit: {{wait: 20ms}}
  buckets: 3
  map: [{{backend: default, tables: {{items: {{}}}}}}]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A pipeline whose table has two commits."""
    path = tmp_path / "pipeline.yaml"
    path.write_text(FILE.format(folder=tmp_path / "lake"))
    sink = load_pipeline(path).sink.sink()
    sink.write([rows_of("INSERT 1 one", "INSERT 2 two", "INSERT 3 three", commit=1)], ignore)
    sink.write([rows_of("UPDATE 1 uno", commit=2)], ignore)
    return path


def listed(file: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["tables", "list", str(file), *options])


def test_a_table_has_the_files_of_its_last_version(file: Path, tmp_path: Path) -> None:
    (row,) = json.loads(listed(file, "--json").stdout)
    table = DeltaTable(str(tmp_path / "lake" / "public" / "items"))
    files = [Path(each.removeprefix("file://")) for each in table.file_uris()]
    assert row["version"] == table.version() == 2
    assert len(files) > 1
    assert (row["files"], row["bytes"]) == (len(files), sum(each.stat().st_size for each in files))
    head, cells, *_ = listed(file).stdout.splitlines()
    assert head.split()[-3:] == ["version", "files", "bytes"]
    assert cells.split()[-3:] == ["2", str(len(files)), str(row["bytes"])]
    assert head.split()[-5:-3] == ["last", "commit"]
    age = datetime.now(UTC) - datetime.fromisoformat(row["last_commit"])
    assert timedelta(0) <= age < timedelta(minutes=2)


def test_a_table_that_cannot_be_read_is_listed_without_a_size(file: Path, tmp_path: Path) -> None:
    for each in (tmp_path / "lake" / "public" / "items" / "_delta_log").glob("*.json"):
        each.write_text("no log")
    done = listed(file, "--json")
    (row,) = json.loads(done.stdout)
    assert row["state"] == "live" and "version" not in row
    assert "public.items: reading " in done.stderr


def test_a_commit_does_not_ask_for_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "size_of", lambda _: pytest.fail("it is asked for"))
    sink = load_pipeline(file).sink.sink()
    sink.write([rows_of("INSERT 4 four", commit=3)], ignore)
    assert len(sink.tables()) == 1  # type: ignore[attr-defined]


def sink_of(file: Path) -> Any:
    return load_pipeline(file).sink.sink()


SIZE = ("version", "files", "bytes")


def known(sink: Sink) -> dict[str, Any]:
    (row,) = sink.tables()  # type: ignore[attr-defined]
    return {name: row[name] for name in SIZE if name in row}


def there(file: Path) -> dict[str, Any]:
    layout = lake.DeltaLayout(uri=str(file.parent / "lake" / "public" / "items"))
    found = lake.size_of(layout)
    return {name: found[name] for name in SIZE}


def last_of(reports: Noted) -> Mapping[str, Any]:
    """What the status has of the table after these reports."""
    found: dict[str, Any] = {}
    for report in reports:
        for table in report.get("tables", ()):
            found |= table
    return found


def test_the_status_has_the_size_after_each_commit_and_after_a_start(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = there(file)
    monkeypatch.setattr(lake, "size_of", lambda _: pytest.fail("the table is opened"))
    assert known(sink_of(file)) == want
    noted = Noted()
    begun = datetime.now(UTC) - timedelta(milliseconds=1)
    sink_of(file).write([rows_of("INSERT 4 four", "DELETE 1", commit=3)], noted)
    monkeypatch.undo()
    table = last_of(noted)
    assert {name: table[name] for name in SIZE} == there(file) != want
    assert begun <= datetime.fromisoformat(table["last_commit"]) <= datetime.now(UTC)


def test_it_is_that_of_a_compaction_after_the_commit(file: Path) -> None:
    file.write_text(file.read_text().replace("buckets: 3", "clean: 1ms\n  buckets: 3"))
    sink = sink_of(file)
    for number in range(3):
        sink.write([rows_of(f"INSERT {number + 10} x", commit=number + 3)], ignore)
    assert known(sink) == there(file)
    last = lake.open_table(lake.DeltaLayout(uri=str(file.parent / "lake" / "public" / "items")))
    assert last is not None
    assert "OPTIMIZE" in {each["operation"] for each in last.history(4)}


def test_a_load_says_it_too(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(FILE.format(folder=tmp_path / "lake"))
    sink, noted = sink_of(path), Noted()
    sink.enter("default", "p0", initial=True)
    load, point = load_of(sink), Point(2)
    loaded(load, point, b"1\tone\n2\ttwo", noted=noted)
    assert load.finish({("public", "items")})
    load.settle("stop", noted)
    table = last_of(noted)
    assert {name: table[name] for name in SIZE} == there(path)


def test_a_ledger_of_an_earlier_version_learns_it_with_the_next_commit(file: Path) -> None:
    with closing(sqlite3.connect(file.parent / "lake" / "_penstock.db")) as ledger:
        ledger.execute("DROP TABLE penstock_delta_table")
        ledger.commit()
    sink = sink_of(file)
    assert known(sink) == {}
    sink.write([rows_of("INSERT 4 four", commit=3)], ignore)
    assert known(sink) == there(file)
