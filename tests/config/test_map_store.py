"""The map of tables in a file."""

import pickle
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config.map_store import MapStore
from penstock.model.errors import RefusedEdit, SettingsError
from penstock.sinks.tables.settings import MapEntry, TableOptions

URL = "postgresql://cdc:s3cret@eu.example:5432/shop?sslmode=require"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MapStore]:
    with MapStore(tmp_path / "folder" / "map.db") as found:
        yield found


@pytest.fixture
def shop(store: MapStore) -> int:
    return int(store.add("db", {"name": "shop"})["id"])


def test_the_file_is_made_private(store: MapStore) -> None:
    assert store.rows("db") == []
    assert store.path.stat().st_mode & 0o777 == 0o600


def test_it_says_what_a_pipeline_file_would(store: MapStore, shop: int) -> None:
    store.add("url", {"db_id": shop, "sid": "eu", "url": URL})
    store.add("tbl", {"db_id": shop, "name": "items"})
    options = {"type": "append", "set": {"id": "id * 2"}, "columns": ["id"], "target": "a.b"}
    store.add(
        "tbl", {"db_id": shop, "schema": "s", "name": "p", "partitions_regex": "p_.*"} | options
    )
    found = store.content()
    assert found.backends == (
        {"name": "shop", "type": "postgres", "sources": [{"sid": "eu", "connection": URL}]},
    )
    wanted = TableOptions.model_validate(options | {"partitions": "p_.*"})
    assert found.entries == (
        MapEntry(backend="shop", tables={"public.items": TableOptions(), "s.p": wanted}),
    )
    assert found.problems == ()


def test_rows_have_their_defaults_and_no_password(store: MapStore, shop: int) -> None:
    url = store.add("url", {"db_id": shop, "sid": "eu", "url": URL})
    assert url == {
        "id": 1, "db_id": shop, "db_name": "shop", "sid": "eu", "url": URL.replace("s3cret", "***"),
    }  # fmt: skip
    table = store.add("tbl", {"db_id": shop, "name": "items", "filter": "id > 0", "type": None})
    assert store.rows("tbl") == [table]
    assert table["schema"] == "public"
    assert (table["type"], table["filter"], table["set"]) == ("clone", "id > 0", {})
    assert (table["partitions_regex"], table["db_name"]) == ("", "shop")


def test_a_row_that_was_read_can_be_given_back(store: MapStore, shop: int) -> None:
    url = store.add("url", {"db_id": shop, "sid": "eu", "url": URL})
    store.change("url", url["id"], {**url, "url": url["url"].replace("require", "disable")})
    (backend,) = store.content().backends
    assert backend["sources"][0]["connection"] == URL.replace("require", "disable")
    table = store.add("tbl", {"db_id": shop, "name": "items", "set": {"a": "b"}})
    assert store.change("tbl", table["id"], {**table, "type": "history"})["set"] == {"a": "b"}
    assert store.change("tbl", table["id"], {"set": None})["set"] == {}


@pytest.mark.parametrize("part", ["eu.example", "cdc:"])
def test_a_password_is_kept_for_its_server_and_user(store: MapStore, shop: int, part: str) -> None:
    url = store.add("url", {"db_id": shop, "sid": "eu", "url": URL})
    other = url["url"].replace(part, f"x{part}")
    with pytest.raises(RefusedEdit, match="give the password") as caught:
        store.change("url", url["id"], {**url, "url": other})
    assert caught.value.field == "url"
    store.change("url", url["id"], {**url, "url": other.replace("***", "new")})
    assert store.content().backends[0]["sources"][0]["connection"] == other.replace("***", "new")


