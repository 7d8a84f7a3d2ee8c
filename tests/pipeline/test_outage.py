"""One pipeline that loses its sink, its positions store and its slot, one after the other: it says
so everywhere, loses and repeats nothing that is still there, and a gap's policy is obeyed."""

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pipeline.running import (
    Run,
    count,
    document,
    eventually,
    json_messages,
    messages,
    running,
    slot_of,
    tree,
)
from tests.servers import Database, Nats
from tests.slots import drop_slot

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]  # three starts of Spark

BUFFER = 4 << 20
FIRST, ROWS = 2_000, 12_000
EVENTS = "PENSTOCK_EVENTS"

# Seconds: draining has 30, an unreachable store 5 of them; Spark ends after that.
IN_TIME = 180


def insert(database: Database, first: int, last: int) -> None:
    """Transactions of 1,000 rows of some 2,500 bytes, in random hexadecimal digits."""
    for start in range(first, last, 1000):
        database.execute(
            "INSERT INTO items SELECT n, (SELECT string_agg(md5(random()::text || n || m), '')"
            " FROM generate_series(1, 80) m) FROM generate_series(%s::int, %s::int) n",
            (start, min(start + 999, last)),
        )


def ids(nats: Nats, stream: str, after: int = 0) -> list[int]:
    """Those of the messages after so many."""
    return [body["data"]["id"] for body in json_messages(nats, stream, after)]


def kept(database: Database) -> int:
    """Bytes of log that the slot keeps for us."""
    rows = database.execute(
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint"
        " FROM pg_replication_slots WHERE slot_name = %s",
        (f"slot_{database.name}",),
    )
    assert rows and rows[0][0] is not None, "the slot is not made yet"
    return int(rows[0][0])


def memory(run: Run) -> int:
    """Bytes of all its processes; what forked workers share counts once."""
    return sum(map(shared_fairly, tree(run)))


def shared_fairly(process: psutil.Process) -> int:
    with suppress(psutil.NoSuchProcess):  # some end while we look
        return int(process.memory_full_info().pss)
    return 0


def health(run: Run) -> tuple[int, Any]:
    code, body = run.get("/health")
    return code, json.loads(body)


def backend(run: Run) -> Any:
    return run.status()["backends"][0]


def penstock(*arguments: str) -> Any:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "penstock", *arguments, "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


def is_before(database: Database, confirmed: str, lsn: str) -> bool:
    """Whether not everything up to `lsn` was acknowledged."""
    return bool(database.execute("SELECT %s::pg_lsn <= %s::pg_lsn", (confirmed, lsn))[0][0])


def test_what_is_away_loses_and_repeats_nothing(
    database: Database, stream: str, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, note text); CREATE PUBLICATION pub FOR TABLE items"
    )
    with Nats() as server, Nats() as store:
        pipeline = document(
            tmp_path, database, server, stream, positions=f"{store.url}/positions",
            checkpoint={"interval": "500ms"}, spark={"buffer": BUFFER, "max_bytes": "1MiB"},
        )  # fmt: skip
        pipeline["sink"] |= {"timeout": "2s", "breaker": {"threshold": 3, "timeout": "2s"}}
        pipeline["sink"] |= {"encoding": "json", "events": EVENTS}
        pipeline["ops"] |= {"stalled_after": "6s", "lag_limit": "1MiB"}
        with running(tmp_path, pipeline) as run:
            the_sink_is_away(run, database, server, stream)
            the_store_is_away_at_the_stop(run, database, server, store, stream)
        with running(tmp_path, pipeline) as run:
            the_store_is_away_at_the_start(run, database, server, store, stream)
            the_slot_is_gone(run, database, server)
        pipeline["backends"][0]["on_gap"] = "continue"
        with running(tmp_path, pipeline) as run:
            it_goes_on_after_the_gap(run, database, server, stream)


def the_sink_is_away(run: Run, database: Database, server: Nats, stream: str) -> None:
    """Under load: the source keeps its log, memory stays where it is, health says why, and
    afterwards everything is there."""
    eventually(lambda: kept(database) >= 0, run=run)
    insert(database, 1, FIRST)
    eventually(lambda: count(server, stream) == FIRST, run=run)
    eventually(lambda: health(run)[1]["health"] == "ok", run=run)
    before = memory(run)

    server.kill()
    insert(database, FIRST + 1, ROWS)
    eventually(lambda: health(run)[0] == 503, run=run)
    eventually(lambda: "sink jetstream: disconnected" in str(health(run)[1]["reasons"]), run=run)
    eventually(lambda: "the circuit breaker is open" in str(health(run)[1]["reasons"]), run=run)
    eventually(lambda: run.status()["sinks"][0]["breaker_transitions"] >= 4, run=run)
    assert backend(run)["buffered_bytes"] < 2 * BUFFER
    assert kept(database) > 20 << 20
    assert memory(run) - before < 150 << 20
    assert 'penstock_sink_connected{sink="jetstream"} 0.0' in run.get("/metrics")[1]

    server.start()
    eventually(lambda: count(server, stream) == ROWS, seconds=300, run=run)
    eventually(lambda: health(run)[1]["health"] == "ok", run=run)
    assert run.status()["sinks"][0]["breaker"] == "closed"
    eventually(lambda: kept(database) < 1 << 20, run=run)
    assert "the sink's circuit breaker changed" in run.log
    assert ids(server, stream) == list(range(1, ROWS + 1))


