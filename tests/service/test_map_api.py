"""REST for the map: kuvasz-streamer's own cases, and what is done better, with real databases."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from starlette.testclient import TestClient

from penstock.model.settings import Secret
from penstock.ops.requests import Access
from penstock.ops.server import OpsServer
from penstock.service.map_api import MapApi
from penstock.tables.staging import find_destination
from tests.servers import Database, Postgres
from tests.service.maps import OWNER, Api, Databases, made, mapped


@pytest.fixture(scope="module")
def shared(postgres: Postgres) -> Iterator[Databases]:
    """Databases that no test changes."""
    with made(postgres) as found:
        yield found


@pytest.fixture
def own(postgres: Postgres) -> Iterator[Databases]:
    with made(postgres) as found:
        yield found


@pytest.fixture
def api(tmp_path: Path, own: Databases) -> Api:
    return mapped(tmp_path, own)


@pytest.fixture
def asked(tmp_path: Path, shared: Databases) -> Api:
    return mapped(tmp_path, shared)


URL = {"db_id": 2, "sid": "12", "url": "postgres://user:password@127.0.0.1/db3"}
TBL = {"db_id": 2, "schema": "public", "name": "bar", "type": "clone", "target": "bar"}

# (method, path, body, status, what the answer has). Each case has a map of its own.
CASES = {
    # 80-api-db
    "GET existing db by id": ("GET", "/db/1", None, 200, {"id": 1, "name": "db1"}),
    "GET non existing db by id": ("GET", "/db/99", None, 404, {"code": "not_found"}),
    "GET db by invalid id": ("GET", "/db/dskjhfk", None, 400, {"code": "invalid"}),
    "GET all dbs": ("GET", "/db", None, 200, 2),
    "Create db": ("POST", "/db", {"name": "db3"}, 200, {"id": 3, "name": "db3"}),
    "Create db, missing": ("POST", "/db", {"product_name": "x"}, 400, {"code": "missing"}),
    "Create db, invalid": ("POST", "/db", {"name": 123}, 400, {"code": "invalid"}),
    "Create db, duplicate": ("POST", "/db", {"name": "db1"}, 400, {"code": "duplicate"}),
    "Modify db": ("PUT", "/db/2", {"name": "newdb"}, 200, {"id": 2, "name": "newdb"}),
    "Modify db, missing": ("PUT", "/db/2", {"product_name": "x"}, 400, {"code": "missing"}),
    "Modify db, invalid": ("PUT", "/db/2", {"name": 123}, 400, {"code": "invalid"}),
    "Modify db, duplicate": ("PUT", "/db/2", {"name": "db1"}, 400, {"code": "duplicate"}),
    "Modify non existing db": ("PUT", "/db/4", {"name": "newdb4"}, 404, {"code": "not_found"}),
    "Modify db with invalid id": ("PUT", "/db/sdlkfgjh", {"name": "x"}, 400, {"code": "invalid"}),
    "Delete db that has urls": ("DELETE", "/db/1", None, 409, {"code": "in_use"}),
    "Delete non-existing db": ("DELETE", "/db/44", None, 404, {"code": "not_found"}),
    "Delete invalid db_id": ("DELETE", "/db/sdkjfgh", None, 400, {"code": "invalid"}),
    # 81-api-url
    "GET existing url by id": ("GET", "/url/1", None, 200, {"id": 1, "db_id": 1, "db_name": "db1"}),
    "GET non existing url by id": ("GET", "/url/99", None, 404, {"code": "not_found"}),
    "GET url by invalid id": ("GET", "/url/dskjhfk", None, 400, {"code": "invalid"}),
    "GET all urls": ("GET", "/url", None, 200, 2),
    "Create url": ("POST", "/url", URL, 200, {"id": 3, "sid": "12"}),
    "Create url, missing": ("POST", "/url", {"db_id": 2, "x": "y"}, 400, {"code": "missing"}),
    "Create url, invalid": ("POST", "/url", URL | {"db_id": "toto"}, 400, {"code": "invalid"}),
    "Create url, no such db": ("POST", "/url", URL | {"db_id": 9}, 400, {"code": "invalid"}),
    "Create url, duplicate": ("POST", "/url", URL | {"sid": "us"}, 400, {"code": "duplicate"}),
    "Modify url": ("PUT", "/url/2", URL | {"sid": "13"}, 200, {"id": 2, "sid": "13"}),
    "Modify url, missing": ("PUT", "/url/2", {"product_name": "x"}, 400, {"code": "missing"}),
    "Modify url, invalid": ("PUT", "/url/2", URL | {"sid": 123}, 400, {"code": "invalid"}),
    "Modify url, not all": ("PUT", "/url/2", {"sid": 123}, 400, {"code": "missing"}),
    "Modify non existing url": ("PUT", "/url/99", URL, 404, {"code": "not_found"}),
    "Modify url with invalid id": ("PUT", "/url/sdlk", {"sid": "12"}, 400, {"code": "invalid"}),
    "Delete existing url": ("DELETE", "/url/2", None, 200, {"id": 2}),
    "Delete non-existing url": ("DELETE", "/url/44", None, 404, {"code": "not_found"}),
    "Delete invalid url_id": ("DELETE", "/url/sdkjfgh", None, 400, {"code": "invalid"}),
    # 82-api-tbl
    "GET existing tbl by id": ("GET", "/tbl/1", None, 200, {"id": 1, "db_id": 1, "db_name": "db1"}),
    "GET non existing tbl by id": ("GET", "/tbl/99", None, 404, {"code": "not_found"}),
    "GET tbl by invalid id": ("GET", "/tbl/dskjhfk", None, 400, {"code": "invalid"}),
    "GET all tbls": ("GET", "/tbl", None, 200, 1),
    "Create tbl": ("POST", "/tbl", TBL, 200, {"id": 2, "db_id": 2, "name": "bar"}),
    "Create tbl, missing": ("POST", "/tbl", {"db_id": 2, "x": "y"}, 400, {"code": "missing"}),
    "Create tbl, invalid": ("POST", "/tbl", TBL | {"db_id": "toto"}, 400, {"code": "invalid"}),
    "Create tbl, unknown": ("POST", "/tbl", TBL | {"sid": "12"}, 400, {"code": "invalid"}),
    "Create tbl, duplicate": (
        "POST", "/tbl", TBL | {"db_id": 1, "name": "d1"}, 400, {"code": "duplicate"},
    ),
    "Create tbl, no type": ("POST", "/tbl", TBL | {"type": "copy"}, 400, {"code": "invalid"}),
    "Create tbl, no pattern": (
        "POST", "/tbl", TBL | {"partitions_regex": "("}, 400, {"code": "invalid"},
    ),
    "Modify tbl": ("PUT", "/tbl/1", TBL, 200, {"id": 1, "name": "bar", "target": "bar"}),
    "Modify tbl, missing": (
        "PUT", "/tbl/1", {"db_id": 1, "name": "bar", "type": "clone"}, 400, {"code": "missing"},
    ),
    "Modify tbl, invalid": ("PUT", "/tbl/1", TBL | {"name": 123}, 400, {"code": "invalid"}),
    "Modify non existing tbl": ("PUT", "/tbl/99", TBL, 404, {"code": "not_found"}),
    "Modify tbl with invalid id": ("PUT", "/tbl/sdlkfgjh", TBL, 400, {"code": "invalid"}),
    "Delete existing tbl": ("DELETE", "/tbl/1", None, 200, {"id": 1}),
    "Delete non-existing tbl": ("DELETE", "/tbl/44", None, 404, {"code": "not_found"}),
    "Delete invalid tbl_id": ("DELETE", "/tbl/sdkjfgh", None, 400, {"code": "invalid"}),
    # 83-api-map; its clones are below
    "GET non existing map entry": ("GET", "/map/99", None, 404, {"code": "not_found"}),
    "GET map entry by invalid id": ("GET", "/map/dskjhfk", None, 400, {"code": "invalid"}),
    "GET full map": ("GET", "/map", None, 200, 4),
    "Create the target of a non existing entry": (
        "POST", "/map/99/create", None, 404, {"code": "not_found"},
    ),
    "Refresh": ("POST", "/map/refresh", None, 200, 4),
    "Restart": ("POST", "/url/restart", None, 200, {}),
    # What no client should send
    "No JSON": ("POST", "/db", "text", 400, {"code": "invalid"}),
    "A large id": ("GET", f"/db/{2**70}", None, 400, {"code": "invalid"}),
    "A longer id": ("GET", f"/db/{'9' * 5000}", None, 400, {"code": "invalid"}),
    "Digits of another script": ("GET", "/db/\u0661", None, 400, {"code": "invalid"}),
    "A large db_id": ("POST", "/url", URL | {"db_id": 2**63}, 400, {"code": "invalid"}),
    "A negative db_id": ("POST", "/tbl", TBL | {"db_id": -1}, 400, {"code": "invalid"}),
    "Another method": ("PATCH", "/db/1", {}, 405, {"code": "http"}),
    "Another path": ("GET", "/dbs", None, 404, {"code": "http"}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "wanted"), CASES.values(), ids=CASES.keys()
)
def test_each_request_has_its_answer(
    asked: Api, method: str, path: str, body: Any, status: int, wanted: Any
) -> None:
    answer = asked.ask(method, path, body)
    assert answer.status_code == status, answer.text
    found = answer.json()
    if isinstance(wanted, int):
        assert (len(found), answer.headers["X-Total-Count"]) == (wanted, str(wanted))
    else:
        assert {name: found.get(name) for name in wanted} == wanted
    if status >= 400:
        assert found.keys() == {"code", "error", "info"}


def test_an_empty_db_can_be_deleted(asked: Api) -> None:
    asked.edit("DELETE", "/url/2")
    assert asked.edit("DELETE", "/db/2") == {"id": 2}
    assert [each["name"] for each in asked.get("/db")] == ["db1"]


@pytest.mark.parametrize(
    ("sort", "wanted"),
    [
        ('["sid","ASC"]', ["eu", "us"]),
        ('["sid","DESC"]', ["us", "eu"]),
        ('["up","asc"]', ["us", "eu"]),
        ('["id","DESC"]', ["us", "eu"]),
    ],
)
def test_rows_are_sorted_by_a_field(asked: Api, sort: str, wanted: list[str]) -> None:
    asked.get("/map")
    answer = asked.ask("GET", f"/url?sort={sort}")
    assert [each["sid"] for each in answer.json()] == wanted


@pytest.mark.parametrize("sort", ["sid", '["sid"]', '["sid","UP"]', '["password","ASC"]', "[1,{}]"])
def test_a_sort_that_is_none_is_refused(asked: Api, sort: str) -> None:
    assert asked.ask("GET", f"/url?sort={sort}").status_code == 400


def test_a_url_is_stored_without_what_asks_for_replication_and_refused_where_libpq_would(
    asked: Api,
) -> None:
    given = URL | {"sid": "kuvasz", "url": f"{URL['url']}?replication=database&application_name=a"}
    assert asked.edit("POST", "/url", given)["url"].endswith("/db3?application_name=a")
    refused = asked.ask("POST", "/url", given | {"sid": "x", "url": f"{URL['url']}?sslmode=no"})
    assert (refused.status_code, "write one of disable" in refused.text) == (400, True)


def test_passwords_do_not_come_back_and_stay_what_they_are(asked: Api) -> None:
    row = asked.get("/url/2")
    assert row["url"] == "postgres://user:***@127.0.0.1:1/db2"
    asked.edit("PUT", "/url/2", row | {"sid": "ca"})  # as clients send a row back
    shown = [asked.ask("GET", path).text for path in ("/url", "/url/2", "/map", "/db")]
    assert "s3cret" not in "".join(shown)
    store = asked.pipeline.map_store()
    assert store is not None
    with store:
        assert "s3cret" in str(store.content().backends)


def test_a_source_says_whether_it_is_up(asked: Api) -> None:
    asked.get("/map")
    up, down = asked.get("/url")
    assert (up["up"], up["status"], up["error"]) == (True, "not followed", "")
    assert down["up"] is False
    assert "127.0.0.1:1" in down["error"]


def test_the_map_has_both_sides_of_a_table(api: Api) -> None:
    api.target.execute("CREATE TABLE d1 (sid text, id int, PRIMARY KEY (sid, id))")
    found = api.table("d1")
    assert (found["db_id"], found["db_name"], found["schema"]) == (1, "db1", "public")
    assert (found["replicated"], found["present"], found["tbl_id"]) == (True, True, 1)
    assert found["source_columns"] == {
        "id": {"column_type": "integer", "data_type_oid": 23, "primary_key": True},
        "name": {"column_type": "text", "data_type_oid": 25, "primary_key": False},
    }
    assert list(found["dest_columns"]) == ["sid", "id"]
    other = api.table("d3")
    assert (other["schema"], other["target"], other["type"]) == ("more", "d3", "clone")
    assert (other["replicated"], other["present"], other["state"]) == (False, False, None)


def test_a_row_that_another_program_broke_is_shown_and_can_be_mended(asked: Api) -> None:
    store = asked.pipeline.map_store()
    assert store is not None
    with closing(sqlite3.connect(store.path)) as file, file:
        file.execute("UPDATE tbl SET type = 'copy', partitions_regex = '('")
    found = asked.table("d1")
    assert (found["state"], "type" in found["error"], found["replicated"]) == (
        "invalid",
        True,
        True,
    )
    asked.edit("PUT", "/tbl/1", TBL | {"db_id": 1, "name": "d1", "partitions_regex": ""})
    found = asked.table("d1")
    assert (found["state"], found["error"]) == ("starting", "")


def test_ids_stay_when_tables_come(api: Api) -> None:
    before = {each["name"]: each["id"] for each in api.get("/map")}
    api.source.execute("CREATE TABLE a0 (id int PRIMARY KEY)")
    after = {each["name"]: each["id"] for each in api.edit("POST", "/map/refresh")}
    assert after.keys() - before.keys() == {"a0"}
    assert {name: after[name] for name in before} == before


def key(database: Database, table: str) -> list[str]:
    rows = database.execute(
        "SELECT attname::text FROM pg_index i JOIN pg_attribute a ON attrelid = indrelid"
        " AND attnum = ANY (indkey::int2[]) WHERE indrelid = %s::regclass AND indisprimary"
        " ORDER BY attname",
        [table],
    )
    return [name for (name,) in rows]


def is_ours(database: Database, table: str) -> bool:
    """Whether it follows its source's columns by default."""
    with closing(psycopg.connect(database.url)) as connection:
        found = find_destination(connection, "public", table)
    return found is not None and found.is_made


