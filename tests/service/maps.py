"""A pipeline's REST for its map, with real databases and no pipeline that runs."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from starlette.testclient import TestClient

from penstock.config import Pipeline, load_pipeline
from penstock.model.settings import Secret
from penstock.ops.board import Board
from penstock.ops.logs import LastLines
from penstock.ops.requests import Access, Endpoint, OpsRequest
from penstock.ops.respond import PAGES, Asked, status_endpoints
from penstock.ops.server import OpsServer
from penstock.ops.status import assess
from penstock.service.map_api import MapApi
from penstock.service.operations import EventStream
from tests.servers import Database, Postgres

TOKEN = "a token of tests"
OWNER = {"Authorization": f"Bearer {TOKEN}"}


class Running:
    """The pipeline, as far as REST knows it."""

    def __init__(self) -> None:
        self.restarted: list[str] = []

    def restart(self, backends: Collection[str]) -> None:
        self.restarted += backends


class Api:
    """REST of a pipeline with three databases: `db1` is followed, `db2` cannot be reached."""

    def __init__(self, folder: Path, source: Database, target: Database, **sink: Any) -> None:
        self.source, self.target, self.running = source, target, Running()
        document = {
            "name": "test",
            "sink": {"type": "postgres", "connection": target.url, **sink},
            "state": str(folder),
        }
        if "map" not in sink:
            document["sink"]["map"] = f"sqlite:///{folder}/map.db"
        else:
            document["backends"] = [
                {"name": "db1", "type": "postgres", "connection": source.url, "sid": "eu"}
            ]
        file = folder / "pipeline.yaml"
        file.write_text(yaml.safe_dump(document))
        self.pipeline: Pipeline = load_pipeline(file)
        self.board, self.access = Board("/nowhere"), Access(token=Secret(TOKEN))
        self.live: Running | None = self.running
        self.api = MapApi(self, self.access, self.status)
        self.server = OpsServer(
            port=0, access=self.access, endpoints=self.endpoints(),
        )  # fmt: skip
        self.client = TestClient(self.server.app(), base_url="http://localhost")

    def endpoints(self) -> list[Endpoint]:
        events = EventStream(self.status, LastLines())
        return [
            *status_endpoints(self.asked), Endpoint("/events", "GET", events.answer), *PAGES,
            *self.api.endpoints(),
        ]  # fmt: skip

    def asked(self, request: OpsRequest) -> Asked:
        return Asked(
            request=request, status=self.status(), access=self.access, stop=list,
            endpoints=self.endpoints(),
        )  # fmt: skip

    def status(self) -> Any:
        return assess(
            self.board.snapshot(), name="test", version="1", started=0.0, now=1.0,
            backends=[each.name for each in self.pipeline.backends],
        )  # fmt: skip

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        sent = OWNER | headers
        return self.client.request(method, f"/api{path}", json=body, headers=sent)

    def get(self, path: str) -> Any:
        answer = self.client.get(f"/api{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def edit(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.ask(method, path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def table(self, name: str) -> Any:
        (found,) = (each for each in self.get("/map") if each["name"] == name)
        return found


Databases = tuple[Database, Database]

TABLES = """
    CREATE TABLE d1 (id int PRIMARY KEY, name text);
    CREATE TABLE d2 (id int, line int, price numeric(10, 2), PRIMARY KEY (id, line));
    CREATE SCHEMA more; CREATE TABLE more.d3 (id int PRIMARY KEY);
    CREATE TABLE u3 (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);
    CREATE TABLE u3_0 PARTITION OF u3 FOR VALUES FROM (0) TO (10);
    CREATE TABLE u3_1 PARTITION OF u3 FOR VALUES FROM (10) TO (20);
"""


@contextmanager
def made(postgres: Postgres) -> Iterator[Databases]:
    with postgres.database() as source, postgres.database() as target:
        source.execute(TABLES)
        yield source, target


def mapped(folder: Path, databases: Databases) -> Api:
    api = Api(folder, *databases)
    for name in ("db1", "db2"):
        api.edit("POST", "/db", {"name": name})
    api.edit("POST", "/url", {"db_id": 1, "sid": "eu", "url": api.source.url})
    away = "postgres://user:s3cret@127.0.0.1:1/db2"
    api.edit("POST", "/url", {"db_id": 2, "sid": "us", "url": away})
    row = {"db_id": 1, "name": "d1", "type": "clone", "target": "d1"}
    api.edit("POST", "/tbl", row)
    return api
