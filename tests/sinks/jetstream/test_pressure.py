"""Flow control on real servers: slow ones, dead ones, and what is said of them."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import psutil
import pyarrow as pa
import pytest

from penstock.model.errors import Unavailable
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from tests.progress import Noted
from tests.servers import Nats, free_port
from tests.sinks.changes import batch_of, frozen, ids_in, ids_of, read
from tests.sinks.jetstream.raw import publishing
from tests.waiting import until

pytestmark = pytest.mark.live


class Writing:
    """A write in a thread that goes on until it is told to end."""

    def __init__(self, sink: JetStreamSink, batch_of: Any, size: int = 100) -> None:
        self.told = Noted()
        self.batches: list[pa.RecordBatch] = []
        self.receipt: Any = None
        self.error: BaseException | None = None
        self._sink, self._batch_of, self._size = sink, batch_of, size
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _changes(self) -> Iterator[pa.RecordBatch]:
        while not self._end.wait(0.002):
            batch = self._batch_of(self._size, len(self.batches) + 1)
            self.batches.append(batch)
            yield batch

    def _run(self) -> None:
        try:
            self.receipt = self._sink.write(self._changes(), self.told)
        except BaseException as error:
            self.error = error

    def said(self, machine: str) -> list[str]:
        return [note[machine] for note in list(self.told) if f"{machine}_transitions" in note]

    def finish(self) -> Any:
        self._end.set()
        self._thread.join(60)
        assert self.error is None, self.error
        assert self.receipt is not None, self.told[-5:]
        return self.receipt


@pytest.fixture
def writing(sink_of: Any) -> Iterator[Callable[..., Writing]]:
    started: list[Writing] = []

    def make(url: str, *, size: int = 100, **settings: Any) -> Writing:
        sink = sink_of(url, **{"timeout": "2s", **settings})
        one = Writing(sink, batch_of, size)
        started.append(one)
        until(lambda: one.told)
        return one

    yield make
    for one in started:
        one._end.set()


@pytest.mark.parametrize("delivery", ["exactly-once", "deduplicated", "at-least-once"])
def test_a_healthy_server_is_never_under_pressure(delivery: str, sink_of: Any) -> None:
    # A busy machine is no slow server.
    pressure = {"slow_threshold": "10s", "critical_threshold": "20s"}
    sink = sink_of(delivery=delivery, pressure=pressure)
    told = Noted()
    receipt = sink.write([batch_of(1000, n) for n in range(1, 61)], told)
    assert receipt.published == 60_000
    tables = [table for note in told for table in note.get("tables", ())]
    assert sum(table["applied"].total() for table in tables) == 60_000
    assert not [note for note in told if "pressure_transitions" in note]
    assert (receipt.numbers["pressure"], receipt.numbers["breaker"]) == ("normal", "closed")
    assert receipt.numbers["answer_ms"] >= 0


@pytest.mark.fault
def test_a_server_that_stutters_is_given_rest_and_gets_everything(
    delivery: str, own_nats: Any, writing: Any, stream: str
) -> None:
    """It answers only between freezes of 0.7 s: slow, or worse; and normal afterwards. A batch
    is more than it can store between two of them, however late we are to freeze it again."""
    server: Nats = own_nats()
    pressure = {"pause": "100ms", "slow_threshold": "500ms", "critical_threshold": "2s"}
    write = writing(server.url, delivery=delivery, size=1000, timeout="20s", pressure=pressure)
    deadline = time.monotonic() + 90
    while not write.said("pressure"):
        assert time.monotonic() < deadline
        with frozen(server.pid):
            time.sleep(0.7)
        time.sleep(0.0005)
    until(lambda: write.said("pressure")[-1] == "normal")
    receipt = write.finish()
    assert receipt.numbers["pressure"] == "normal"
    assert ids_in(server.url, stream) == ids_of(*write.batches)


@pytest.mark.fault
@pytest.mark.parametrize("messages", ["change", "batch"])
def test_what_a_pause_kept_back_goes_when_it_is_over_and_not_with_the_next_change(
    delivery: str, messages: str, own_nats: Any, stream: str, sink_of: Any
) -> None:
    """The source has no more for now: what waited for more during a slow answer is all."""
    server: Nats = own_nats()
    batches = [batch_of(100, number) for number in range(1, 5)]
    told = Noted()

    def stored() -> bool:
        # Not the last note only: it may say something else by the time that this looks.
        return any(note.get("published", 0) >= 400 for note in list(told))

    def changes() -> Iterator[pa.RecordBatch]:
        yield batches[0]
        until(lambda: any(note.get("published") == 100 for note in told))
        with frozen(server.pid):
            yield from batches[1:]
            until(lambda: any(note.get("pressure") == "critical" for note in told))
        until(stored)

    sink = sink_of(server.url, delivery=delivery, messages=messages, timeout="60s",
            pressure={"pause": "3s"},)  # fmt: skip
    assert sink.write(changes(), told).published == 400
    if messages == "change":
        assert ids_in(server.url, stream) == ids_of(*batches)


@pytest.mark.fault
def test_a_server_that_hangs_is_critical_before_it_counts_as_gone(
    delivery: str, own_nats: Any, writing: Any, stream: str
) -> None:
    server: Nats = own_nats()
    write = writing(server.url, delivery=delivery, timeout="20s", pressure={"pause": "100ms"})
    until(lambda: len(write.batches) > 30)
    with frozen(server.pid):
        until(lambda: "critical" in write.said("pressure"))
    assert any("hardly answers" in note.get("pressure_reason", "") for note in write.told)
    until(lambda: write.said("pressure")[-1] == "normal")
    write.finish()
    assert not write.told.outages
    assert ids_in(server.url, stream) == ids_of(*write.batches)


@pytest.mark.fault
@pytest.mark.parametrize("connected", [True, False])
def test_a_server_that_hangs_before_anything_is_sent_is_critical_too(
    connected: bool, own_nats: Any, sink_of: Any
) -> None:
    """A write begins with a request (what was stored of suspended tables), or with a connection,
    which the kernel accepts while the server says nothing."""
    server: Nats = own_nats()
    sink = sink_of(server.url, timeout="20s" if connected else "2s", pressure={"pause": "100ms"})
    if connected:
        sink.write([batch_of(1, 1)], ignore)
    told, receipts = Noted(), list[Any]()
    write = lambda: receipts.append(sink.write([batch_of(1, 2)], told))  # noqa: E731
    thread = threading.Thread(target=write)
    with frozen(server.pid):
        thread.start()
        critical = lambda: any(note.get("pressure") == "critical" for note in list(told))  # noqa: E731
        until(critical, problem=lambda: (receipts, told))
    thread.join(60)
    assert [receipt.published for receipt in receipts] == [1]
    assert not (connected and told.outages)


@pytest.mark.fault
def test_a_breaker_opens_on_a_dead_server_and_the_first_good_probe_closes_it(
    delivery: str, own_nats: Any, writing: Any, stream: str
) -> None:
    """Under load: what is waiting does not pile up, and everything is delivered afterwards."""
    server: Nats = own_nats()
    write = writing(server.url, delivery=delivery, breaker={"threshold": 3, "timeout": "1s"})
    until(lambda: len(write.batches) > 30)
    server.kill()
    until(lambda: "half-open" in write.said("breaker"))
    waiting, memory = len(write.batches), psutil.Process().memory_info().rss
    until(lambda: write.said("breaker").count("half-open") >= 3)
    # Nobody takes more from the source: it keeps its log.
    assert len(write.batches) - waiting <= 6
    assert psutil.Process().memory_info().rss - memory < 50 << 20
    server.start()
    until(lambda: write.said("breaker")[-1] == "closed")
    at = len(write.batches)
    until(lambda: len(write.batches) > at + 5)
    receipt = write.finish()
    said = write.said("breaker")
    assert said[:2] == ["open", "half-open"]
    assert said == ["open", "half-open"] * (len(said) // 2) + ["closed"]
    assert receipt.numbers["breaker"] == "closed"
    assert ids_in(server.url, stream) == ids_of(*write.batches)


@pytest.mark.fault
def test_an_open_breaker_leaves_the_server_alone(sink_of: Any) -> None:
    """A server that hangs up on everybody is called `threshold` times, and then once a timeout."""
    calls: list[float] = []
    listener = socket.create_server(("127.0.0.1", free_port()))

    def hang_up() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            calls.append(time.monotonic())
            client.close()

    threading.Thread(target=hang_up, daemon=True).start()
    url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
    sink = sink_of(url, breaker={"threshold": 3, "timeout": "700ms"})
    told: list[Any] = []

    class Enough(Exception):
        pass

    def notify(note: Any) -> None:
        told.append(note)
        if [one.get("breaker") for one in told].count("half-open") == 3:
            raise Enough

    with pytest.raises(Enough):
        sink.write([batch_of(1)], Noted(notify))
    listener.close()
    assert len(calls) == 5
    gaps = [later - earlier for earlier, later in pairwise(calls[2:])]
    assert min(gaps) >= 0.7


def test_a_probe_is_one_batch(delivery: str, nats: Nats, settings_of: Any, stream: str) -> None:
    settings = settings_of(nats.url, delivery=delivery)
    with publishing(settings) as publisher:
        publisher.probe()  # nothing is queued: nothing to do
    with publishing(settings, batch_of(1000, 1), batch_of(1000, 2)) as publisher:
        publisher.probe()
        assert publisher.flying == 0
        assert len(read(nats.url, stream)) == (1000 if delivery == "exactly-once" else 1)
        publisher.pump(drain=True)
        assert len(read(nats.url, stream)) == 2000


def sizes_of_batches(messages: list[Any]) -> list[int]:
    """The first message of each batch says which sequence it expects."""
    sizes: list[int] = []
    for message in messages:
        if "Nats-Expected-Last-Sequence" in message.headers:
            sizes.append(0)
        sizes[-1] += 1
    return sizes


@pytest.mark.parametrize(
    ("batch", "largest"),
    [({}, 1000), ({"max_size": 200}, 200), ({"max_size": 1000, "max_bytes": "20KiB"}, 60)],
)
def test_limits_of_a_batch_that_are_set_hold_for_a_backlog_too(
    batch: Any, largest: int, nats: Nats, stream: str, sink_of: Any
) -> None:
    sink = sink_of(delivery="exactly-once", batch=batch)
    sink.write([batch_of(1000, n) for n in range(1, 4)], ignore)
    sizes = sizes_of_batches(read(nats.url, stream))
    assert sum(sizes) == 3000
    assert largest // 2 < max(sizes) <= largest


def test_a_change_larger_than_a_batch_may_be_goes_alone(
    nats: Nats, stream: str, sink_of: Any
) -> None:
    sink = sink_of(delivery="exactly-once", batch={"max_bytes": "20KiB"})
    images = ['{"a":"x"}'] * 9
    images[4] = '{"a":"' + "x" * 40_000 + '"}'
    assert sink.write([batch_of(9, after=images)], ignore).published == 9
    assert sizes_of_batches(read(nats.url, stream)) == [4, 1, 4]


def test_a_write_that_was_given_up_while_the_breaker_was_open_leaves_it_open(
    settings_of: Any,
) -> None:
    settings = settings_of(
        f"nats://127.0.0.1:{free_port()}", breaker={"threshold": 1, "timeout": "300ms"}
    )

    class GiveUp(Exception):
        pass

    def notify(note: Any) -> None:
        if note.get("connected") is False:
            raise GiveUp

    for _ in range(2):
        with pytest.raises(GiveUp):
            JetStreamSink(settings).write([batch_of(1)], Noted(notify))
    with pytest.raises(Unavailable):
        JetStreamSink(settings).prepare()