def columns(database: Database, table: str) -> list[tuple[str, str]]:
    return database.execute(
        "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
        [table],
    )


def test_a_clone_is_mapped_and_its_target_has_the_key(api: Api) -> None:
    id = api.table("d2")["id"]
    found = api.edit("POST", f"/map/{id}/clone")
    assert (found["id"], found["replicated"], found["present"]) == (id, True, True)
    assert found["state"] == "starting"
    assert key(api.target, "d2") == ["id", "line"]
    assert columns(api.target, "d2")[2] == ("price", "numeric(10,2)")
    assert is_ours(api.target, "d2")
    assert api.ask("POST", f"/map/{id}/clone").json()["code"] == "duplicate"


def test_clones_of_several_sources_have_their_name_in_the_key(api: Api) -> None:
    api.edit("POST", "/url", {"db_id": 1, "sid": "ca", "url": api.source.url})
    api.edit("POST", f"/map/{api.table('d2')['id']}/clone?target=all_d2")
    assert key(api.target, "all_d2") == ["id", "line", "sid"]


def test_a_clone_of_a_table_with_a_column_sid_of_its_own_is_refused(api: Api) -> None:
    api.source.execute("CREATE TABLE calls (id int PRIMARY KEY, sid text)")
    api.edit("POST", "/map/refresh")
    for action in ("clone", "create"):
        answer = api.ask("POST", f"/map/{api.table('calls')['id']}/{action}")
        assert (answer.status_code, "own column sid would be lost" in answer.text) == (400, True)
    assert api.target.execute("SELECT to_regclass('calls')") == [(None,)]
    assert api.table("calls")["replicated"] is False


