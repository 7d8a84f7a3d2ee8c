"""`penstock run`, end to end: real PostgreSQL, real Spark, real JetStream."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.pipeline.running import (
    Run,
    assert_none_is_left,
    document,
    eventually,
    messages,
    running,
    send,
    slot_of,
    tree,
)
from tests.servers import Database, Nats

TABLE = """
CREATE TABLE customers (id bigserial PRIMARY KEY, name text, balance numeric(12,2), tags text[]);
CREATE TABLE audit (id bigserial PRIMARY KEY, what text);
CREATE PUBLICATION pub FOR ALL TABLES
"""


def test_a_pipeline_is_stopped_and_started(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    """One pipeline's life: in each start everything arrives that came until then, once. In the
    second it has more backends, on one core."""
    database.execute(TABLE)
    pipeline = document(
        tmp_path, database, nats, stream, spark={"trigger": "realtime", "epoch": "60s"}
    )
    pipeline["sink"]["subject"] = f"{stream.lower()}.{{backend}}.{{collection}}.{{operation}}"
    with running(tmp_path, pipeline) as run:
        eventually(lambda: slot_of(database)[2], run=run)
        assert_every_kind_of_change_arrives(run, database, nats, stream)
        assert_the_slot_moves_while_the_epoch_runs(run, database)
        workers = tree(run)[1:]
        assert run.stop() == 0
    assert_none_is_left(workers)
    assert "Traceback" not in run.log
    assert "with a batch in flight" not in run.log, "it waited for the epoch's end"
    assert_nothing_is_open(database, messages(nats, stream)[-1].id)
    assert_positions_shows(run, messages(nats, stream)[-1].id)
    before = len(messages(nats, stream))

    more(database, "meanwhile")
    pipeline["spark"]["master"] = "local[1]"
    (first,) = pipeline["backends"]
    nowhere = "postgresql://postgres@127.0.0.1:9/nowhere"
    pipeline["backends"] += [
        *(first | {"name": n, "slot": f"{first['slot']}_{n}"} for n in ("b", "c")),
        first | {"name": "away", "connection": nowhere},
        first | {"name": "late", "slot": f"{first['slot']}_late", "publication": "later"},
    ]
    with running(tmp_path, pipeline) as run:
        eventually(lambda: len(messages(nats, stream)) == before + 100, run=run)
        assert_every_backend_has_its_turn(run, database, nats, stream)
        send(tree(run), signal.SIGTERM)  # as systemd does: Spark ends while the service stops
        assert run.process.wait(180) == 0
        assert "with a batch in flight" not in run.log
    assert stored(nats, stream) == {
        "default": list(range(1, 225)),
        "b": list(range(122, 225)),
        "c": list(range(122, 225)),
        "late": [224],
    }


def stored(nats: Nats, stream: str) -> dict[str, list[int]]:
    """The rows of the table `audit`, by backend."""
    found: dict[str, list[int]] = {}
    for message in messages(nats, stream):
        if message.subject.endswith(".audit.insert"):
            found.setdefault(message.body["backend"], []).append(message.body["data"]["id"])
    return found


def assert_every_backend_has_its_turn(
    run: Run, database: Database, nats: Nats, stream: str
) -> None:
    """One whose server is away at the start does not hold up the others, nor one that cannot begin,
    which goes on once that is mended."""
    names = ["default", "b", "c"]

    def backends() -> dict[str, Any]:
        return {each["name"]: each for each in run.status()["backends"]}

    def have(number: int) -> bool:
        found = stored(nats, stream)
        return all(found.get(name, [0])[-1] == number for name in names)

    eventually(lambda: all(backends()[name]["connected"] for name in names), run=run)
    more(database, "more")
    eventually(lambda: have(221), run=run)
    for number in (222, 223):
        database.execute("INSERT INTO audit (what) VALUES ('x')")
        eventually(lambda n=number: have(n), run=run)
    eventually(lambda: "refused" in backends()["away"]["last_error"], run=run)
    assert any("away: has not begun" in reason for reason in run.status()["reasons"])
    eventually(lambda: 'CREATE PUBLICATION "later"' in backends()["late"]["blocked"], run=run)
    assert run.get("/health")[0] == 503
    assert not backends()["late"]["begun"]
    database.execute("CREATE PUBLICATION later FOR ALL TABLES")
    eventually(lambda: backends()["late"]["connected"], run=run)
    names.append("late")
    database.execute("INSERT INTO audit (what) VALUES ('x')")
    eventually(lambda: have(224), run=run)


def assert_every_kind_of_change_arrives(
    run: Run, database: Database, nats: Nats, stream: str
) -> None:
    database.execute("INSERT INTO customers (name, balance) VALUES ('Ada', 10.50), ('Bob', 1)")
    database.execute("UPDATE customers SET balance = balance + 1 WHERE name = 'Ada'")
    database.execute("DELETE FROM customers WHERE name = 'Bob'")
    database.execute("TRUNCATE audit")
    eventually(lambda: len(messages(nats, stream)) == 5, run=run)
    assert run.get("/health")[0] == 200
    assert "bridge_" not in run.get("/metrics")[1]
    got = messages(nats, stream)
    assert [message.body["operation"] for message in got] == [
        "INSERT",
        "INSERT",
        "UPDATE",
        "DELETE",
        "TRUNCATE",
    ]
    prefix = stream.lower()
    assert got[0].subject == f"{prefix}.default.customers.insert"
    assert got[4].subject == f"{prefix}.default.audit.truncate"
    assert got[0].headers["Nats-Msg-Id"] == got[0].id
    assert got[2].body["data"] == {"id": 1, "name": "Ada", "balance": "11.50", "tags": None}
    assert got[2].body["database"] == database.name
    assert got[2].body["schema"] == "public"
    assert got[3].body["key"] == {"id": 2}
    assert got[3].body["data"] is None


def assert_the_slot_moves_while_the_epoch_runs(run: Run, database: Database) -> None:
    for number in range(20):
        database.execute("INSERT INTO audit (what) VALUES (%s)", (str(number),))
    target = slot_of(database)[1]
    database.execute("INSERT INTO audit (what) VALUES ('last')")
    eventually(lambda: is_confirmed(database, target), run=run)
    eventually(lambda: run.status()["sinks"][0]["published"] == 26, run=run)
    assert run.get("/health")[0] == 200


def is_confirmed(database: Database, lsn: str) -> bool:
    """Whether the slot is behind it."""
    ((found,),) = database.execute(
        "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots"
        " WHERE database = current_database()",
        (lsn,),
    )
    return bool(found)


def assert_nothing_is_open(database: Database, last: str) -> None:
    """The slot is behind the commit of the last message, and nobody reads it."""
    eventually(lambda: not slot_of(database)[2])
    (commit,) = database.execute("SELECT %s::pg_lsn + 1", (last.split(":")[1],))[0]
    assert is_confirmed(database, commit)


def assert_positions_shows(run: Run, event_id: str) -> None:
    """What the graceful stop saved: the place of the last change."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "positions", str(run.file), "--json"],
        capture_output=True,
        check=True,
    )
    (position,) = json.loads(done.stdout)
    assert position["backend"] == "default"
    assert f"default:{position['place']}" == event_id


def more(database: Database, what: str) -> None:
    database.execute("INSERT INTO audit (what) SELECT %s FROM generate_series(1, 100)", (what,))


def test_a_signal_while_servers_are_away_and_spark_starts_ends_it_in_order(
    nats: Nats, stream: str, tmp_path: Path
) -> None:
    nowhere = Database(name="nowhere", url="postgresql://postgres@127.0.0.1:9/nowhere")
    with running(tmp_path, document(tmp_path, nowhere, nats, stream)) as run:
        eventually(lambda: "trying again" in run.log, run=run)
        time.sleep(2.5)
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(180) == 0
        assert "Traceback" not in run.log


def test_a_start_ends_where_no_backend_can_begin(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    pipeline = document(tmp_path, database, nats, stream)
    (first,) = pipeline["backends"]
    pipeline["backends"] = [first | {"name": n, "slot": f"{first['slot']}_{n}"} for n in "ab"]
    pipeline["sink"]["subject"] = f"{stream}.{{backend}}.{{collection}}"
    with running(tmp_path, pipeline) as run:
        assert run.process.wait(180) == 2
        assert run.log.count("\nerror: ") == 1
        assert 'CREATE PUBLICATION "pub"' in run.log
        assert "Traceback" not in run.log
