"""One pipeline, started once, and several claims about it: a start of Spark is what takes time."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.pipeline.running import Message, Run, document, eventually, messages, running, slot_of
from tests.servers import Database, Nats, Postgres

STREAM = "SHARED"

TABLES = """
CREATE TABLE customers (id bigserial PRIMARY KEY, name text, balance numeric(12,2));
CREATE TABLE unpublished (n int);
CREATE TYPE odd;
CREATE FUNCTION odd_in(cstring) RETURNS odd AS 'textin' LANGUAGE internal IMMUTABLE;
CREATE FUNCTION odd_out(odd) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE;
CREATE TYPE odd (INPUT = odd_in, OUTPUT = odd_out, LIKE = text);
CREATE TABLE strange (id int PRIMARY KEY, seen odd);
CREATE PUBLICATION pub FOR TABLE customers, strange
"""


@dataclass(frozen=True, slots=True)
class Shared:
    run: Run
    database: Database
    nats: Nats

    def of(self, table: str) -> list[Message]:
        """The messages of one table; the others are another test's."""
        everything = messages(self.nats, STREAM)
        return [message for message in everything if message.body["collection"] == table]


@pytest.fixture(scope="module")
def shared(
    postgres: Postgres, nats: Nats, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("one")
    with postgres.database() as database:
        database.execute(TABLES)
        with running(folder, document(folder, database, nats, STREAM)) as run:
            eventually(lambda: slot_of(database)[2], run=run)
            database.execute("INSERT INTO customers (name) VALUES ('the first')")
            eventually(lambda: run.status()["sinks"][0]["acknowledged"] == 1, run=run)
            yield Shared(run, database, nats)
            assert run.stop() == 0


def test_an_idle_slot_moves_within_seconds(shared: Shared) -> None:
    shared.database.execute("INSERT INTO unpublished SELECT generate_series(1, 10000)")
    target = slot_of(shared.database)[1]
    eventually(
        lambda: shared.database.execute(
            "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots"
            " WHERE database = current_database()",
            (target,),
        )[0][0],
        run=shared.run,
    )


def test_what_an_operator_sees(shared: Shared) -> None:
    run = shared.run
    before = run.status()["sinks"][0]["acknowledged"]
    shared.database.execute("INSERT INTO customers (name, balance) VALUES ('Ada', 10.50)")
    eventually(lambda: run.status()["sinks"][0]["acknowledged"] == before + 1, run=run)
    status = eventually(lambda: run.status() if run.status()["last_batch"] else None, run=run)
    backend = status["backends"][0]
    assert backend["connected"] is True
    assert backend["details"]["slot"] == f"slot_{shared.database.name}"
    assert "triggerExecution" in status["last_batch"]["timings"]
    assert status["sinks"][0]["published"] == before + 1
    metrics = run.get("/metrics")[1]
    assert "# HELP penstock_" in metrics
    assert "# TYPE penstock_" in metrics
    code, info = run.get(f"/streams/info?stream={STREAM}")
    assert code == 200, info
    assert json.loads(info)["state"]["messages"] == before + 1
    assert run.get("/streams/info?stream=NOT_THERE")[0] == 404
    assert shared.database.url not in run.log


def test_a_type_nobody_knows_is_its_text_and_said_once(shared: Shared) -> None:
    for number in (1, 2):
        shared.database.execute("INSERT INTO strange VALUES (%s, 'as it is')", (number,))
        eventually(lambda n=number: len(shared.of("strange")) == n, run=shared.run)
    eventually(lambda: "delivered as its text" in shared.run.log, run=shared.run)
    texts = [message.body["data"]["seen"] for message in shared.of("strange")]
    assert texts == ["as it is", "as it is"]
    assert shared.run.log.count("delivered as its text") == 1
