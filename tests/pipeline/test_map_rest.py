"""A pipeline without a backend is built up by REST while it runs: kuvasz-streamer's cases."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.running import Run, eventually, running
from tests.servers import Database, Postgres

TOKEN = "a token of tests"

# Table, its DDL, what is cloned, the row that comes after the clone, and the target.
CLONES = [
    ("u0", "CREATE TABLE u0 (id serial PRIMARY KEY, name text)", "", "u0"),
    ("u1", "CREATE TABLE u1 (id int PRIMARY KEY, name text)", "", "u1"),
    ("u2", "CREATE TABLE u2 (id int PRIMARY KEY, name text);"
           "INSERT INTO u2 SELECT g, 'before' FROM generate_series(1, 4) g", "", "u2"),
    ("u3", "CREATE TABLE u3 (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);"
           "CREATE TABLE u3_0 PARTITION OF u3 FOR VALUES FROM (0) TO (9);"
           "CREATE TABLE u3_1 PARTITION OF u3 FOR VALUES FROM (10) TO (19)",
     "?partitions_regex=u3_.*", "u3"),
    ("u4", "CREATE TABLE u4 (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);"
           "CREATE TABLE u4_0 PARTITION OF u4 FOR VALUES FROM (0) TO (9);"
           "CREATE TABLE u4_1 PARTITION OF u4 FOR VALUES FROM (10) TO (19)",
     "?partitions_regex=u4_.*&target=u4p", "u4p"),
    ("u5", "CREATE TABLE u5 (id int PRIMARY KEY, name text)", "?target=u5p&type=append", "u5p"),
]  # fmt: skip


@pytest.fixture
def databases(postgres: Postgres) -> Iterator[tuple[Database, Database]]:
    with postgres.database() as source, postgres.database() as target:
        yield source, target


def edit(run: Run, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(run.url + path, method=method)
    request.add_header("Authorization", f"Bearer {TOKEN}")
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(request, data, timeout=60) as answer:
        return json.loads(answer.read())


def table(run: Run, name: str) -> Any:
    code, body = run.get("/api/map")
    assert code == 200, body
    (found,) = (each for each in json.loads(body) if each["name"] == name)
    return found


def test_tables_are_cloned_while_it_runs(
    tmp_path: Path, databases: tuple[Database, Database]
) -> None:
    source, target = databases
    pipeline = {
        "sink": {
            "type": "postgres", "connection": target.url, "map": f"sqlite:///{tmp_path}/map.db",
        },
        "ops": {"port": 0, "token": TOKEN},
    }  # fmt: skip
    name = f"db_{source.name}"
    target.execute("CREATE TABLE u1 (id int PRIMARY KEY, name text)")
    with running(tmp_path, pipeline) as run:
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        assert json.loads(run.get("/api/map")[1]) == []
        assert run.get("/api/db", "POST", token="")[0] == 401

        db = edit(run, "POST", "/api/db", {"name": name})["id"]
        edit(run, "POST", "/api/url", {"db_id": db, "sid": "eu", "url": source.url})
        for each, ddl, query, written in CLONES:
            source.execute(ddl)
            edit(run, "POST", "/api/map/refresh")
            found = edit(run, "POST", f"/api/map/{table(run, each)['id']}/clone{query}")
            assert (found["replicated"], found["present"]) == (True, True)
            edit(run, "POST", "/api/url/restart")
            eventually(lambda each=each: table(run, each)["state"] == "live", run=run)
            source.execute(f"INSERT INTO {each} (id, name) VALUES (8, 'after')")
            eventually(
                lambda w=written: target.execute(f"SELECT name FROM {w} WHERE id = 8"), run=run
            )
        assert target.execute("SELECT count(*) FROM u2 WHERE name = 'before'") == [(4,)]

        (url,) = json.loads(run.get("/api/url")[1])
        assert (url["up"], url["status"], url["error"]) == (True, "reading", "")

        target.execute("DELETE FROM u2")
        edit(run, "POST", f"/api/map/{table(run, 'u2')['id']}/reload")
        eventually(lambda: target.execute("SELECT count(*) FROM u2") == [(5,)], run=run)

        row = json.loads(run.get(f"/api/tbl/{table(run, 'u1')['tbl_id']}")[1])
        before = run.log.count("the map has changed")
        edit(run, "PUT", f"/api/tbl/{row['id']}", {**row, "filter": "id < 100"})
        eventually(lambda: run.log.count("the map has changed") > before, run=run)
        edit(run, "DELETE", f"/api/tbl/{table(run, 'u0')['tbl_id']}")
        eventually(lambda: table(run, "u0")["state"] is None, run=run)
        source.execute("INSERT INTO u1 VALUES (99, 'in'), (100, 'out')")
        eventually(lambda: target.execute("SELECT id FROM u1 WHERE id = 99"), run=run)
        assert not target.execute("SELECT id FROM u1 WHERE id = 100")
        assert source.url not in run.log
        assert TOKEN not in run.log
        assert run.stop() == 0
    source.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        " WHERE database = current_database()"
    )
