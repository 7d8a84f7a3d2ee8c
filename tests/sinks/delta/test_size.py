"""`penstock tables list` shows the size of each table, which is read when it is asked for."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from penstock.cli import main
from penstock.config import load_pipeline
from penstock.sinks import ignore
from penstock.sinks.delta import lake
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
