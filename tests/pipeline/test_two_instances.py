"""Two instances of one pipeline: one publishes, the other takes over, and never do both."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pipeline.running import Run, document, eventually, running, send, tree
from tests.pipeline.test_faults import assert_exact, kill_the_parts, load, prepared, stored_all
from tests.servers import Database, Nats, free_port

pytestmark = pytest.mark.fault

# Seconds from the end of one instance to the first message of the next, on a busy machine.
SOON = 120.0


def java(run: Run) -> bool:
    """Whether it has a JVM."""
    names = set()
    for process in tree(run):
        with suppress(psutil.Error):  # some end while we look
            names.add(process.name())
    return "java" in names


@contextmanager
def started(folder: Path, pipeline: dict[str, Any]) -> Iterator[Run]:
    """A run in a folder of its own."""
    folder.mkdir()
    with running(folder, pipeline) as run:
        yield run


@contextmanager
def on_standby(folder: Path, pipeline: dict[str, Any]) -> Iterator[Run]:
    """A run that waits, with Spark warm if that is asked for."""
    with started(folder, pipeline) as run:
        eventually(lambda: run.status()["health"] == "standby", run=run)
        if pipeline.get("spark", {}).get("standby") == "warm":
            eventually(lambda: 'event="spark is warm"' in run.log, run=run)
        yield run


@contextmanager
def two(folder: Path, pipeline: dict[str, Any]) -> Iterator[tuple[Run, Run]]:
    """A run that publishes, and one on standby."""
    with started(folder / "first", pipeline) as first:
        eventually(lambda: published(first), run=first)
        with on_standby(folder / "second", pipeline) as second:
            yield first, second


def published(run: Run) -> int:
    sinks = run.status()["sinks"]
    return int(sinks[0]["published"]) if sinks else 0


def takes_over(second: Run) -> None:
    """Waits until it publishes more; prints how long that took."""
    before, said = time.monotonic(), published(second)
    eventually(lambda: published(second) > said, seconds=SOON, run=second)
    assert 'event="taking over"' in second.log
    print(f"taken over within {time.monotonic() - before:.1f} s")


def assert_waits(second: Run) -> None:
    """It says for whom, publishes nothing, and costs no JVM."""
    code, text = second.get("/health")
    assert code == 200
    health = json.loads(text)
    assert health["health"] == "standby"
    assert "another instance owns the pipeline" in health["reasons"][0]
    # Which process of the server the owner reads with is known a little later.
    reasons = lambda: json.loads(second.get("/health")[1])["reasons"]  # noqa: E731
    eventually(lambda: second.status()["standby"] in reasons(), run=second)
    assert 'penstock_health{state="standby"} 1.0' in second.get("/metrics")[1]
    assert 'event="standby: another instance owns' in second.log
    assert published(second) == 0
    assert not java(second)


@pytest.mark.thorough  # two take over from each other below
def test_one_warm_standby_after_the_other_takes_over(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    """When the owner is killed, with all its processes or alone, and when it stops gracefully: it
    gives the lease back, and all that it published is saved and acknowledged. One that is
    interrupted before stops as with SIGTERM, and disturbs nobody."""
    truth = prepared(database)
    pipeline = document(tmp_path, database, nats, stream, spark={"standby": "warm"})
    endings = ("everything is killed", "the service is killed", "it stops")
    with ExitStack() as stack, load(database) as writer:
        owner = stack.enter_context(started(tmp_path / "0", pipeline))
        eventually(lambda: published(owner), run=owner)
        unwanted = stack.enter_context(on_standby(tmp_path / "unwanted", pipeline))
        unwanted.process.send_signal(signal.SIGINT)
        assert unwanted.process.wait(180) == 0
        assert "Traceback" not in unwanted.log
        before = published(owner)
        eventually(lambda: published(owner) > before, run=owner)
        for number, ending in enumerate(endings, 1):
            second = stack.enter_context(on_standby(tmp_path / str(number), pipeline))
            assert java(second)
            assert published(second) == 0
            if ending == "it stops":
                assert owner.stop() == 0
            else:
                whole = tree(owner)
                send(whole if ending == "everything is killed" else whole[:1], signal.SIGKILL)
            takes_over(second)
            owner = second
        changes = writer.stop()
        eventually(lambda: stored_all(nats, stream, changes), run=owner)
        assert owner.stop() == 0
    assert_exact(truth, nats, stream, changes)


def test_two_take_over_from_each_other(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    """A cold standby takes over from one that is frozen for longer than its lease, whole or its
    service alone (the server's own timeout for its reader is ten minutes), and from a killed one.
    Who wakes is on standby, like any other. In the end parts of the last one are killed."""
    truth = prepared(database)
    # Chaos has the default trigger.
    pipeline = document(tmp_path, database, nats, stream, spark={"trigger": "100ms"})
    with load(database) as writer, two(tmp_path, pipeline) as (first, second):
        assert_waits(second)
        freeze_until_replaced(first, second, tree(first))
        freeze_until_replaced(second, first, tree(second)[:1])
        by_first = published(first)
        assert by_first + published(second) >= 2000
        send(tree(first), signal.SIGKILL)
        takes_over(second)
        changes = writer.stop()
        eventually(lambda: stored_all(nats, stream, changes), run=second)
        assert second.status()["standby"] is None
        assert by_first + published(second) <= changes, "both published"
        with load(database) as again:
            kill_the_parts(second, nats, stream)
            changes += again.stop()
        eventually(lambda: stored_all(nats, stream, changes), run=second)
        assert second.stop() == 0
    assert_exact(truth, nats, stream, changes)


def freeze_until_replaced(owner: Run, other: Run, asleep: list[psutil.Process]) -> None:
    """Freezes processes of the owner; it is on standby when it wakes, and publishes no more."""
    send(asleep, signal.SIGSTOP)
    try:
        takes_over(other)
    finally:
        send(asleep, signal.SIGCONT)
    eventually(lambda: owner.status()["health"] == "standby", run=owner)
    assert 'event="another instance has taken over"' in owner.log
    # The last word of what it did before may come later.
    before = published(other)
    eventually(lambda: published(other) >= before + 300, run=other)
    said = published(owner)
    eventually(lambda: published(other) >= before + 1000, run=other)
    assert published(owner) == said, "it publishes on standby"


@pytest.mark.thorough  # rarely fails
def test_on_one_host_the_second_waits_for_the_ops_port_too(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    prepared(database)
    pipeline = document(tmp_path, database, nats, stream)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    pipeline["ops"] = {"port": free_port()}
    with running(tmp_path / "first", pipeline) as first:
        eventually(lambda: first.status()["health"] == "ok", run=first)
        with running(tmp_path / "second", pipeline) as second:
            eventually(lambda: "waits for its port" in second.log, run=second)
            first.kill()
            eventually(lambda: second.status()["health"] == "ok", seconds=SOON, run=second)
            assert second.url == first.url
