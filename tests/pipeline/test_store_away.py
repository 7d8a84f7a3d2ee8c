"""The positions store is away: changes flow on, nothing is acknowledged, health says so."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.leases import open_store
from penstock.model.errors import Unavailable
from tests.pipeline.running import Run, count, document, eventually, messages, running
from tests.servers import Database, Etcd, Nats, etcd_program

pytestmark = [
    pytest.mark.live,
    pytest.mark.spark,
    pytest.mark.fault,
    pytest.mark.timeout(900),  # two starts of Spark
]


def health(run: Run) -> tuple[int, Any]:
    code, body = run.get("/health")
    return code, json.loads(body)


def saved(url: str) -> str:
    """The place that is stored."""
    store = open_store(url)
    try:
        (row,) = store.list("test/default/")
        return str(json.loads(row.continuation)["place"])
    finally:
        store.close()


def is_confirmed(database: Database, lsn: str) -> bool:
    """Whether more than everything up to `lsn` was acknowledged."""
    sql = "SELECT confirmed_flush_lsn > %s FROM pg_replication_slots WHERE slot_name = %s"
    return bool(database.execute(sql, (lsn, f"slot_{database.name}"))[0][0])


@pytest.mark.thorough  # test_stop.py has a store that is away
def test_etcd_is_killed_under_a_pipeline(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    try:
        etcd_program()
    except Unavailable as error:
        pytest.skip(str(error))
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE items"
    )
    with Etcd() as etcd:
        url = f"{etcd.url}/penstock/positions"
        pipeline = document(tmp_path, database, nats, stream, positions=url)
        pipeline["checkpoint"] = {"interval": "1s"}
        with running(tmp_path, pipeline) as run:
            eventually(lambda: run.get("/ready")[0] == 200, run=run)
            database.execute("INSERT INTO items SELECT generate_series(1, 100)")
            eventually(lambda: count(nats, stream) == 100, run=run)
            eventually(lambda: run.status()["backends"][0]["saved"] > 0, run=run)
            assert "penstock_checkpoint_seconds_count" in run.get("/metrics")[1]
            eventually(lambda: saved(url) != "None", run=run)

            etcd.kill()
            before = database.execute("SELECT pg_current_wal_lsn()::text")[0][0]
            for first in range(101, 1101, 100):
                database.execute("INSERT INTO items SELECT generate_series(%s::int, %s::int)",
                                 (first, first + 99))  # fmt: skip
            eventually(lambda: count(nats, stream) == 1100, run=run)
            eventually(lambda: "positions are not saved" in str(health(run)[1]["reasons"]), run=run)
            assert health(run)[1]["health"] == "degraded"
            eventually(lambda: run.status()["backends"][0]["save_errors"] >= 3, run=run)
            assert not is_confirmed(database, before)
            assert run.status()["backends"][0]["restarts"] == 0

            etcd.start()
            eventually(lambda: is_confirmed(database, before), run=run)
            eventually(lambda: health(run)[1]["health"] == "ok", run=run)
            assert run.stop() == 0

        etcd.kill()
        database.execute("INSERT INTO items VALUES (1101)")
        with running(tmp_path, pipeline) as run:
            eventually(lambda: "url=" in run.log, run=run)
            eventually(lambda: "not available; trying again" in run.log, run=run)
            assert run.get("/ready")[0] == 503
            etcd.start()
            eventually(lambda: count(nats, stream) == 1101, run=run)
            eventually(lambda: run.get("/ready")[0] == 200, run=run)
            assert run.stop() == 0
    ids = [message.body["data"]["id"] for message in messages(nats, stream)]
    assert ids == list(range(1, 1102))
