"""What the sink tests share: settings, and a bad network."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

import pytest

from penstock.process.table_counts import TableCounts
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from penstock.sinks.rows import loop
from tests.servers import Nats
from tests.sinks.changes import ids_in


@pytest.fixture(autouse=True)
def table_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a write that fails has counted of tables is reported by the process's next write: here
    the next test's."""
    monkeypatch.setattr(loop, "_tables", TableCounts())


# `test_versions` has a kill with the other delivery, too.
@pytest.fixture(params=["exactly-once", pytest.param("deduplicated", marks=pytest.mark.thorough)])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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


@pytest.fixture
def sink_of(
    nats: Nats, settings_of: Callable[..., JetStreamSettings]
) -> Callable[..., JetStreamSink]:
    """A sink with settings of this test's own, on the shared server or another one."""
    return lambda url=nats.url, **fields: JetStreamSink(settings_of(url, **fields))


@pytest.fixture
def stored(nats: Nats, stream: str) -> Callable[[], list[str]]:
    """The event ids that are in the test's stream, on the shared server."""
    return lambda: ids_in(nats.url, stream)


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
                ready = wait([client, server], 0.05)
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
