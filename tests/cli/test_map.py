"""`penstock map`."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from penstock.cli import main
from penstock.config.map_store import MapStore

URL = "postgresql://cdc:s3cret@eu.example/shop"

# What kuvasz-streamer's documentation calls a mapping: a table without options is null.
KUVASZ = """\
- database: shop
  urls:
  - url: "postgres://kuvasz:s3cret@127.0.0.1:5001/shop?replication=database&application_name=x"
    sid: eu
  - {url: "postgres://kuvasz:s3cret@127.0.0.1:5002/shop", sid: us-1}
  tables:
    items:
    sales.orders: {type: append, target: all_orders}
    prices: {type: history, insert: true}
    logs: {partitions_regex: "logs_[0-9]+"}
    people:
      type: clone
      filter: "age > 18 && country == 'DE'"
      set:
        name: "'*****'"
        id: "id"
- database: empty
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "sink: {type: postgres, connection: postgresql://h/all, "
        f"map: 'sqlite:///{tmp_path}/map.db'}}\n"
    )
    return path


def run(file: Path, *arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["map", str(file), *arguments])
    return done.exit_code, done.stdout, done.stderr


def tables(file: Path) -> list[Any]:
    found: list[Any] = json.loads(run(file, "--json")[1])
    return found


TAKEN = {
    "public.items": ("clone", "", {}),
    "sales.orders": ("append", "all_orders", {}),
    "public.prices": ("history", "", {}),
    "public.logs": ("clone", "", {"partitions_regex": "logs_[0-9]+"}),
}


def test_the_yaml_of_kuvasz_is_read_and_cel_is_listed(file: Path, tmp_path: Path) -> None:
    source = tmp_path / "map.yaml"
    source.write_text(KUVASZ)
    code, out, err = run(file, "import", str(source))
    assert (code, out) == (1, "2 backends, 2 sources and 4 tables are in the map\n")
    assert err.startswith("shop: people is not imported: write as SQL, by hand\n")
    assert yaml.safe_load(err.partition("\n")[2]) == {
        "filter": "age > 18 && country == 'DE'", "set": {"name": "'*****'", "id": "id"},
    }  # fmt: skip
    found = tables(file)
    assert {
        each["table"]: (each["type"], each["target"], each["options"]) for each in found
    } == TAKEN
    assert {(each["backend"], *each["sids"]) for each in found} == {("shop", "eu", "us-1")}
    with MapStore(tmp_path / "map.db") as store:
        (backend,) = store.content().backends
        assert [each["name"] for each in store.rows("db")] == ["shop", "empty"]
    assert backend["sources"][0]["connection"].endswith("5001/shop?application_name=x")


@pytest.mark.slow
def test_the_database_of_kuvasz_is_read(file: Path, tmp_path: Path) -> None:
    source = tmp_path / "kuvasz.db"
    with sqlite3.connect(source) as db:
        db.executescript("""
            CREATE TABLE goose_db_version (id INTEGER PRIMARY KEY, version_id INTEGER);
            CREATE TABLE db (db_id INTEGER PRIMARY KEY, name TEXT UNIQUE);
            CREATE TABLE url (url_id INTEGER PRIMARY KEY, db_id INTEGER, url TEXT, sid TEXT);
            CREATE TABLE tbl (tbl_id INTEGER PRIMARY KEY, db_id INTEGER, schema TEXT, name TEXT,
                type TEXT, target TEXT, partitions_regex TEXT);
            INSERT INTO db VALUES (7, 'shop');
            INSERT INTO url VALUES (1, 7, 'postgres://kuvasz:s3cret@h/shop', 'eu');
            INSERT INTO tbl VALUES (1, 7, 'public', 'items', 'clone', 'items', NULL),
                (2, 7, 'sales', 'orders', 'append', NULL, 'orders_.*');
        """)
    code, out, _ = run(file, "import", str(source))
    assert (code, out) == (0, "1 backends, 1 sources and 2 tables are in the map\n")
    assert [(each["table"], each["target"], each["options"]) for each in tables(file)] == [
        ("public.items", "items", {}),
        ("sales.orders", "", {"partitions_regex": "orders_.*"}),
    ]
    assert run(file, "import", str(tmp_path / "map.db"))[0] == 2, "it is one of ours"


