"""`async for` over the iterator: the loop goes on, nothing is lost, one thread waits."""

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest

import penstock
from penstock.model.errors import Malformed
from penstock.stream import Stream
from tests.servers import Database
from tests.stream.scripted import ScriptedFeed, tree


def memory(at: Any = "trim_horizon") -> Stream[dict[str, Any]]:
    return penstock.stream("memory", at=at, changes=1000, partitions=2)


async def some(stream: Stream[Any], count: int) -> list[Any]:
    found: list[Any] = []
    async for record in stream:
        found.append(record)
        if len(found) == count:
            break
    return found


def ids(records: list[Any]) -> list[str]:
    return [record["meta"]["event"]["id"] for record in records]


def test_records_come_in_the_order_of_iterating_and_the_token_is_after_the_last() -> None:
    whole = ids(list(iter(memory().__next__, None)))
    stream = memory()
    first = asyncio.run(some(stream, 700))
    again = memory(stream.token)
    rest = asyncio.run(some(stream, 1300))
    assert ids(first + rest) == whole
    assert ids([next(again)]) == ids(rest[:1])


def test_one_thread_waits_whatever_the_count_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    start = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda self: (started.append(self.name), start(self))[1]
    )
    assert len(asyncio.run(some(memory(), 2000))) == 2000
    assert len(started) == 1


def test_the_loop_goes_on_while_nothing_comes_and_stop_ends_it() -> None:
    async def run() -> tuple[int, list[Any]]:
        stream, ticks = memory("latest"), 0
        waiting = asyncio.create_task(some(stream, 1))
        for _ in range(20):
            await asyncio.sleep(0.01)
            ticks += 1
        assert not waiting.done()
        stream.stop()
        return ticks, await asyncio.wait_for(waiting, 30)

    assert asyncio.run(run()) == (20, [])


def test_cancelling_loses_no_record_and_leaves_no_thread(database: Database) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    settings: dict[str, Any] = {
        "connection": database.url, "slot": f"a_{abs(hash(database.url))}", "publication": "p",
        "create_publication": True,
    }  # fmt: skip

    async def run(stream: Stream[Any]) -> list[Any]:
        found: list[Any] = []

        async def read() -> None:
            async for record in stream:
                found.append(record["new"]["id"])

        for number in range(1, 21):
            reading = asyncio.create_task(read())
            await asyncio.sleep(0.02 * (number % 4))
            await asyncio.to_thread(
                database.execute, f"INSERT INTO items VALUES ({2 * number}), ({2 * number + 1})"
            )
            reading.cancel()
            began = time.monotonic()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
            assert time.monotonic() - began < 20
        reading = asyncio.create_task(read())
        while len(found) < 40:
            await asyncio.sleep(0.01)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        return found

    before = set(threading.enumerate())
    with penstock.stream("postgres", at="latest", **settings) as stream:
        found = asyncio.run(asyncio.wait_for(run(stream), 120))
    assert found == list(range(2, 42))
    more = set(threading.enumerate()) - before  # another test's stream may not be collected yet
    assert "penstock-stream" not in {each.name.partition("_")[0] for each in more}


def test_an_error_is_raised_and_the_stream_goes_on_after_it() -> None:
    feed = ScriptedFeed(tree("A"), {"A": [[1], [2]]})
    stream = Stream(feed, at="trim_horizon")
    assert len(asyncio.run(some(stream, 1))) == 1
    feed.broken.add("A")
    with pytest.raises(Malformed):
        asyncio.run(some(stream, 1))
    feed.broken.clear()
    assert len(asyncio.run(some(stream, 1))) == 1
