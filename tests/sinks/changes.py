"""Batches of changes, their messages, and an independent reader of what became of them."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats as nats_py
import pyarrow as pa
from nats.js.api import StreamConfig

from penstock.native.batch import Batch
from penstock.sinks.jetstream.publishing.publisher import nats_framing
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.messages.encoders import encoder
from penstock.sinks.messages.message import Messages
from penstock.sinks.messages.traces import Traces
from penstock.sinks.rows.part import Part
from penstock.sinks.subject import parse_template
from penstock.testing.sinks import COMMITTED, batch_of, ids_of  # noqa: F401, tests take them here
from tests.waiting import until


def encoded(
    changes: Batch,
    template: str = "cdc.{collection}.{operation}",
    dictionaries: Any = None,
    *,
    ids: bool = True,
    limit: int = 1 << 20,
    traces: Traces | None = None,
    **settings: Any,
) -> Messages:
    """The messages of a batch, with these settings of the sink."""
    chosen = JetStreamSettings(url="nats://h", **settings)
    framing = nats_framing(ids=ids, limit=limit)
    made = encoder(chosen, parse_template(template), framing, dictionaries, traces)
    return made.encode(Part.of(changes))


@dataclass(frozen=True, slots=True)
class Read:
    sequence: int
    subject: str
    headers: dict[str, str]
    data: bytes

    @property
    def event_id(self) -> str:
        return self.headers.get("Nats-Msg-Id") or self.headers["Penstock-Event-Id"]


async def _read(url: str, stream: str) -> list[Read]:
    client = await nats_py.connect(url)
    try:
        context = client.jetstream(timeout=60)
        state = (await context.stream_info(stream)).state
        found: list[Read] = []
        if not state.messages:
            return found
        subscription = await context.subscribe(">", stream=stream, ordered_consumer=True)
        while len(found) < state.messages:
            message = await subscription.next_msg(timeout=60)
            sequence = message.metadata.sequence.stream
            found.append(Read(sequence, message.subject, dict(message.headers or {}), message.data))
        return found
    finally:
        await client.close()


def read(url: str, stream: str) -> list[Read]:
    """Every message of a stream, by nats-py, which shares no code with us."""
    return asyncio.run(_read(url, stream))


def publish(url: str, stream: str, bodies: list[bytes], subject: str = "users.insert") -> None:
    """Makes the stream, and publishes bodies, by nats-py; `subject` comes after its name."""

    async def work() -> None:
        client = await nats_py.connect(url)
        context = client.jetstream()
        await context.add_stream(StreamConfig(name=stream, subjects=[f"{stream}.>"]))
        for body in bodies:
            await context.publish(f"{stream}.{subject}", body)
        await client.close()

    asyncio.run(work())


def ids_in(url: str, stream: str) -> list[str]:
    """The event ids of a stream's messages."""
    return [message.event_id for message in read(url, stream)]


def interrupted(
    url: str, stream: str, act: Callable[[], object], *batches: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    """The batches; `act()` once the first is stored."""
    yield batches[0]
    while len(read(url, stream)) < len(batches[0]):
        yield batch_of(0)
    act()
    yield from batches[1:]


def _is_stopped(pid: int) -> bool:
    """Whether no thread of a process runs."""
    states = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state.rpartition(")")[2].split()[0] == "T" for state in states)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process that hangs meanwhile. The signal takes its time to reach each thread, and until
    then one may answer all that it is sent."""
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: _is_stopped(pid))
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
