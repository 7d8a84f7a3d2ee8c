"""`penstock preview`: rows before and after, and nothing that stays anywhere."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.cli.preview import lines
from penstock.model.errors import Rejected
from penstock.snapshots.preview import MadeRow, RowPreview, TablePreview
from penstock.tables.sqlite_database import SqliteDatabase
from tests.docs.pages import DOCS, blocks, commands
from tests.mongo import Shop
from tests.servers import Database, Postgres

STREAM = "{type: jetstream, url: 'nats://127.0.0.1:1', stream: S, subject: 's.{collection}'}"


@pytest.fixture
def customers(database: Database) -> Database:
    database.execute(
        "CREATE TABLE customers (id int PRIMARY KEY, name text, balance numeric(10, 2));"
        "INSERT INTO customers SELECT n, 'name ' || n, n * 1.5 FROM generate_series(1, 9) n"
    )
    return database


@pytest.fixture
def destination(postgres: Postgres) -> Iterator[Database]:
    with postgres.database() as fresh:
        yield fresh


@pytest.fixture
def written(tmp_path: Path, customers: Database) -> Callable[..., Path]:
    """`written(sink, transform)`: the file of a pipeline of these customers."""

    def write(sink: Any = None, *statements: str, **more: Any) -> Path:
        source = {
            "type": "postgres", "connection": customers.url, "slot": "preview",
            "publication": "shop", "create_publication": True, **more,
        }  # fmt: skip
        document = {
            "name": "shop", "state": str(tmp_path / "state"), "backends": [source],
            "sink": sink or {"type": "jetstream", "url": "nats://127.0.0.1:1"},
            "transform": [{"sql": each} for each in statements],
        }  # fmt: skip
        (file := tmp_path / "pipeline.yaml").write_text(json.dumps(document))
        return file

    return write


def preview(file: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["preview", str(file), *options])


def tables(file: Path, *options: str) -> list[dict[str, Any]]:
    found = preview(file, "--json", *options)
    assert found.exit_code == 0, found.output
    made: list[dict[str, Any]] = json.loads(found.stdout)["tables"]
    return made


def nothing_stays(source: Database) -> bool:
    """No slot, no publication."""
    return not source.execute(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        " UNION ALL SELECT pubname FROM pg_publication"
    )


@pytest.mark.live
def test_rows_are_those_of_a_snapshot_and_the_source_stays_as_it_is(
    customers: Database, written: Callable[..., Path], tmp_path: Path
) -> None:
    """Also of tables that no publication has yet: the first start would make it."""
    customers.execute("CREATE TABLE empty (a int)")
    file = written()
    found = {each["table"]: each for each in tables(file, "--rows", "2")}
    assert found["public.empty"]["rows"] == []
    rows = found["public.customers"]["rows"]
    values = {"id": 1, "name": "name 1", "balance": "1.50"}
    assert [row["key"] for row in rows] == [{"id": 1}, {"id": 2}]
    assert (rows[0]["operation"], rows[0]["before"], rows[0]["left_out_by"]) == ("READ", values, "")
    made = {"operation": "READ", "table": "public.customers", "key": {"id": 1}, "after": values}
    assert rows[0]["made"] == [made]
    assert nothing_stays(customers)
    assert not (tmp_path / "state").exists()
    text = preview(file, "--table", "customers", "--rows", "1").stdout
    assert text.splitlines() == [
        "public.customers of default: 1 row",
        "  READ id=1",
        "      id      1",
        '      name    "name 1"',
        '      balance "1.50"',
        "",
    ]


@pytest.mark.live
def test_a_table_that_is_not_there_is_an_error_with_those_that_are(
    customers: Database, written: Callable[..., Path]
) -> None:
    file = written()
    found = preview(file, "--table", "custmers")
    assert found.exit_code == 2
    assert "no followed table is called custmers" in found.stderr
    assert "there are: customers;" in found.stderr
    customers.execute("DROP TABLE customers")
    found = preview(file)
    assert (found.exit_code, "shop follows no table" in found.stderr) == (2, True)
    assert "penstock check FILE" in found.stderr


@pytest.mark.live
@pytest.mark.spark
def test_the_steps_of_the_page_about_transforms(
    customers: Database, written: Callable[..., Path]
) -> None:
    """By a real Spark, in a process of its own: one has one session."""
    page = (DOCS / "how-to" / "transform.md").read_text()
    customers.execute("DROP TABLE customers")
    customers.execute(*blocks(page, "sql"))
    (transform,) = map(yaml.safe_load, blocks(page, "yaml"))
    file = written(None, *(step["sql"] for step in transform["transform"]))
    given = next(each for each in commands(page) if "preview" in each).split()[3:]
    command = [sys.executable, "-m", "penstock", "preview", str(file), *given]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [*blocks(page, "text")[0].splitlines(), ""]
    assert nothing_stays(customers)


@pytest.mark.live
def test_filter_and_set_of_a_map_are_run_at_the_destination_and_nothing_is_there(
    customers: Database, destination: Database, written: Callable[..., Path]
) -> None:
    destination.execute(
        "CREATE TABLE people (id int PRIMARY KEY, who varchar(7), cents int);"
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'fired'; END $$;"
        "CREATE TRIGGER t BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    customers.execute(
        "UPDATE customers SET name = 'a name too long' WHERE id = 3;"
        "CREATE TABLE orders (id int PRIMARY KEY, what jsonb); INSERT INTO orders VALUES (1, '{}');"
        "CREATE TABLE lost (id int PRIMARY KEY)"
    )
    mapped = {
        "customers": {
            "target": "people", "filter": "id <> 2",
            "set": {"id": "id", "who": "upper(name)", "cents": "balance * 100"},
        },
        "orders": {"create": True}, "lost": {},
    }  # fmt: skip
    sink = {
        "type": "postgres", "connection": destination.url,
        "map": [{"backend": "default", "tables": mapped}],
    }  # fmt: skip
    before = destination.execute("SELECT count(*) FROM pg_class")
    result = preview(written(sink), "--json", "--rows", "3")
    assert result.exit_code == 1, "a row and a table have a problem"
    found = {each["table"]: each for each in json.loads(result.stdout)["tables"]}
    people = found["public.customers"]
    assert (people["target"], people["sid"]) == ("public.people", "preview")
    first, second, third = people["rows"]
    assert first["made"][0]["after"] == {"id": 1, "who": "NAME 1", "cents": 150}
    assert (second["made"], second["left_out_by"]) == ([], "filter")
    assert third["problem"]["code"] == "postgres.row-refused"
    assert found["public.orders"]["rows"][0]["made"][0]["after"] == {"id": 1, "what": {}}
    lost = found["public.lost"]
    assert (lost["rows"], lost["problem"]["code"]) == ([], "tables.target-missing")
    assert "create: true" in lost["problem"]["remedy"]
    assert nothing_stays(customers)
    assert destination.execute("SELECT count(*) FROM pg_class") == before
    assert destination.execute("SELECT count(*) FROM people") == [(0,)]


@pytest.mark.live
def test_an_expression_that_is_wrong_is_said_and_other_tables_are_shown(
    customers: Database, written: Callable[..., Path], tmp_path: Path
) -> None:
    """And a file of SQLite that is missing is not made."""
    customers.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, ok bool); INSERT INTO orders VALUES (1, true)"
    )
    mapped: dict[str, Any] = {
        "customers": {"create": True, "filter": "nme = 1"}, "orders": {"create": True},
    }  # fmt: skip
    target = tmp_path / "target.db"
    entry = {"backend": "default", "tables": mapped}
    file = written({"type": "sqlite", "file": str(target), "map": [entry]})
    found = preview(file)
    assert found.exit_code == 1, found.output
    assert "error: `filter` is not SQL over its columns" in found.stdout
    assert "[tables.expression]" in found.stdout
    assert "  READ id=1\n      id 1\n      ok 1\n" in found.stdout
    assert not target.exists()
    mapped["customers"]["filter"] = "name LIKE '%2'"
    file = written({"type": "sqlite", "file": str(target), "map": [entry]})
    rows = tables(file, "--table", "customers", "--rows", "3")[0]["rows"]
    assert [row["left_out_by"] for row in rows] == ["filter", "", "filter"]


@pytest.mark.live
def test_a_file_of_sqlite_is_only_read(written: Callable[..., Path], tmp_path: Path) -> None:
    """Also while another connection has it open."""
    target = tmp_path / "target.db"
    mapped = {"customers": {"set": {"id": "id", "who": "upper(name)"}}}
    entry = {"backend": "default", "tables": mapped}
    file = written({"type": "sqlite", "file": str(target), "map": [entry]})

    def made() -> dict[str, Any]:
        after: dict[str, Any] = tables(file, "--rows", "1")[0]["rows"][0]["made"][0]["after"]
        return after

    with closing(SqliteDatabase(target).connect()) as other:
        other.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, who TEXT)")
    before = target.read_bytes()
    assert made() == {"id": 1, "who": "NAME 1"}
    assert target.read_bytes() == before
    assert [*tmp_path.glob("target.db*")] == [target]
    with closing(SqliteDatabase(target).connect()) as other, other.transaction():
        other.execute("ALTER TABLE customers ADD COLUMN spare TEXT")
        assert made() == {"id": 1, "who": "NAME 1"}


@pytest.mark.live
def test_of_several_sources_one_is_shown(
    customers: Database, destination: Database, written: Callable[..., Path]
) -> None:
    sources = [
        {"sid": "us", "connection": customers.url},
        {"sid": "eu", "connection": customers.url},
    ]
    mapped = {"customers": {"create": True, "set": {"id": "id", "name": "_sid"}}}
    entry = {"backend": "default", "tables": mapped}
    file = written({"type": "postgres", "connection": destination.url, "map": [entry]})
    document = json.loads(file.read_text())
    document["backends"] = [{"type": "postgres", "sources": sources}]
    file.write_text(json.dumps(document))

    def names(*options: str) -> list[str]:
        return [each["rows"][0]["made"][0]["after"]["name"] for each in tables(file, *options)]

    assert names() == ["eu"]
    assert names("--sid", "us") == ["us"]
    missing = preview(file, "--sid", "asia")
    assert (missing.exit_code, "no source asia, only us, eu" in missing.stderr) == (2, True)


@pytest.mark.live
def test_documents_of_mongodb_are_shown(shop: Shop, tmp_path: Path) -> None:
    shop.db.users.insert_many([{"_id": n, "tags": ["a", n]} for n in range(9)])
    (file := tmp_path / "pipeline.yaml").write_text(
        f"state: {tmp_path}\nbackends:\n"
        f"  - {{type: mongodb, connection: '{shop.url}', database: {shop.name}}}\n"
        f"sink: {STREAM}\n"
    )
    (found,) = tables(file, "--rows", "2", "--table", "users")
    assert found["table"] == f"{shop.name}.users"
    assert [row["before"]["tags"] for row in found["rows"]] == [["a", 0], ["a", 1]]
    assert {row["operation"] for row in found["rows"]} == {"READ"}


def test_without_a_server_there_are_the_first_changes(file: Path) -> None:
    """Of the feed in memory, whose sink stores no tables."""
    found = preview(file, "--rows", "1")
    assert found.exit_code == 0, found.output
    assert found.stdout.startswith("memory.items of default: 1 row\n  READ id=0\n")


def test_lines_fit_into_80_columns_and_keep_both_sides_of_a_long_value() -> None:
    long, key = "x" * 100, {"id": 1}
    made = MadeRow("DELETE", "public.u", {"id": 2}, {"id": 1, "name": "short", "new": 2})
    table = TablePreview(
        backend="default", sid="", table="public.t",
        rows=[
            RowPreview(
                operation="READ", key=key, before={"id": 1, "name": long, "gone": "\x1b[31m"},
                made=[made],
            ),
            RowPreview(operation="ERROR", key=None, before=None, problem=Rejected("bad", "a.b")),
            RowPreview(operation="", key=None, before=None, made=[made]),
        ],
    )  # fmt: skip
    assert [*lines(table, 80)] == [
        "public.t of default: 2 rows",
        "  READ id=1 -> DELETE public.u id=2",
        "      id   1",
        f'    ~ name "{long}'[:79] + "…",
        '           -> "short"',
        '    - gone "\\u001b[31m"',
        "    + new  2",
        "  ERROR",
        "    error: bad [a.b]",
        "  of no single row: -> DELETE public.u id=2",
        "    + id   1",
        '    + name "short"',
        "    + new  2",
        "",
    ]
