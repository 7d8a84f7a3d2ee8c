"""What the sink tests share: batches of changes, an independent reader, and a bad network."""

import asyncio
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import nats as nats_py
import orjson
import ormsgpack
import pyarrow as pa
import pytest

from penstock.model.change import Images, event_id, schema
from penstock.model.position import Place
from penstock.sinks.jetstream import JetStreamSettings
from tests.servers import Nats

COMMITTED = datetime(2026, 11, 21, 10, 2, 3, 4, UTC)
CAPTURED = datetime(2026, 11, 21, 10, 2, 4, 0, UTC)


class MakeBatch(Protocol):
    def __call__(
        self,
        count: int,
        commit: int = 1,
        *,
        start: int = 0,
        images: Images = "json",
        backend: str = "default",
        partition: str = "shop",
        **columns: Any,
    ) -> pa.RecordBatch: ...


@pytest.fixture
def batch_of() -> MakeBatch:
    """`batch_of(count, commit)`: changes with ordinals from `start` in one transaction; a
    column given by name has that value in every row, or a list of one for each."""

    def make(
        count: int,
        commit: int = 1,
        *,
        start: int = 0,
        images: Images = "json",
        backend: str = "default",
        partition: str = "shop",
        **columns: Any,
    ) -> pa.RecordBatch:
        places = [Place(f"00000000/{commit:08X}", start + n) for n in range(count)]
        pack = ormsgpack.packb if images == "msgpack" else lambda v: orjson.dumps(v).decode()
        values: dict[str, Any] = {
            "backend": backend,
            "partition": partition,
            "cursor": [place.cursor for place in places],
            "ordinal": [place.ordinal for place in places],
            "event_id": [event_id(backend, place) for place in places],
            "operation": "INSERT",
            "tenant": None,
            "database": "shop",
            "namespace": "public",
            "collection": "items",
            "relation_id": 16385,
            "schema_version": None,
            "document_id": [f'["{place.ordinal}"]' for place in places],
            "key": [pack({"id": place.ordinal}) for place in places],
            "before": None,
            "after": [pack({"id": place.ordinal, "name": f"n{place}"}) for place in places],
            "unchanged": [[]] * count,
            "transaction": str(commit),
            "committed_at": COMMITTED,
            "captured_at": CAPTURED,
            "delta": None,
            "mark": None,
            "route": None,
            **columns,
        }
        listed = {k: v if isinstance(v, list) else [v] * count for k, v in values.items()}
        return pa.RecordBatch.from_pydict(listed, schema=schema(images))

    return make


def ids_of(*batches: pa.RecordBatch) -> list[str]:
    return [one for batch in batches for one in batch.column("event_id").to_pylist()]


@pytest.fixture(name="ids_of")
def _ids_of() -> Callable[..., list[str]]:
    """The event ids of batches, in order."""
    return ids_of


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


@pytest.fixture
def read() -> Callable[[str, str], list[Read]]:
    """`read(url, stream)`: every message of a stream, by nats-py, which shares no code with us."""
    return lambda url, stream: asyncio.run(_read(url, stream))


@pytest.fixture
def settings_of(stream: str) -> Callable[..., JetStreamSettings]:
    """Settings with a stream and subjects of this test's own."""

    def make(url: str, **others: Any) -> JetStreamSettings:
        fields = {
            "stream": stream,
            "subject": f"{stream}.{{collection}}.{{operation}}",
            "timeout": "20s",  # a busy machine is no outage
            **others,
        }
        return JetStreamSettings(url=url, **fields)

    return make


@dataclass
class Proxy:
    """A TCP proxy that can lose the server's answers: `deaf` keeps them back once `trigger` was
    seen in them, and cuts the connection at that."""

    target: tuple[str, int]
    trigger: bytes = b""
    remaining: int = 0  # how many answers with the trigger are lost before it behaves
    lost: int = 0
    frozen: threading.Event = field(default_factory=threading.Event)
    listener: socket.socket = field(default_factory=socket.socket)
    stopped: bool = False

    def __post_init__(self) -> None:
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.listener.getsockname()[1]}"

    def close(self) -> None:
        self.stopped = True
        self.listener.close()

    def _accept(self) -> None:
        while not self.stopped:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self.target)
        except OSError:
            client.close()
            return
        with client, server:
            while not self.stopped:
                ready, _, _ = select.select([client, server], [], [], 0.05)
                if self.frozen.is_set():
                    time.sleep(0.01)
                    continue
                for one in ready:
                    try:
                        data = one.recv(1 << 16)
                        if not data or (one is server and self._lose(data)):
                            return
                        (server if one is client else client).sendall(data)
                    except OSError:
                        return

    def _lose(self, data: bytes) -> bool:
        if self.remaining and self.trigger in data:
            self.remaining -= 1
            self.lost += 1
            return True
        return False


@pytest.fixture
def proxy(nats: Nats) -> Iterator[Callable[..., Proxy]]:
    """`proxy(trigger=..., remaining=...)` in front of the shared server."""
    made: list[Proxy] = []

    def make(**fields: Any) -> Proxy:
        one = Proxy((nats.host, nats.port), **fields)
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()