def test_a_target_that_is_there_is_kept(api: Api) -> None:
    api.target.execute("CREATE TABLE d2 (id int, line int, note text, PRIMARY KEY (id, line))")
    assert api.edit("POST", f"/map/{api.table('d2')['id']}/clone")["present"] is True
    assert [name for name, _ in columns(api.target, "d2")] == ["id", "line", "note"]
    assert not is_ours(api.target, "d2")


@pytest.mark.parametrize(
    ("type", "wanted"),
    [
        ("append", ["id"]),
        ("history", ["id", "kvsz_start", "sid"]),
    ],
)
def test_a_clone_may_be_renamed_and_of_any_type(api: Api, type: str, wanted: list[str]) -> None:
    id = api.table("d3")["id"]
    query = f"target=d3p&type={type}&partitions_regex="
    found = api.edit("POST", f"/map/{id}/clone?{query}")
    assert (found["type"], found["target"]) == (type, "d3p")
    assert key(api.target, "d3p") == wanted


def test_a_partitioned_table_needs_a_pattern(api: Api) -> None:
    found = api.table("u3")
    assert found["partitions"] == ["u3_0", "u3_1"]
    refused = api.ask("POST", f"/map/{found['id']}/clone")
    assert (refused.status_code, "partition" in refused.json()["error"]) == (400, True)
    assert api.table("u3")["replicated"] is False
    new = api.edit("POST", f"/map/{found['id']}/clone?partitions_regex=u3_.*&target=u3p")
    assert (new["id"], new["partitions_regex"]) == (found["id"], "u3_.*")
    assert new["partitions"] == ["u3_0", "u3_1"]
    assert key(api.target, "u3p") == ["id"]


