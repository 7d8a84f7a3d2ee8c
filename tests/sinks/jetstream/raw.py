"""What another client than the sink does to a server, in the protocol's own words."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import orjson
import pyarrow as pa

from penstock.model.errors import PenstockError, Unavailable
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.protocol import hpub
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from penstock.sinks.jetstream.session import Session
from penstock.sinks.rows.loop import Tally
from penstock.sinks.rows.part import Part
from tests.progress import Noted
from tests.servers import Nats, free_port
from tests.waiting import until


class Raw:
    """A connection that publishes whatever it is told to."""

    def __init__(self, url: str) -> None:
        self.connection = Connection(JetStreamSettings(url=url, timeout="20s"))
        self.connection.open()
        self.api = JetStream(self.connection)
        self._count = 0

    def make(self, stream: str, **config: Any) -> None:
        """A stream that takes `<stream>.>` and atomic batches."""
        fields = {"name": stream, "subjects": [f"{stream}.>"], "allow_atomic": True}
        self.api.create(fields | config)

    def info(self, stream: str) -> Mapping[str, Any]:
        """A stream that is there."""
        found = self.api.stream(stream)
        assert found is not None
        return found

    def update(self, stream: str, **config: Any) -> None:
        """Changes fields of a stream's configuration."""
        self.api._call(f"STREAM.UPDATE.{stream}", {**self.info(stream)["config"], **config})

    def step_down(self, stream: str) -> None:
        """The stream gets another leader. Nobody answers a request that comes while there is none
        (or whose leader goes with it), so what counts is who leads."""
        before = self.leader(stream)
        deadline = time.monotonic() + 60
        while (now := self.leader(stream)) in (before, ""):
            assert time.monotonic() < deadline, now
            self._ask(f"STREAM.LEADER.STEPDOWN.{stream}")

    def leader(self, stream: str) -> str:
        """The name of the leader; empty while there is none."""
        info = self._ask(f"STREAM.INFO.{stream}")
        return str(info.get("cluster", {}).get("leader", ""))

    def _ask(self, verb: str) -> dict[str, Any]:
        """The answer; nothing if none comes soon."""
        with suppress(Unavailable):
            answer = self.connection.request(f"$JS.API.{verb}", timeout=1)
            return dict(orjson.loads(answer.payload))
        return {}

    def publish(self, subject: str, headers: Mapping[str, object], body: bytes = b"x") -> bytes:
        """Without waiting for the answer; returns the subject that it will have."""
        self._count += 1
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        reply = f"{self.connection.inbox}.{self._count}"
        self.connection.send(
            hpub(subject.encode(), reply.encode(), f"NATS/1.0\r\n{lines}\r\n".encode(), body)
        )
        return reply.encode()

    def answers(self, count: int) -> list[dict[str, Any]]:
        """The next answers; one that only says "staged" is empty."""
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + 30
        while len(found) < count:
            assert time.monotonic() < deadline, found
            # A late answer to a question of ours is none of these.
            asked = f"{self.connection.inbox}.r".encode()
            came = [m for m in self.connection.receive(0.1) if not m.subject.startswith(asked)]
            found += [orjson.loads(m.payload) if m.payload else {} for m in came]
        return found

    def codes(self, count: int) -> list[int]:
        """The error codes of the next answers; 0 where there is none."""
        return [one.get("error", {}).get("err_code", 0) for one in self.answers(count)]


def mending(mend: Callable[[], object], *, after: int = 2) -> Noted:
    """A progress that mends what is broken once the sink has said that it failed `after` times."""

    def report(note: Any) -> None:
        if note.get("connected") is False and note["attempts"] == after:
            mend()

    return Noted(report)


def reload(server: Nats, config: dict[str, Any], seen: Callable[[], object]) -> None:
    """Gives a running server another configuration, and waits until that is seen."""
    server.config = config
    text = orjson.loads((server.folder / "nats.conf").read_text())
    (server.folder / "nats.conf").write_bytes(orjson.dumps(text | config))
    server.signal(signal.SIGHUP)
    until(seen, problem=lambda: server.log[-1000:])


@contextmanager
def publishing(settings: JetStreamSettings, *batches: pa.RecordBatch) -> Iterator[Any]:
    """The publisher of a session, with these batches added."""
    session = Session(settings)
    session.open()
    publisher = session.publisher(Tally())
    publisher.resume(session.connection, session.api)
    for batch in batches:
        publisher.add(session.poison.writer.encoder.encode(Part.of(batch)))
    yield publisher
    session.close()


@contextmanager
def three_servers(*configs: dict[str, Any]) -> Iterator[list[Nats]]:
    """A cluster; `configs` is what each server has of its own."""
    ports = [free_port() for _ in range(3)]
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    clusters = [{"name": "c", "listen": f"127.0.0.1:{port}", "routes": routes} for port in ports]
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Nats(config={"server_name": f"node{n}", "cluster": cluster, **each})
            )
            for n, (cluster, each) in enumerate(zip(clusters, configs or [{}] * 3, strict=True))
        ]


def prepared(sink: JetStreamSink) -> None:
    """Waits until the three have found each other."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return sink.prepare()
        except PenstockError as error:
            if "10005" in str(error) and sink.settings.replicas > 3:
                raise
            assert time.monotonic() < deadline
            time.sleep(0.1)
