"""No change leaves anything to the garbage collector: while an epoch runs, a worker's is off."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from tests.servers import Nats
from tests.work.scenarios import changes, decoding, framing

BATCHES = 20


@contextmanager
def collected() -> Iterator[list[int]]:
    """How many objects only the collector could free that were made inside."""
    found: list[int] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        found.append(gc.collect())
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("make", [framing, decoding])
def test_a_page_leaves_no_garbage(make: Callable[[int], Callable[[], object]]) -> None:
    """What it leaves it leaves each time; a thread of another test may leave something once."""
    job = make(100)
    job()
    found = []
    for _ in range(3):
        with collected() as left:
            for _ in range(10):
                job()
        found += left
    assert min(found) == 0, found


@pytest.mark.parametrize(
    ("messages", "delivery"), [("change", "exactly-once"), ("batch", "deduplicated")]
)
def test_a_batch_that_is_written_leaves_no_garbage(
    nats: Nats, stream: str, messages: str, delivery: str
) -> None:
    """A write leaves a little; a batch of it nothing."""
    settings = {"stream": stream, "subject": f"{stream}.{{collection}}"}
    sink = JetStreamSink(
        JetStreamSettings.model_validate(
            {"url": nats.url, "messages": messages, "delivery": delivery, **settings}
        )
    )
    sink.prepare()
    batches = iter([changes(100, transaction=number) for number in range(5 * BATCHES)])

    def garbage(count: int) -> int:
        def some() -> Iterator[pa.RecordBatch]:
            for _ in range(count):
                yield next(batches)

        with collected() as found:
            sink.write(some(), ignore)
        return found[0]

    garbage(BATCHES)
    assert garbage(3 * BATCHES) - garbage(BATCHES) < BATCHES
