"""nats-server stands still under load without closing a connection, and is restarted while nothing
is written: the status shows the one, and the ops server survives the other."""

import json
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.pipeline.running import count, document, eventually, messages, running
from tests.servers import Database, Nats

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.fault]

RATE = 3000  # changes a second


@pytest.mark.thorough  # tests/sinks has a server that hangs
def test_a_frozen_server_is_seen_while_it_is_frozen(
    database: Database, stream: str, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION pub FOR TABLE items")
    stop, written = threading.Event(), [0]

    def load() -> None:
        while not stop.wait(0.1):
            first, last = written[0] + 1, written[0] + RATE // 10
            database.execute(
                "INSERT INTO items SELECT generate_series(%s::int, %s::int)", (first, last)
            )
            written[0] = last

    with Nats() as server, running(tmp_path, document(tmp_path, database, server, stream)) as run:
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        loader = threading.Thread(target=load)
        loader.start()
        try:
            eventually(lambda: count(server, stream) > 0, run=run)
            before = run.status()["sinks"][0]["pressure_transitions"]
            server.signal(signal.SIGSTOP)
            try:
                frozen = time.monotonic()
                eventually(
                    lambda: run.status()["sinks"][0]["pressure"] == "critical", seconds=60, run=run
                )
                assert run.status()["sinks"][0]["pressure_transitions"] > before
                time.sleep(
                    max(0.0, frozen + 6 - time.monotonic())
                )  # it stays frozen for 6 s, at least
            finally:
                server.signal(signal.SIGCONT)
            eventually(lambda: run.status()["sinks"][0]["pressure"] == "normal", run=run)
        finally:
            stop.set()
            loader.join()
        eventually(lambda: count(server, stream) == written[0], run=run)
        found = [message.body["data"]["id"] for message in messages(server, stream)]
        assert found == list(range(1, written[0] + 1))

        # Nobody used these connections while the server was away.
        path = f"/streams/info?stream={stream}"
        assert json.loads(run.get(path)[1])["state"]["messages"] == written[0]
        for kill in (server.kill, server.stop):
            kill()
            server.start()
            code, body = run.get(path)
            assert code == 200, body
            assert json.loads(body)["state"]["messages"] == written[0]