def test_a_clone_takes_all_options_in_its_body(api: Api) -> None:
    options = {"filter": "id > 0", "set": {"id": "id * 2"}, "existing": "keep"}
    found = api.ask("POST", f"/map/{api.table('d3')['id']}/clone", options).json()
    assert {name: found[name] for name in options} == options


@pytest.mark.parametrize("query", ["type=copy", "partitions_regex=(", "nothing=1"])
def test_a_clone_that_is_refused_leaves_nothing(asked: Api, query: str) -> None:
    refused = asked.ask("POST", f"/map/{asked.table('d3')['id']}/clone?{query}")
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid")
    found = asked.table("d3")
    assert (found["replicated"], found["present"]) == (False, False)


def test_a_target_is_made_with_the_source_s_name(api: Api) -> None:
    id = api.table("d1")["id"]
    assert api.edit("POST", f"/map/{id}/create")["present"] is True
    assert columns(api.target, "d1") == [("sid", "text"), ("id", "integer"), ("name", "text")]
    assert key(api.target, "d1") == ["id", "sid"]
    assert is_ours(api.target, "d1")
    assert api.ask("POST", f"/map/{id}/create").status_code == 400


def test_a_restart_is_of_all_backends(asked: Api) -> None:
    store = asked.pipeline.map_store()
    assert store is not None
    with store:
        asked.pipeline = asked.pipeline.mapped(store.content())
    assert asked.edit("POST", "/url/restart") == {"restarted": ["db1"]}
    assert asked.running.restarted == ["db1"]


