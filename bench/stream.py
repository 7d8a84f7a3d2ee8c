"""Reads the stream back: how many messages, when stored, and from which commit."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import nats as nats_py
import ormsgpack

__all__ = ["latencies", "stored", "wait_for"]


def stored(url: str, stream: str) -> tuple[int, float, float]:
    """Messages in the stream, and the times of the first and last, in seconds since 1970."""
    return asyncio.run(_stored(url, stream))


def wait_for(
    url: str, stream: str, count: int, *, timeout: float, alive: Callable[[], Any]
) -> None:
    """Waits until the stream has `count` messages; `alive` raises if it never will."""
    asyncio.run(_wait_for(url, stream, count, timeout, alive))


def latencies(url: str, stream: str, *, skip: int) -> list[float]:
    """Milliseconds from the commit in the database to being stored, for every message but the
    first `skip`, in the stream's order. Both clocks are this machine's."""
    return asyncio.run(_latencies(url, stream, skip))


async def _state(connection: Any, stream: str) -> Any:
    try:
        answer = await connection.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=5)
    except TimeoutError:
        return {}
    import json

    return json.loads(answer.data).get("state", {})


def _seconds(text: str) -> float:
    # RFC 3339 with nanoseconds, which datetime reads up to microseconds.
    head, _, rest = text.partition(".")
    fraction = rest.rstrip("Z") or "0"
    return datetime.fromisoformat(head.rstrip("Z") + "+00:00").timestamp() + float(f"0.{fraction}")


async def _stored(url: str, stream: str) -> tuple[int, float, float]:
    connection = await nats_py.connect(url)
    try:
        state = await _state(connection, stream)
        return state["messages"], _seconds(state["first_ts"]), _seconds(state["last_ts"])
    finally:
        await connection.close()


async def _wait_for(
    url: str, stream: str, count: int, timeout: float, alive: Callable[[], Any]
) -> None:
    connection = await nats_py.connect(url)
    try:
        async with asyncio.timeout(timeout):
            while (await _state(connection, stream)).get("messages", 0) < count:
                alive()
                await asyncio.sleep(0.1)
    finally:
        await connection.close()


async def _latencies(url: str, stream: str, skip: int) -> list[float]:
    connection = await nats_py.connect(url)
    found = []
    try:
        total = (await _state(connection, stream))["messages"]
        subscription = await connection.jetstream().subscribe(
            ">", stream=stream, ordered_consumer=True, pending_msgs_limit=0, pending_bytes_limit=0
        )
        for number in range(total):
            message = await subscription.next_msg(timeout=30)
            if number < skip:
                continue
            body = ormsgpack.unpackb(message.data)
            at = message.metadata.timestamp.timestamp()
            committed = datetime.fromisoformat(body["committed_at"]).timestamp()
            found.append((at - committed) * 1000)
    finally:
        await connection.close()
    return found
