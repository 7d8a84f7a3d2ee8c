"""What a single small page costs: `python -m bench.trickle`, against a real nats-server.

With a page every few milliseconds, cold caches dominate: count distinct functions, not rows. A page
costs ten times what it costs in a loop (`bench.encode`). Compare two states of the code in turns.
"""

import gc
import time
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.decode import page
from penstock.native import describe
from penstock.native.batch import Batch
from penstock.nats.connection import Connection
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from penstock.wire.eras import EraDecoder
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from tests.servers import Nats

_SHARES = (50, 90, 99)
_WARM_UP = 100  # pages that do not count


@contextmanager
def sends() -> Iterator[list[float]]:
    """The times at which the sink's bytes were with the kernel."""
    send, found = Connection.send, list[float]()

    def timed(connection: Connection, data: bytes | memoryview) -> None:
        send(connection, data)
        found.append(time.perf_counter())

    with mock.patch.object(Connection, "send", timed):
        yield found


def measure(rows: int, every: float, count: int) -> tuple[list[float], list[float], float]:
    """Milliseconds of each page to its decoded changes, and from there to the kernel; and of CPU,
    a page."""
    pages = [page(10, rows, lsn=1000 + number) for number in range(count)]
    decoder = EraDecoder(
        PgoutputDecoder(DecoderSettings(backend="b", database="d", images="msgpack"))
    )
    times: list[tuple[float, float]] = []

    def trickle() -> Iterator[Batch]:
        due = time.perf_counter()
        for one in pages:
            due += every
            time.sleep(max(0.0, due - time.perf_counter()))
            begun = time.perf_counter()
            batches = decoder.decode_natively(one)
            times.append((begun, time.perf_counter()))
            yield from batches

    with Nats() as nats, sends() as sent:
        settings = {"url": nats.url, "stream": "TRICKLE", "subject": "trickle.{collection}"}
        sink = JetStreamSink(JetStreamSettings.model_validate(settings))
        gc.collect()
        gc.freeze()
        before = time.process_time()
        receipt = sink.write(trickle(), ignore)
        cpu = (time.process_time() - before) * 1e3 / count
    if receipt.published != rows * count:
        raise click.ClickException(f"{receipt.published} of {rows * count} changes were published")
    decoded = [(end - begin) * 1e3 for begin, end in times[_WARM_UP:]]
    gone = [(sent[bisect(sent, end)] - end) * 1e3 for _, end in times[_WARM_UP:]]
    return decoded, gone, cpu


@click.command()
@click.option("--rows", default=100, show_default=True, help="Of a page.")
@click.option("--every", default=10.0, show_default=True, help="Milliseconds between two pages.")
@click.option("--pages", default=1000, show_default=True)
def main(rows: int, every: float, pages: int) -> None:
    """Milliseconds of a page's way through the sink's process."""
    decoded, gone, cpu = measure(rows, every / 1000, pages + _WARM_UP)
    table = Table(title=f"a page of {rows} rows every {every:g} ms; native library {describe()}")
    for head in ("milliseconds", *(f"p{share}" for share in _SHARES)):
        table.add_column(head, justify="left" if head == "milliseconds" else "right")
    for name, values in (("page to changes", decoded), ("changes to the kernel", gone)):
        table.add_row(name, *(f"{value:.2f}" for value in np.percentile(values, _SHARES)))
    console = Console()
    console.print(table)
    console.print(f"CPU of both, ms a page: {cpu:.2f}")


if __name__ == "__main__":
    main()
