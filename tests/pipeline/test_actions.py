"""What an operator does to a running pipeline, by HTTP and by command, takes effect, and neither
loses nor repeats a change."""

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.pipeline.running import Run, count, document, eventually, messages, running
from tests.servers import Database, Nats, free_port

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.timeout(900)]

TOKEN = "open sesame"
PAUSED = 'event="the backend is paused"'


def act(run: Run, action: str, token: str = TOKEN, **arguments: Any) -> tuple[int, Any]:
    """The code and body of the answer."""
    request = urllib.request.Request(
        f"{run.url}/actions/{action}",
        data=json.dumps(arguments).encode(),
        headers={"Authorization": f"Bearer {token}"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def done(run: Run, action: str, **arguments: Any) -> Any:
    """What came of an action, once it is done."""
    code, begun = act(run, action, **arguments)
    assert code == 202, begun

    def ended() -> Any:
        recent = json.loads(run.get("/actions")[1])["recent"]
        (found,) = (each for each in recent if each["id"] == begun["id"])
        return found if found["state"] != "running" else None

    found = eventually(ended, run=run)
    assert found["state"] == "done", found
    return found["result"]


def command(run: Run, *words: str) -> str:
    name, *rest = words
    line = [sys.executable, "-m", "penstock", *name.split(), str(run.file), *rest]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=120).stdout


def backend(run: Run) -> Any:
    return run.status()["backends"][0]


def numbers(nats: Nats, stream: str, table: str = "items") -> list[int]:
    found = [each.body for each in messages(nats, stream)]
    return [
        body["data"]["id"] for body in found
        if body["operation"] == "INSERT" and body["collection"] == table
    ]  # fmt: skip


@contextmanager
def writing(database: Database) -> Iterator[list[int]]:
    """Rows with the numbers 1, 2, ..., until the end; the list has the last one."""
    over, last = threading.Event(), [0]

    def write() -> None:
        with psycopg.connect(database.url, autocommit=True) as connection:
            while not over.wait(0.01):
                last[0] += 1
                connection.execute("INSERT INTO items VALUES (%s)", [last[0]])

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield last
    finally:
        over.set()
        thread.join()


@pytest.fixture
def items(database: Database) -> Database:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY); CREATE TABLE notes (id int PRIMARY KEY);"
        " CREATE PUBLICATION pub FOR TABLE items, notes"
    )
    return database


def test_pauses_under_load_with_kills_lose_and_repeat_nothing(
    items: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    ops = {"port": free_port(), "token": TOKEN, "read_token": "reader"}
    pipeline = document(tmp_path, items, nats, stream, ops=ops)

    def flows(run: Run) -> None:
        before = count(nats, stream)
        eventually(lambda: count(nats, stream) > before + 20, run=run)

    def stands() -> bool:
        before, written = count(nats, stream), last[0]
        eventually(lambda: last[0] > written + 30)
        return count(nats, stream) == before

    with ExitStack() as load:
        last = load.enter_context(writing(items))
        with running(tmp_path, pipeline) as run:
            flows(run)
            assert done(run, "pause", backend="default") == {"paused": ["default"]}
            eventually(lambda: backend(run)["paused"] and stands(), run=run)
            run.kill_and_wait()
        with running(tmp_path, pipeline) as run:
            assert eventually(lambda: backend(run)["paused"], run=run)["by"] == "127.0.0.1"
            eventually(lambda: run.get("/ready")[0] == 200, run=run)
            eventually(lambda: "paused since" in str(run.status()["reasons"]), run=run)
            assert run.status()["health"] == "degraded"
            eventually(lambda: backend(run)["connected"], run=run)  # the slot is held
            assert stands()
            assert "default" in command(run, "resume")
            flows(run)
            eventually(lambda: act(run, "resume")[0] == 409, run=run)
            command(run, "pause", "default", "--for", "1h")
            eventually(lambda: (backend(run)["paused"] or {}).get("until") and stands(), run=run)
            done(run, "resume")
            for _ in range(5):
                flows(run)
                pauses = run.log.count(PAUSED)
                done(run, "pause", **{"for": "3s"})
                eventually(lambda n=pauses: run.log.count(PAUSED) > n, run=run)
                eventually(lambda: not backend(run)["paused"], run=run)
            done(run, "retry")
            flows(run)
            load.close()
            eventually(lambda: numbers(nats, stream)[-1] == last[0], run=run, seconds=120)
            found = numbers(nats, stream)
            assert found == list(range(found[0], last[0] + 1))
            assert_only_operators_act(run)
            assert_a_suspended_table_is_left_out(run, items, nats, stream)
            assert "begun" in command(run, "shutdown")
            assert run.process.wait(120) == 0


def assert_only_operators_act(run: Run) -> None:
    assert run.get("/status", token="")[0] == 401
    assert "backends" not in json.loads(run.get("/health", token="")[1])
    assert act(run, "pause", token="reader")[0] == 403
    assert act(run, "paus")[0] == 404
    code, found = act(run, "mend", backend="default")
    assert (code, found["field"]) == (422, "partition")


def assert_a_suspended_table_is_left_out(
    run: Run, items: Database, nats: Nats, stream: str
) -> None:
    before = numbers(nats, stream)
    assert act(run, "suspend-table", table="public.items")[0] == 202
    items.execute("INSERT INTO notes VALUES (1)")
    eventually(lambda: "suspended" in command(run, "tables list"), run=run)
    items.execute("INSERT INTO items SELECT generate_series(-3, -1)")
    items.execute("INSERT INTO notes VALUES (2)")
    eventually(lambda: 2 in numbers(nats, stream, "notes"), run=run)
    assert "resumes" in command(run, "tables resume", "public.items")
    items.execute("INSERT INTO items VALUES (-4)")
    eventually(lambda: -4 in numbers(nats, stream), run=run)
    assert numbers(nats, stream) == [*before, -4]
