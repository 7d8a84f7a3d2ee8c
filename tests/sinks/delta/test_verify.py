"""`penstock verify` names what a Delta table has otherwise than its source, and mends it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from penstock.cli import main
from tests.servers import Database
from tests.sinks.delta.lake import Lake, change
from tests.sinks.postgres.flow import Flow
from tests.waiting import until

TABLES = """
CREATE TABLE items (id int, of text, n numeric(12,2), f float8, at timestamptz, bytes bytea,
                    ints int[], many timestamptz[], long interval, PRIMARY KEY (id, of));
INSERT INTO items SELECT g, 'a,' || g, g, CASE WHEN g % 2 = 0 THEN 'NaN' ELSE g::float8 END,
    '2026-01-01 00:00Z'::timestamptz + g * interval '1 s', '\\x00ff', ARRAY[g, NULL],
    ARRAY['2026-01-01 00:00Z'::timestamptz], '1 day 2:00' FROM generate_series(1, 300) g;
INSERT INTO items (id, of) VALUES (301, ''), (302, E'tab\\tnew\\nline\\\\');
CREATE TABLE notes (name text); ALTER TABLE notes REPLICA IDENTITY FULL;
"""
HISTORY = {"type": "history"}


def verified(file: Path, *options: str) -> tuple[int, list[str]]:
    found = CliRunner().invoke(main, ["verify", str(file), *options])
    return found.exit_code, [" ".join(line.split()) for line in found.output.splitlines()]


def pipeline(source: Database, lake: Lake, tables: dict[str, Any], sink: dict[str, Any]) -> Path:
    file = lake.folder.parent / "pipeline.yaml"
    backend = {"name": "shop", "type": "postgres", "connection": source.url,
               "slot": f"flow_{source.name}"}  # fmt: skip
    where = {"type": "delta", "location": f"{lake.folder}/{{schema}}/{{table}}"}
    sink = {**where, **sink, "map": [{"backend": "shop", "tables": tables}]}
    file.write_text(yaml.safe_dump({"name": "flow", "backends": [backend], "sink": sink}))
    return file


@pytest.mark.parametrize("sink", [{}, {"buckets": 3, "sid_column": "shop"}], ids=str)
def test_rows_that_differ_are_named_and_mended(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: dict[str, Any]
) -> None:
    monkeypatch.setattr("penstock.feeds.postgres.slot.settle", lambda *_: None)
    lake, tables = Lake(tmp_path / "lake"), {"items": {}, "notes": {"type": "log"}}
    database.execute(TABLES)
    with Flow(database, lake.folder, tables, sink=sink) as flow:
        flow.loaded()
    file, sid = pipeline(database, lake, tables, sink), f"flow_{database.name}"
    equal = [f"equal shop/{sid} public.items -> public.items"]
    assert verified(file) == (0, equal)
    table = lake.table("items")
    table.delete("id IN (1, 301)")
    table.update({"n": "7.00", "ints": "NULL"}, predicate="id = 2")
    table.update({"of": "'other'"}, predicate="id = 302")
    assert verified(file, "items") == (1, [
        f"different shop/{sid} public.items -> public.items",
        "missing (1,a,1)", "changed (2,a,2): n, ints", "missing (301,)", "extra (302,other)",
        r"missing (302,tab\tnew\nline\\)",
    ])  # fmt: skip
    code, lines = verified(file, "--repair")
    assert (code, lines[0].split()[0]) == (0, "repaired")
    assert verified(file) == (0, equal)
    database.execute("UPDATE items SET n = 1 WHERE id < 5; DELETE FROM items WHERE id = 9")
    with Flow(database, lake.folder, tables, sink=sink, initial=False) as flow:
        until(lambda: flow.check() or verified(file) == (0, equal), 60, problem=flow.states)
    assert verified(file, "notes")[0] == 2


def test_rows_are_mended_where_one_side_has_none(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.feeds.postgres.slot.settle", lambda *_: None)
    lake, tables = Lake(tmp_path / "lake"), {"items": {}}
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO items VALUES (1, 'one'), (2, NULL)")
    file = pipeline(database, lake, tables, {})
    with Flow(database, lake.folder, tables) as flow:
        flow.loaded()
    lake.table("items").delete()
    assert verified(file, "--repair")[0] == 0
    assert lake.rows("items") == [(1, "one"), (2, None)]
    database.execute("DELETE FROM items")
    assert verified(file, "--repair")[1][1:] == ["extra (1)", "extra (2)"]
    assert lake.rows("items") == []
    assert verified(file)[0] == 0


def test_of_a_history_the_open_versions_are_compared(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.feeds.postgres.slot.settle", lambda *_: None)
    lake, tables = Lake(tmp_path / "lake"), {"items": HISTORY}
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text, n int, large text)")
    database.execute("INSERT INTO items SELECT g, 'old', g, 'x' FROM generate_series(1, 50) g")
    file = pipeline(database, lake, tables, {})
    with Flow(database, lake.folder, tables) as flow:
        flow.loaded()
        change(database, 5, 20)
        until(lambda: flow.check() or verified(file)[0] == 0, 60)
    lake.table("items").delete("id > 20")
    assert verified(file)[0] == 1
    code, lines = verified(file, "--repair")
    assert code == 2
    assert any("is a history" in line for line in lines)