@pytest.mark.slow
def test_an_export_can_be_imported(file: Path, tmp_path: Path) -> None:
    with MapStore(tmp_path / "map.db") as store:
        db = store.add("db", {"name": "shop"})["id"]
        store.add("url", {"db_id": db, "sid": "eu", "url": URL})
        store.add("tbl", {"db_id": db, "name": "items", "filter": "id > 0", "set": {"id": "id"}})
        store.add("tbl", {"db_id": db, "schema": "s", "name": "t", "partitions_regex": "t_.*"})
        before = store.content()
    exported = run(file, "export")[1]
    assert yaml.safe_load(exported) == [{
        "backend": "shop",
        "sources": [{"sid": "eu", "connection": URL.replace("s3cret", "***")}],
        "tables": {
            "items": {"filter": "id > 0", "set": {"id": "id"}}, "s.t": {"partitions": "t_.*"},
        },
    }]  # fmt: skip
    source = tmp_path / "export.yaml"
    source.write_text(exported.replace("id > 0", "id > 1"))
    assert run(file, "import", str(source))[0] == 0
    with MapStore(tmp_path / "map.db") as store:
        after = store.content()
        assert (after.backends, len(after.entries[0].tables)) == (before.backends, 2)
        assert after.entries[0].tables["public.items"].filter == "id > 1"
        store.remove("url", 1)
    code, _, err = run(file, "import", str(source))
    assert (code, "shop: source eu: url: its password is ***" in err) == (2, True)
    source.write_text(run(file, "export", "--with-passwords")[1])


@pytest.mark.slow
def test_an_import_is_whole_or_not_at_all(file: Path, tmp_path: Path) -> None:
    source = tmp_path / "map.yaml"
    for text, place in [
        ("[{backend: a}, {backend: b, tables: {t: {filtr: x}}}]", "[1].tables.t.filtr: unknown"),
        ("[{backend: a}, {backend: b c}]", "b c: name:"),
        ("{backend: a}", "must be a list"),
        ("[{backend: a", "map.yaml:1: not valid YAML"),
        ("- {database: a, urls: [{url: postgres://u:s3cret@h/d}]}", "[0].sources[0].sid"),
        ("- {database: a, urls: [{url: mysql://u:s3cret@h/d, sid: x}]}", "a: source x: url:"),
    ]:
        source.write_text(text)
        code, _, err = run(file, "import", str(source))
        assert (code, place in err, "s3cret" in err) == (2, True, False), err
        assert tables(file) == [] == json.loads(run(file, "--json")[1])
        assert run(file, "export")[1] == "[]\n"


def test_what_another_program_broke_is_told(file: Path, tmp_path: Path) -> None:
    with MapStore(tmp_path / "map.db") as store:
        db = store.add("db", {"name": "shop"})["id"]
        store.add("tbl", {"db_id": db, "name": "items"})
    with sqlite3.connect(tmp_path / "map.db") as connection:
        connection.execute("UPDATE tbl SET type = 'copy'")
    assert run(file)[2].startswith("left out: tbl 1: type:")
    found = CliRunner().invoke(main, ["check", str(file), "--json"])
    (told,) = (each for each in json.loads(found.stdout) if each["subject"] == "sink.map")
    assert (told["level"], told["message"].startswith("tbl 1: type:")) == ("error", True)


def test_a_map_in_the_pipeline_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "backends: [{name: shop, type: postgres, connection: postgresql://h/s}]\n"
        "sink: {type: postgres, connection: postgresql://h/all,"
        " map: [{backend: shop, tables: {items: }}]}\n"
    )
    code, _, err = run(path, "list")
    assert (code, "is in" in err, "sqlite:///PATH" in err) == (2, True, True)
