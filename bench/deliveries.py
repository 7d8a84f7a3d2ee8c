"""What each delivery costs: the sink alone, fed with prepared changes, on one server and on three,
with the default sync and with `sync_interval: always`.

The rate is of a backlog; the latency is of one write of 100 changes, from handing it over until all
of it is durable, at a rate that is a fraction of that. All servers are on this machine.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

import numpy as np
import ormsgpack
import psutil
import pyarrow as pa

from penstock.model.change import event_id, schema
from penstock.model.errors import PenstockError
from penstock.model.position import Place
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from penstock.sinks.jetstream.settings import Delivery
from tests.progress import Noted
from tests.servers import Nats, free_port

DELIVERIES: tuple[Delivery, ...] = ("exactly-once", "deduplicated", "at-least-once")
_BATCH = 1000
_SMALL, _INTERVAL = 100, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cell of the table. CPU in microseconds for each change; latencies in milliseconds."""

    delivery: str
    servers: int
    sync: str
    changes: int
    events_per_second: float
    client_cpu: float
    server_cpu: float
    p50: float
    p99: float
    behind: int  # writes that took longer than the interval between two
    transitions: int  # of the back-pressure's state, which should be none


def deliveries(*, seconds: float = 5.0, runs: int = 1) -> list[Row]:
    """Every delivery on one server and on three, with both syncs. `runs` interleaves the
    deliveries that often, and takes the median rate of each."""
    rows = []
    for servers in (1, 3):
        for sync in ("default", "always"):
            with _servers(servers, sync) as nodes:
                found: dict[str, list[Row]] = {one: [] for one in DELIVERIES}
                for _ in range(runs):
                    for one in DELIVERIES:
                        found[one].append(_measure(nodes, one, sync, seconds))
                for several in found.values():
                    several.sort(key=lambda row: row.events_per_second)
                    rows.append(several[len(several) // 2])
    return rows


@contextmanager
def _servers(number: int, sync: str) -> Iterator[list[Nats]]:
    ports = [free_port() for _ in range(number)]
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        nodes = []
        for index, port in enumerate(ports):
            config: dict[str, Any] = {"server_name": f"bench{index}"}
            if sync == "always":
                config["jetstream"] = {"sync_interval": "always"}
            if number > 1:
                listen = f"127.0.0.1:{port}"
                config["cluster"] = {"name": "bench", "listen": listen, "routes": routes}
            nodes.append(stack.enter_context(Nats(config=config)))
        yield nodes


_streams = count(1)


def _measure(nodes: list[Nats], delivery: Delivery, sync: str, seconds: float) -> Row:
    name = f"BENCH{next(_streams)}"
    settings = JetStreamSettings(
        url=",".join(node.url for node in nodes),
        stream=name,
        subject=f"{name}.{{collection}}.{{operation}}",
        delivery=delivery,
        replicas=len(nodes),
        durability="fsync" if sync == "always" else "default",
        assume_synced=sync == "always",  # they were started so
    )
    sink = JetStreamSink(settings)
    _prepared(sink)
    commits = count(1)
    told: list[Any] = []
    sink.write([_batch(next(commits), _BATCH)], ignore)  # what the first write pays is not measured
    processes = [psutil.Process(node.pid) for node in nodes]
    prepared = [_batch(next(commits), _BATCH) for _ in range(50)]
    server, client = _cpu(processes), time.process_time()
    start = time.perf_counter()
    receipt = sink.write(_backlog(prepared, start + seconds), Noted(told.append))
    elapsed = time.perf_counter() - start
    took = _paced(sink, commits, seconds)
    return Row(
        delivery=delivery,
        servers=len(nodes),
        sync=sync,
        changes=receipt.published,
        events_per_second=receipt.published / elapsed,
        client_cpu=(time.process_time() - client) / receipt.published * 1e6,
        server_cpu=(_cpu(processes) - server) / receipt.published * 1e6,
        p50=float(np.percentile(took, 50)),
        p99=float(np.percentile(took, 99)),
        behind=sum(one > _INTERVAL * 1e3 for one in took),
        transitions=sum("pressure_transitions" in note.get("counts", {}) for note in told),
    )


def _prepared(sink: JetStreamSink) -> None:
    """Waits until the servers have formed a cluster."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return sink.prepare()
        except PenstockError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _backlog(prepared: list[pa.RecordBatch], until: float) -> Iterator[pa.RecordBatch]:
    """Batches as fast as the sink takes them, for some seconds; ids and places continue."""
    for number in count(1_000_000):
        if time.perf_counter() >= until:
            return
        yield _moved(prepared[number % len(prepared)], number)


def _paced(sink: JetStreamSink, commits: Iterator[int], seconds: float) -> list[float]:
    """Milliseconds of each write of `_SMALL` changes, one every `_INTERVAL` seconds."""
    took = []
    due = time.perf_counter()
    for number in range(int(seconds / _INTERVAL)):
        batch = _moved(_batch(next(commits), _SMALL), 500_000_000 + number)
        due += _INTERVAL
        time.sleep(max(due - time.perf_counter(), 0))
        start = time.perf_counter()
        sink.write([batch], ignore)
        took.append((time.perf_counter() - start) * 1e3)
    return took


def _cpu(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


def _batch(commit: int, size: int) -> pa.RecordBatch:
    """A transaction that inserts rows of ten columns."""
    now = datetime.now(UTC)
    places = [Place(f"00000000/{commit:08X}", number) for number in range(size)]
    rows = [
        {
            "id": number, "name": f"customer {number}", "note": "a note of ordinary length",
            "quantity": number % 1000, "active": number % 2 == 0, "price": "1234.5678",
            "ratio": number / 7, "changed": "2026-11-21 10:02:03.000004+00",
            "detail": {"n": number, "source": "bench"}, "tags": ["red", "green", "blue"],
        }
        for number in range(size)
    ]  # fmt: skip
    values: dict[str, list[Any]] = {
        "backend": ["default"] * size,
        "partition": ["bench"] * size,
        "cursor": [place.cursor for place in places],
        "ordinal": [place.ordinal for place in places],
        "event_id": [event_id("default", place) for place in places],
        "operation": ["INSERT"] * size,
        "tenant": [None] * size,
        "database": ["bench"] * size,
        "namespace": ["public"] * size,
        "collection": ["bench"] * size,
        "relation_id": [16385] * size,
        "schema_version": ["0123456789abcdef"] * size,
        "document_id": [f'["{number}"]' for number in range(size)],
        "key": [ormsgpack.packb({"id": number}) for number in range(size)],
        "before": [None] * size,
        "after": [ormsgpack.packb(row) for row in rows],
        "unchanged": [[]] * size,
        "transaction": [str(commit)] * size,
        "committed_at": [now] * size,
        "captured_at": [now] * size,
        **{name: [None] * size for name in ("delta", "mark", "route")},
    }
    return pa.RecordBatch.from_pydict(values, schema=schema("msgpack"))


def _moved(batch: pa.RecordBatch, commit: int) -> pa.RecordBatch:
    """The same rows in a later transaction."""
    cursor = f"00000000/{commit:08X}"
    ids = [event_id("default", Place(cursor, number)) for number in range(len(batch))]
    changed = {"cursor": pa.array([cursor] * len(batch)), "event_id": pa.array(ids)}
    columns = [changed.get(name, batch.column(name)) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
