"""One pipeline file, copied for a database on another server, and one stream: nothing of either is
taken for the other's in silence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.running import Run, eventually, messages, running
from tests.servers import Database, Nats, Postgres

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1800)]
SOON = 400.0  # seconds in which Spark has started


def test_two_runs_with_equal_names(
    nats: Nats,
    stream: str,
    tmp_path: Path,
    database: Database,
    postgres_of: Callable[[int], Postgres],
) -> None:
    with postgres_of(18).database() as other:
        for one in (database, other):
            one.execute(
                "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE t"
            )

        def run(folder: str, source: Database, name: str, **sink: Any) -> Any:
            (tmp_path / folder).mkdir(exist_ok=True)
            slot = f"slot_{database.name}"
            backend = {"name": "default", "type": "postgres", "connection": source.url,
                       "slot": slot, "publication": "p"}  # fmt: skip
            where = {"type": "jetstream", "url": nats.url, "stream": stream,
                     "subject": f"{stream.lower()}.{{source_partition}}"}  # fmt: skip
            pipeline = {"name": name, "backends": [backend], "sink": where | sink}
            return running(tmp_path / folder, pipeline)

        def insert(source: Database, number: int) -> None:
            source.execute("INSERT INTO t VALUES (%s, %s)", [number, source.name])

        def stored(source: Database) -> set[int]:
            rows = [each.body["data"] for each in messages(nats, stream)]
            return {row["id"] for row in rows if row["v"] == source.name}

        def follows(one: Run) -> None:
            eventually(lambda: one.status()["backends"][0]["connected"], seconds=SOON, run=one)

        with run("first", database, "shop") as first, run("second", other, "store") as second:
            follows(first)
            follows(second)
            insert(database, 1)
            eventually(lambda: stored(database) == {1}, run=first)
            insert(other, 1)
            told = "another source that is also named default/"
            eventually(lambda: told in reasons(second), run=second)
            insert(database, 2)
            eventually(lambda: stored(database) == {1, 2}, run=first)
            assert stored(other) == set()
            with run("third", other, "shop") as third:
                eventually(lambda: "another name than shop" in reasons(third), run=third)


def reasons(run: Run) -> str:
    return " ".join(json.loads(run.get("/health")[1]).get("reasons", ()))