def the_store_is_away_at_the_stop(
    run: Run, database: Database, server: Nats, store: Nats, stream: str
) -> None:
    """Changes flow on, nothing is acknowledged, and health says so. A stop returns within its time
    and says what was not saved."""
    assert backend(run)["saved"] > 0
    assert "penstock_checkpoint_seconds_count" in run.get("/metrics")[1]
    store.kill()
    before = slot_of(database)[1]
    insert(database, ROWS + 1, ROWS + 100)
    eventually(lambda: count(server, stream) == ROWS + 100, run=run)
    last = messages(server, stream, ROWS)[-1].body["position"]
    eventually(lambda: "positions are not saved" in str(run.status()["reasons"]), run=run)
    assert run.status()["health"] == "degraded"
    eventually(lambda: backend(run)["save_errors"] >= 3, run=run)
    assert backend(run)["restarts"] == 0
    assert is_before(database, slot_of(database)[0], before)
    started = time.monotonic()
    assert run.stop(IN_TIME) == 0
    assert time.monotonic() - started < IN_TIME
    assert "stopped with positions that are not saved" in run.log
    assert last in run.log


def the_store_is_away_at_the_start(
    run: Run, database: Database, server: Nats, store: Nats, stream: str
) -> None:
    """The start waits for the store, and repeats nothing."""
    eventually(lambda: run.get("/ready")[0] == 503, run=run)
    eventually(lambda: "not available; trying again" in run.log, run=run)
    store.start()
    eventually(lambda: run.get("/ready")[0] == 200, run=run)
    insert(database, ROWS + 101, ROWS + 200)
    eventually(lambda: count(server, stream) == ROWS + 200, run=run)
    assert ids(server, stream, ROWS) == list(range(ROWS + 1, ROWS + 201))


def gaps_of(run: Run, database: Database) -> Any:
    return backend(run)["gaps"][f"slot_{database.name}"]


def the_slot_is_gone(run: Run, database: Database, server: Nats) -> None:
    """The backend stops, and the gap is told everywhere."""
    eventually(lambda: penstock("positions", str(run.file))[0]["place"], run=run)
    drop_slot(database, f"slot_{database.name}", taken=True)
    insert(database, ROWS + 201, ROWS + 210)  # these are lost
    eventually(lambda: run.get("/health")[0] == 503, run=run)
    status = eventually(lambda: run.status() if backend(run)["blocked"] else 0, run=run)
    assert "the slot is gone" in status["backends"][0]["blocked"]
    assert any("stands still" in reason for reason in status["reasons"])
    row = gaps_of(run, database)
    assert (row["stale"], row["counts"]) == (True, {"slot_missing": 1})
    assert row["gaps"][0]["policy"] == "fail"
    assert row["gaps"][0]["from"]
    metrics = run.get("/metrics")[1]
    where = f'backend="default",cause="slot_missing",partition="slot_{database.name}"'
    assert f"penstock_gaps_total{{{where}}} 1.0" in metrics
    where = f'backend="default",partition="slot_{database.name}"'
    assert f"penstock_partition_stale{{{where}}} 1.0" in metrics
    told = eventually(lambda: messages(server, EVENTS), run=run)
    assert [message.subject for message in told] == ["penstock.gap.default"]
    assert told[0].body["cause"] == "slot_missing"
    assert told[0].body["pipeline"] == "test"
    assert penstock("gaps", str(run.file))[0]["counts"] == {"slot_missing": 1}
    assert 'event="history lost"' in run.log
    assert run.stop() == 0


def it_goes_on_after_the_gap(run: Run, database: Database, server: Nats, stream: str) -> None:
    """With `on_gap: continue`; the partition is stale until an operator mends it."""
    eventually(lambda: gaps_of(run, database)["gaps"][0]["to"], run=run)
    insert(database, ROWS + 211, ROWS + 220)
    eventually(lambda: count(server, stream) == ROWS + 210, run=run)
    assert ids(server, stream, ROWS + 200) == list(range(ROWS + 211, ROWS + 221))
    assert gaps_of(run, database)["counts"] == {"slot_missing": 1}, "it is the same hole"
    told = eventually(lambda: messages(server, EVENTS)[1:], run=run)
    assert [message.body["policy"] for message in told] == ["continue"]
    eventually(lambda: run.status()["health"] == "degraded", run=run)
    assert any("is stale" in reason for reason in run.status()["reasons"])
    penstock("gaps", str(run.file), "mend", f"default/slot_{database.name}")
    eventually(lambda: run.status()["health"] == "ok", run=run)
    assert run.stop() == 0
