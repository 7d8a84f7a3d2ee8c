"""JetStream is away under load: the source keeps its log, memory stays where it is, health says
why, and afterwards everything is there."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pipeline.running import Run, count, document, eventually, messages, running, tree
from tests.servers import Database, Nats

pytestmark = pytest.mark.fault

BUFFER = 4 << 20
ROWS = 60_000


def insert(database: Database, first: int, last: int) -> None:
    """Transactions of 1,000 rows of some 500 bytes, in random hexadecimal digits."""
    for start in range(first, last, 1000):
        database.execute(
            "INSERT INTO items SELECT n, (SELECT string_agg(md5(random()::text || n || m), '')"
            " FROM generate_series(1, 16) m) FROM generate_series(%s::int, %s::int) n",
            (start, start + 999),
        )


def kept(database: Database) -> int:
    """Bytes of log that the slot keeps for us."""
    rows = database.execute(
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint"
        " FROM pg_replication_slots WHERE slot_name = %s",
        (f"slot_{database.name}",),
    )
    assert rows, "the slot is not made yet"
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


def test_an_outage_under_load(database: Database, stream: str, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, note text); CREATE PUBLICATION pub FOR TABLE items"
    )
    with Nats() as server:
        pipeline = document(
            tmp_path, database, server, stream, spark={"buffer": BUFFER, "max_bytes": "1MiB"}
        )
        pipeline["sink"] |= {"timeout": "2s", "breaker": {"threshold": 3, "timeout": "2s"}}
        pipeline["ops"] |= {"stalled_after": "6s", "lag_limit": "1MiB"}
        with running(tmp_path, pipeline) as run:
            eventually(lambda: kept(database) >= 0, run=run)
            insert(database, 1, 10_000)
            eventually(lambda: count(server, stream) == 10_000, run=run)
            eventually(lambda: health(run)[1]["health"] == "ok", run=run)
            before = memory(run)

            server.kill()
            insert(database, 10_001, ROWS)
            eventually(lambda: health(run)[0] == 503, run=run)
            eventually(
                lambda: "sink jetstream: disconnected" in str(health(run)[1]["reasons"]), run=run
            )
            eventually(
                lambda: "the circuit breaker is open" in str(health(run)[1]["reasons"]), run=run
            )
            eventually(lambda: run.status()["sinks"][0]["breaker_transitions"] >= 4, run=run)
            backend = run.status()["backends"][0]
            assert backend["buffered_bytes"] < 2 * BUFFER
            assert kept(database) > 20 << 20
            assert memory(run) - before < 150 << 20
            series = run.get("/metrics")[1]
            assert 'penstock_sink_connected{sink="jetstream"} 0.0' in series

            server.start()
            eventually(lambda: count(server, stream) == ROWS, seconds=300, run=run)
            eventually(lambda: health(run)[1]["health"] == "ok", run=run)
            assert run.status()["sinks"][0]["breaker"] == "closed"
            eventually(lambda: kept(database) < 1 << 20, run=run)
            assert "the sink's circuit breaker changed" in run.log
            assert run.stop() == 0
        ids = [message.body["data"]["id"] for message in messages(server, stream)]
        assert ids == list(range(1, ROWS + 1))
