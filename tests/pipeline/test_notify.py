"""Webhooks hear of a running pipeline what its operator should know, and of no row."""

import json
from pathlib import Path

import pytest

from tests.pipeline.running import count, document, eventually, running
from tests.pipeline.test_actions import TOKEN, done
from tests.servers import Database, Nats
from tests.servers.webhook import WebhookServer

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(600)]


def test_webhooks_hear_of_letters_and_of_a_pause(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE items (id text PRIMARY KEY, v text)")
    database.execute("CREATE PUBLICATION pub FOR TABLE items")

    def is_well(hook: WebhookServer) -> bool:
        return not hook.of("health") or hook.of("health")[-1]["title"] == "health is ok"

    def hears_of_a_pause(hook: WebhookServer) -> bool:
        last = hook.of("health")[-1]
        return last["title"] == "health is degraded" and "paused since" in str(last["lines"])

    with WebhookServer(503, 503) as hook, WebhookServer(*[0] * 100) as slow:
        ops = {
            "port": 0,
            "token": TOKEN,
            "stalled_after": "10s",
            "notify": [
                {"url": f"{slow.url}/slowsecret"},
                {"url": f"{hook.url}/verysecret?sig=also"},
            ],
        }
        pipeline = document(tmp_path, database, nats, stream, ops=ops)
        with running(tmp_path, pipeline) as run:
            eventually(lambda: run.get("/ready")[0] == 200, run=run)
            database.execute("INSERT INTO items VALUES ('akey', 'arow'), ('bkey', 'brow')")
            eventually(lambda: count(nats, stream) == 2, run=run)
            database.execute("INSERT INTO items VALUES ('ckey', repeat('crow', 1000000))")
            (letter,) = eventually(lambda: hook.of("dead-letter"), run=run)
            assert letter["lines"] == ["sink jetstream: too-large: 1 since the start"]
            # Where the machine is busy, the start may have been news.
            eventually(lambda: run.status()["health"] == "ok" and is_well(hook), run=run)
            done(run, "pause")
            eventually(lambda: hears_of_a_pause(hook), run=run)
            done(run, "resume")
            database.execute("INSERT INTO items VALUES ('dkey', 'drow')")
            eventually(lambda: count(nats, stream) == 3, run=run)
            # That it is well again may be told meanwhile.
            eventually(lambda: run.status()["notifications"]["sent"] == len(hook.taken), run=run)
            assert run.status()["notifications"]["failed"] >= 2
            shown = run.get("/configuration")[1] + run.get("/status")[1] + run.get("/metrics")[1]
            assert "ops.notify[1].url" in shown
            assert run.stop() == 0
            shown += run.log
    assert not any(each in json.dumps(hook.taken) for each in ("key", "row", "secret"))
    assert not any(each in shown for each in ("verysecret", "sig=also", "slowsecret"))