WRITES = [
    ("POST", "/db"), ("PUT", "/db/1"), ("DELETE", "/db/1"), ("POST", "/map/1/create"),
    ("POST", "/map/1/clone"), ("POST", "/map/refresh"), ("POST", "/url/restart"),
    ("POST", "/map/1/reload"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 401),
        ({"Authorization": "Basic eA=="}, 401),
        ({"Authorization": "Bearer another"}, 403),
        ({"Authorization": "Bearer"}, 403),
        (OWNER | {"Origin": "http://evil.example"}, 403),
        (OWNER | {"Host": "evil.example"}, 421),
    ],
)
def test_who_may_not_write(
    asked: Api, method: str, path: str, headers: dict[str, str], code: int
) -> None:
    answer = asked.client.request(method, f"/api{path}", json={"name": "x"}, headers=headers)
    assert answer.status_code == code
    assert len(asked.get("/db")) == 2


def test_without_a_token_nobody_may_write(tmp_path: Path, asked: Api) -> None:
    pages = MapApi(asked, Access(), asked.status).endpoints()
    server = OpsServer(port=0, access=Access(), endpoints=pages)
    client = TestClient(server.app(), base_url="http://localhost")
    assert client.get("/api/db").status_code == 200
    answer = client.post("/api/db", json={"name": "x"}, headers=OWNER)
    assert (answer.status_code, "ops.token" in answer.text) == (403, True)


