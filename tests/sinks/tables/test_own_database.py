"""One class and one entry point make a database a sink's destination and a mirror's target."""

import pickle
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any

import pytest

from penstock.config import parse_pipeline
from penstock.consumer.mirror.steps import LoadedChunk
from penstock.consumer.mirror.target import open_target
from penstock.model.errors import SettingsError
from penstock.process import plugins
from penstock.sinks import ignore
from penstock.tables.fold import Merge
from tests.consumer.mirror.test_target import LIVE, TABLE
from tests.sinks.postgres.test_write import rows_of
from tests.sinks.tables.own import OwnDatabase

FILE = """
name: shop
backends: [{name: default, type: postgres, connection: postgresql://me:secret@127.0.0.1/shop}]
sink: {type: own, url: own://%s, map: [{backend: default, tables: {items: {create: true}}}]}
"""


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    own = EntryPoint("own", "tests.sinks.tables.own:PLUGIN", "penstock.sinks")

    groups = [f"penstock.{kind}" for kind in ("feeds", "sinks", "layouts", "stores")]
    ours = [point for group in groups for point in entry_points(group=group)]
    monkeypatch.setattr(plugins, "_installed", cache(lambda: EntryPoints([*ours, own])))
    OwnDatabase.owners.clear()
    yield
    plugins.plugin.cache_clear()


def rows(path: Path, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as file:
        return file.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


def test_a_sink_of_tables_writes_to_it(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    sink = pickle.loads(pickle.dumps(parse_pipeline(FILE % path).sink.sink()))
    sink.write([rows_of("INSERT 1 one", "INSERT 2 two", "UPDATE 1 uno")], ignore)
    assert rows(path, "items") == [(1, "uno"), (2, "two")]
    assert {*OwnDatabase.owners} == {"sink"}


def test_a_mirror_keeps_tables_in_it(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    target = open_target(f"own://{path}")
    target.open(["t"])
    target.begin(TABLE)
    target.load(TABLE, LoadedChunk(0, 1, 0), [(1, "x")])
    target.finish(LIVE)
    target.apply([(LIVE, [Merge(whole=[(2, "y")])])], {"CDC": 9})
    target.close()
    assert rows(path, "t") == [(1, "x"), (2, "y")]
    assert OwnDatabase.owners == ["mirror"]


def test_other_sinks_are_no_targets(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="known: own, postgres, sqlite"):
        open_target("jetstream://127.0.0.1")