@pytest.mark.parametrize(
    ("kind", "values", "field"),
    [
        ("db", {"name": "a b"}, "name"),
        ("db", {}, "name"),
        ("db", {"name": "a", "other": 1}, "other"),
        ("url", {"db_id": 9, "sid": "eu", "url": URL}, "db_id"),
        ("url", {"db_id": 1, "sid": "e/u", "url": URL}, "sid"),
        ("url", {"db_id": 1, "sid": "e-u", "url": URL}, "sid"),  # has the slot of e_u
        ("url", {"db_id": 1, "sid": "us", "url": "mysql://root:s3cret@host/db"}, "url"),
        ("tbl", {"db_id": 1, "name": "t", "type": "mirror"}, "type"),
        ("tbl", {"db_id": 1, "name": "t", "schema": "a.b"}, "schema"),
        ("tbl", {"db_id": 1, "name": "t", "partitions_regex": "("}, "partitions_regex"),
        ("tbl", {"db_id": 1, "name": "t", "set": {"a": 1}}, "set"),
        ("tbl", {"db_id": "x", "name": "t"}, "db_id"),
    ],
)
def test_what_is_not_valid_names_its_field(
    store: MapStore, shop: int, kind: Any, values: dict[str, Any], field: str
) -> None:
    store.add("url", {"db_id": shop, "sid": "e_u", "url": URL})
    before = store.revision
    with pytest.raises(RefusedEdit) as refused:
        store.add(kind, values)
    assert (refused.value.reason, refused.value.field) == ("invalid", field)
    assert "s3cret" not in str(refused.value)
    again = pickle.loads(pickle.dumps(refused.value))
    assert (again.reason, again.field, str(again)) == ("invalid", field, str(refused.value))
    assert store.revision == before


def test_names_are_there_once(store: MapStore, shop: int) -> None:
    store.add("url", {"db_id": shop, "sid": "eu", "url": URL})
    store.add("tbl", {"db_id": shop, "name": "items"})
    other = store.add("tbl", {"db_id": shop, "schema": "s", "name": "items"})["id"]
    for edit in (
        lambda: store.add("db", {"name": "shop"}),
        lambda: store.add("url", {"db_id": shop, "sid": "eu", "url": URL}),
        lambda: store.change("tbl", other, {"schema": "public"}),
    ):
        with pytest.raises(RefusedEdit, match="there is a") as refused:
            edit()
        assert refused.value.reason == "duplicate"


def test_a_db_in_use_stays_and_ids_are_not_used_again(store: MapStore, shop: int) -> None:
    table = store.add("tbl", {"db_id": shop, "name": "items"})["id"]
    with pytest.raises(RefusedEdit) as refused:
        store.remove("db", shop)
    assert refused.value.reason == "in use"
    store.remove("tbl", table)
    store.remove("db", shop)
    with pytest.raises(RefusedEdit) as refused:
        store.remove("db", shop)
    assert refused.value.reason == "not found"
    assert store.add("db", {"name": "shop"})["id"] > shop


def test_any_programs_edit_is_another_revision(store: MapStore, shop: int) -> None:
    found = [store.revision]
    store.add("db", {"name": "b"})
    found.append(store.revision)
    with MapStore(store.path) as other:
        other.add("db", {"name": "c"})
    found.append(store.revision)
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE db SET name = 'd' WHERE name = 'c'")
    found.append(store.revision)
    assert len(set(found)) == 4
    assert store.revision == found[-1]


def test_a_row_that_another_program_broke_is_left_out(store: MapStore, shop: int) -> None:
    store.add("tbl", {"db_id": shop, "name": "good"})
    with sqlite3.connect(store.path) as connection:
        for name, options in [("a", "{"), ("b", '{"colums": ["id"]}'), ("c", '{"set": [1]}')]:
            connection.execute(
                f"INSERT INTO tbl (db_id, name, options) VALUES ({shop}, '{name}', '{options}')"
            )
    found = store.content()
    (entry,) = found.entries
    assert [*entry.tables] == ["public.good"]
    assert [each.partition(":")[0] for each in found.problems] == ["tbl 2", "tbl 3", "tbl 4"]
    assert found.broken == tuple(("shop", "tbl", f"public.{name}") for name in "abc")


def test_another_programs_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "kuvasz.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE db (db_id integer, name text)")
    with pytest.raises(SettingsError, match="another program's"):
        MapStore(path).rows("db")
    with sqlite3.connect(tmp_path / "new.db") as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(SettingsError, match="newer penstock"):
        MapStore(tmp_path / "new.db").rows("db")