def test_an_instance_on_standby_takes_no_edits(asked: Api) -> None:
    asked.live = None
    answer = asked.ask("POST", "/db", {"name": "x"})
    assert (answer.status_code, answer.json()["code"]) == (400, "not_ready")
    assert len(asked.get("/db")) == 2


def test_a_destination_that_is_away_is_no_error_of_the_client(asked: Api) -> None:
    settings = asked.pipeline.sink.settings.model_copy(
        update={"connection": Secret("postgresql://127.0.0.1:1/x?password=s3cret")}
    )
    sink = asked.pipeline.sink.model_copy(update={"settings": settings})
    asked.pipeline = asked.pipeline.model_copy(update={"sink": sink})
    answer = asked.ask("GET", "/map")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "s3cret" not in answer.text


@pytest.fixture
def declared(tmp_path: Path, shared: Databases) -> Api:
    tables = {"d1": {"target": "x", "filter": "id > 0"}, "gone": None}
    return Api(tmp_path, *shared, map=[{"backend": "db1", "tables": tables}])


def test_a_map_in_the_pipeline_file_can_be_read(declared: Api) -> None:
    (db,), (url,) = declared.get("/db"), declared.get("/url")
    assert (db["name"], url["db_id"], url["sid"]) == ("db1", db["id"], "eu")
    assert declared.get(f"/db/{db['id']}") == db
    one, two = declared.get("/tbl")
    assert (one["name"], one["target"], one["filter"]) == ("d1", "x", "id > 0")
    assert two["name"] == "gone"
    found = {each["name"]: each for each in declared.get("/map")}
    assert (found["d1"]["replicated"], found["d1"]["tbl_id"]) == (True, one["id"])
    assert (found["d2"]["replicated"], found["gone"]["source_columns"]) == (False, {})


@pytest.mark.parametrize(("method", "path"), [each for each in WRITES if "reload" not in each[1]])
def test_a_map_in_the_pipeline_file_cannot_be_edited(declared: Api, method: str, path: str) -> None:
    answer = declared.ask(method, path, {"name": "x"})
    assert (answer.status_code, answer.json()["code"]) == (405, "not_allowed")


def test_a_table_of_one_backend_is_loaded_anew(declared: Api) -> None:
    sink: Any = declared.pipeline.sink.sink()
    sink.enter("db1", "eu", initial=False)
    sink.enter("db1", "us", initial=False)
    id = declared.table("d1")["id"]
    assert declared.edit("POST", f"/map/{id}/reload?sid=eu") == {
        "reloaded": ["public.d1 of db1/eu"]
    }
    assert len(declared.edit("POST", f"/map/{id}/reload")["reloaded"]) == 2
    refused = declared.ask("POST", f"/map/{declared.table('d2')['id']}/reload")
    assert refused.status_code == 400
