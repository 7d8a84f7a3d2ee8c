"""CPU an event of the sink alone, from batches of changes to bytes for the socket: no server.

`python -m bench.encode`: every form of messages at several sizes of batches; the minimum of several
repetitions, because other work on the machine only adds to it. A second table compares 16 hash
partitions with one, in turns.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import orjson
import ormsgpack
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from penstock.model.change import Images, schema
from penstock.native import describe
from penstock.sinks.jetstream.publishing.atomic import Atomic
from penstock.sinks.jetstream.publishing.flight import FlightBatch
from penstock.sinks.jetstream.publishing.publisher import nats_framing
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.messages.encoders import encoder
from penstock.sinks.rows.flow import Flow
from penstock.sinks.rows.intake import Order
from penstock.sinks.rows.loop import Tally
from penstock.sinks.subject import parse_template
from penstock.wire.hash_partitions import routed

# With `partitions`, subjects have the hash partition as well, and setting it is counted.
SUBJECT, HASHED = "cdc.{collection}.{operation}", "cdc.{collection}.{operation}.{partition}"
FORMS: dict[str, dict[str, Any]] = {
    "change, msgpack": {},
    "change, json": {"encoding": "json"},
    "change, debezium": {"encoding": "json", "layout": "debezium"},
    "change, cloudevents": {"encoding": "json", "layout": "cloudevents"},
    "change, puller": {"encoding": "json", "layout": "puller"},
    "batch, msgpack": {"messages": "batch"},
    "batch, json": {"messages": "batch", "encoding": "json"},
    "batch, arrow": {"messages": "batch", "encoding": "arrow"},
}
COMPARED = ("change, msgpack", "batch, msgpack", "batch, json", "batch, arrow")
ROW = {
    "id": 1000, "name": "customer 1000", "note": "a note of ordinary length for row 1000",
    "quantity": 0, "active": True, "price": "1000.1000", "ratio": 142.857142857,
    "changed": "2026-11-21T10:02:03.000004+00:00", "detail": {"n": 1000, "source": "bench"},
    "tags": ["red", "green", "tag 0"],
}  # fmt: skip


def changes(count: int, images: Images) -> pa.RecordBatch:
    """Inserts of the benchmark's row, in one transaction."""
    pack: Any = ormsgpack.packb if images == "msgpack" else orjson.dumps
    now = datetime.now(UTC)
    cursor = "00000000/016B3748"
    values: dict[str, Any] = {
        "backend": "default", "partition": "bench", "cursor": cursor, "operation": "INSERT",
        "tenant": None, "database": "postgres", "namespace": "public", "collection": "bench",
        "relation_id": 16385, "schema_version": "0123456789abcdef", "document_id": "1000",
        "key": pack({"id": 1000}), "before": None,
        "after": pack(ROW), "unchanged": [], "transaction": "7461", "committed_at": now,
        "captured_at": now, "delta": None, "mark": None, "route": None,
    }  # fmt: skip
    columns: dict[str, list[Any]] = {name: [value] * count for name, value in values.items()}
    columns["ordinal"] = list(range(count))
    columns["document_id"] = [str(1000 + n) for n in range(count)]
    columns["event_id"] = [f"default:{cursor}:{n}" for n in range(count)]
    return pa.RecordBatch.from_pydict(columns, schema=schema(images))


class _Connection:
    inbox = "_INBOX.0123456789abcdef012345"


def prepared(form: dict[str, Any], count: int) -> tuple[Callable[[], int], int]:
    """What one batch costs to make ready for the socket, and how many bytes it comes to."""
    given = dict(form)
    partitions = given.pop("partitions", 1)
    settings = JetStreamSettings(url="nats://nowhere", **given)
    template = parse_template(SUBJECT if partitions == 1 else HASHED)
    made = encoder(settings, template, nats_framing())
    atomic = Atomic(
        Tally(), Flow(settings.pressure, settings.breaker), stream="CDC", template=template
    )
    batch = changes(count, "json" if settings.encoding == "json" else "msgpack")
    connection: Any = _Connection()

    def order() -> Order:
        return Order(8000) if settings.messages == "batch" else Order()

    def once() -> int:
        size = 0
        whole = batch if partitions == 1 else routed(batch, partitions)
        for part in order().arrange(whole):
            messages = made.encode(part)
            size += len(atomic._encode(connection, FlightBatch(1, [messages])))
        return size

    return once, once()


def cost(once: Callable[[], int], count: int, repetitions: int) -> float:
    """Microseconds of CPU an event."""
    rounds, best = max(1000 // count, 10), float("inf")
    for _ in range(repetitions):
        before = time.process_time()
        for _ in range(rounds):
            once()
        best = min(best, (time.process_time() - before) / rounds)
    return best * 1e6 / count


def ratios(form: dict[str, Any], count: int, repetitions: int) -> str:
    """Microseconds of CPU an event with one partition and with 16, and their ratio."""
    ways = [prepared(one, count)[0] for one in (form, {**form, "partitions": 16})]
    best = [float("inf")] * 2
    for _ in range(repetitions):
        best = [min(known, cost(way, count, 1)) for known, way in zip(best, ways, strict=True)]
    return f"{best[0]:.2f} {best[1]:.2f} {best[1] / best[0]:.2f}"


@click.command()
@click.option("--repetitions", default=7, show_default=True)
def main(repetitions: int) -> None:
    """CPU an event from a batch of changes to the bytes of its messages."""
    console = Console(width=110)
    sizes = (1000, 100, 10, 1)
    table = Table(title=f"us of CPU an event; native library {describe()}")
    for head in ("messages", *(f"{size} a batch" for size in sizes), "bytes an event"):
        table.add_column(head, justify="left" if head == "messages" else "right")
    for name, form in FORMS.items():
        costs = [f"{cost(prepared(form, size)[0], size, repetitions):.2f}" for size in sizes]
        table.add_row(name, *costs, f"{prepared(form, 1000)[1] / 1000:.0f}")
    console.print(table)
    sizes = (100, 1000, 10_000)
    table = Table(title="us of CPU an event with 1 and with 16 hash partitions, and the ratio")
    for head in ("messages", *(f"{size} a batch" for size in sizes)):
        table.add_column(head, justify="left" if head == "messages" else "right")
    for name in COMPARED:
        table.add_row(name, *(ratios(FORMS[name], size, repetitions) for size in sizes))
    console.print(table)


if __name__ == "__main__":
    main()
