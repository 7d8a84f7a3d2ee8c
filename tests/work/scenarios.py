"""The steps that every change goes through, each as a job of so many rows: frame, decode, encode,
send. A page is followed, served, handed over and passed on: there a row is a page.

The rows are those of the benchmark's ten-column table, in transactions of a hundred.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ormsgpack
import pyarrow as pa
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.objectid import ObjectId

from penstock.consumer.mirror.tailing import LiveTables, ReplicaStatus
from penstock.consumer.mirror.target import MirrorTarget
from penstock.consumer.mirror.target_table import TargetColumn, TargetTable
from penstock.feeds.postgres import following as following_module
from penstock.feeds.postgres import transport
from penstock.feeds.postgres.collecting import Collector, KnownRelation, PageLimits
from penstock.feeds.postgres.following import Beginning, PostgresFollowing
from penstock.feeds.postgres.framing import Framer
from penstock.feeds.postgres.history import KnownHistory
from penstock.feeds.postgres.progress import LogProgress
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.feeds.postgres.slot import Slot
from penstock.feeds.postgres.streams import Streams
from penstock.feeds.postgres.watch import SlotMemory
from penstock.microbatch import page_server
from penstock.microbatch.draw import Draw
from penstock.microbatch.epochs import BufferedEpochs, Lengths
from penstock.microbatch.late import Attempt, SideChannel
from penstock.microbatch.open import OpenReading
from penstock.microbatch.page_client import Handed
from penstock.microbatch.task import Measures
from penstock.microbatch.ticket import Request, bounded, messages_of
from penstock.microbatch.ticket import page_of as page_from
from penstock.model.change import Images
from penstock.model.page import Page
from penstock.model.position import PartitionId
from penstock.nats.connection import Connection
from penstock.nats.consumers import Delivered
from penstock.nats.protocol import Msg
from penstock.nats.settings import NatsSettings
from penstock.ops.reporter import Reporter
from penstock.reading.roster import Roster
from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.publishing.atomic import Atomic
from penstock.sinks.jetstream.publishing.flight import FlightBatch
from penstock.sinks.jetstream.session import Session
from penstock.sinks.rows.intake import Order
from penstock.sinks.rows.loop import PublishLatency, Tally
from penstock.sinks.rows.part import Part
from penstock.tables.sqlite_database import SqliteDatabase
from penstock.wire.changestream.decoder import ChangeStreamDecoder
from penstock.wire.eras import EraDecoder
from penstock.wire.pgoutput.context import Context
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from tests.reading.made import Made, feed_of, options_of, positions_of
from tests.wire.changestream.made import event
from tests.wire.changestream.made import page as events_page
from tests.wire.pages import begin, commit, frame, insert, keepalive, page_of, relation

Make = Callable[[int], Callable[[], object]]

# So many that what happens once in a while (a buffer that grows) is small beside them.
ROWS = 2000
_COLUMNS = {
    "id": 20, "name": 25, "note": 25, "quantity": 23, "active": 16, "price": 1700,
    "ratio": 701, "changed": 1184, "detail": 3802, "tags": 1009,
}  # fmt: skip
_TABLE = relation(1, _COLUMNS, key=["id"])
_TRANSACTION = 100


def scenarios() -> Mapping[str, Make]:
    """Those that need no server."""
    return {
        "frame": framing,
        "follow": following,
        "serve": serving,
        "hand over": handing_over,
        "decode": decoding,
        "late": detour,
        "change events": change_events,
        "mirror": mirroring,
    }


def mirroring(rows: int) -> Callable[[], object]:
    """A replica: messages of a change each, as they arrive -> rows of a SQLite table."""
    kinds = {"id": "bigint", "name": "text", "active": "boolean", "detail": "jsonb"}
    table = TargetTable(
        name="t", backend="", schema="public", table="t", target="t", key=("id",), version="v1",
        columns=tuple(TargetColumn(name=name, data_type=kinds[name]) for name in kinds),
        state="live", stream="CDC", relation_id=5,
    )  # fmt: skip
    arrived = [_published(number) for number in range(1, rows + 1)]
    server = NatsSettings.model_validate({"url": "nats://127.0.0.1:1"})

    def job() -> object:
        target = MirrorTarget(SqliteDatabase(":memory:"))
        target.open(["t"])
        target.begin(replace(table, state="loading"))
        target.finish(table)
        live = LiveTables(server, Connection(server), target, dropped="drop")
        live.begin(table)
        live._reader._consumer = Arrived(arrived)  # type: ignore
        while live.tail(0, ReplicaStatus()):
            pass
        assert target.count(table) == rows
        target.close()
        return None

    return job


class Arrived:
    """In place of a `PullConsumer`: all messages at once."""

    pending = 0

    def __init__(self, messages: list[Msg]) -> None:
        self._messages = messages

    def next(self, timeout: float, most: int) -> list[Delivered]:
        messages, self._messages = self._messages, []
        return [Delivered.parse(one, one.reply.partition(b".c.")[2]) for one in messages]


def _published(number: int) -> Msg:
    """One of one change."""
    row = {"id": number, "name": "a name", "active": True, "detail": {"n": number}}
    body = {
        "event_id": f"shop:{number:020}:0", "backend": "shop", "schema": "public",
        "collection": "t", "operation": "UPDATE", "relation_id": 5, "schema_version": "v1",
        "key": {"id": number}, "data": row, "before": None, "unchanged": [],
        "position": f"{number:020}:0", "committed_at": "2026-11-24T14:07:01.507479Z",
    }  # fmt: skip
    lines = (
        "NATS/1.0", f"Nats-Msg-Id: shop:{number:020}:0",
        f"Penstock-Position: shop s {number:020}:0", "Penstock-Table-Schema: v1",
        "Penstock-Schema: 1", "Content-Type: application/msgpack",
    )  # fmt: skip
    reply = b"$JS.ACK.CDC.c.1.%d.%d.1795529221977223504.0" % (number, number)
    headers = "".join(f"{line}\r\n" for line in (*lines, "")).encode()
    return Msg(b"cdc.t.update", reply, headers, ormsgpack.packb(body))


def framing(rows: int) -> Callable[[], object]:
    """The planner: bytes of the replication stream into pages."""
    stream = b"".join(map(frame, _messages(rows)))

    def job() -> object:
        framer = Framer(
            Collector(
                PartitionId("shop"),
                after=None,
                limits=PageLimits(size=1 << 30, rows=1 << 30),
                describe=lambda raw, *_: KnownRelation(raw=raw),
            ),
            progress=LogProgress(),
            streams=Streams(memory=1 << 20),
        )
        framer.feed(stream)
        pages = [*framer.scan(0.0), *framer.flush(0.0)]
        assert sum(page.count for page in pages) == rows
        return pages

    return job


class SlowWire:
    """In place of a transport, on a clock of its own: a transaction every 10 ms, which comes in six
    parts within a millisecond, and a keepalive after it."""

    def __init__(self, transactions: int) -> None:
        self.now = 0.0
        self._coming: deque[tuple[float, bytes]] = deque(
            [(0.0, frame(relation(1, {"id": 20}, key=["id"])))]
        )
        for number in range(transactions):
            lsn, at = 1000 * (number + 1), 0.01 * (number + 1)
            rows = [frame(insert(1, [str(row)])) for row in range(5)]
            parts = [frame(begin(lsn)) + rows[0], *rows[1:], frame(commit(lsn))]
            self._coming += [(at + 0.0002 * part, data) for part, data in enumerate(parts)]
            self._coming.append((at + 0.0011, keepalive(wal_end=lsn + 500)))
        self.looks = self.waits = self.sleeps = 0

    def receive(self) -> bytes:
        self.looks += 1
        found = b""
        while self._coming and self._coming[0][0] <= self.now:
            found += self._coming.popleft()[1]
        return found

    def wait(self, timeout: float) -> bool:
        self.waits += 1
        comes = self._coming[0][0] if self._coming else math.inf
        self.now = min(max(comes, self.now), self.now + timeout)
        return comes <= self.now

    def send(self, message: bytes) -> None:
        pass

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        self.now += seconds

    def monotonic(self) -> float:
        return self.now

    time = monotonic


def following(pages: int) -> Callable[[], object]:
    """The reader process: a small transaction from the socket to its page. How often it wakes up
    and looks at the socket is counted here, too."""
    settings = PostgresSettings(connection="postgresql://host/db")
    slot = Slot(
        name="s", plugin="pgoutput", kind="logical", database="db", active_pid=None, confirmed=0,
        restart=0, wal_status="", two_phase=False, invalidation="", failover=False,
        server_version=160_000, connected_to="db", sender_timeout=60.0, current=0,
    )  # fmt: skip
    start: dict[str, Any] = {"connection": None, "reader": 1, "known": KnownHistory()}
    beginning = Beginning(**start, slot=slot, after=None, lsn=0, allowed=None)

    def job() -> object:
        wire: Any = SlowWire(pages)
        with (
            mock.patch.object(following_module, "start", return_value=wire),
            mock.patch.object(following_module, "time", wire),
            mock.patch.object(transport, "time", wire),
        ):
            one = PostgresFollowing(settings, PartitionId("s"), beginning, SlotMemory())
            one._side = mock.NonCallableMock(turn=_nothing)
            one._framer.collector._describe = lambda raw, *_: KnownRelation(raw=raw)
            count = 0
            while count < pages:
                count += len(one.read(0.25))
        assert wire.waits <= 2 * pages + 5, "wake-ups by the socket"
        assert wire.sleeps <= 4 * pages + 5, "wake-ups by the clock"
        assert wire.looks <= 6 * pages + 5, "looks at the socket"
        return one

    return job


def _nothing(_: float) -> None:
    pass


def serving(pages: int) -> Callable[[], object]:
    """The reader process: a page that the page server draws and sends."""
    page, folder = page_of(_messages(_TRANSACTION)), TemporaryDirectory()
    options = options_of(mode="realtime", runtime=folder.name, query="shop-0")

    class Drawing(Draw):
        left = pages

        def next(self, wait: float) -> tuple[list[Page], bool]:
            self.left -= 1
            return [page], not self.left

    class Sent(list[bytes]):
        is_closed = False

        def send(self, *messages: bytes) -> None:
            self.extend(messages)

    class Serving(OpenReading):
        def draw(self, request: Request) -> Draw:
            return Drawing()

    parts = Made(feed_of())
    epochs = BufferedEpochs(parts.reservoir, Roster(parts.feed), positions_of(), Lengths(options))
    server = Serving(options, epochs, lambda: None, "shop")._server

    still = SimpleNamespace(monotonic=lambda: 0.0)

    def job() -> object:
        line: Any = Sent()
        # Time stands still: the epoch's end is looked for once.
        with mock.patch.object(page_server, "time", still):
            server._send_pages(line, Request(seconds=3600.0, most=3600.0))
        assert len(line) == pages
        return folder

    return job


def handing_over(pages: int) -> Callable[[], object]:
    """From the reader process to a task's sink: what a page costs beside framing and decoding."""
    page, board = page_of(_messages(_TRANSACTION)), Reporter("/nobody/listens")
    batches = _decoder().decode_natively(page)

    def job() -> object:
        handed, measures = Handed(), Measures(board)
        for _ in range(pages):
            head, *more = messages_of(page)
            taken = page_from(head, iter(more).__next__)
            meant = list(bounded(taken, batches, None, None))
            handed.note(taken, meant)
            measures.page(taken, meant)
        assert len(handed._pages[page.partition]) == pages
        return measures

    return job


def decoding(rows: int) -> Callable[[], object]:
    """A task: a page into batches of changes."""
    page = page_of(_messages(rows))
    decoder = _decoder()

    def job() -> object:
        batches = decoder.decode_natively(page)
        assert sum(map(len, batches)) == rows
        return batches

    return job


def change_events(rows: int) -> Callable[[], object]:
    """A task: a page of MongoDB's change events into batches of changes."""
    page = events_page(*(inserted(number) for number in range(rows)))
    decoder = ChangeStreamDecoder(backend="default", images="msgpack")

    def job() -> object:
        batches = decoder.decode(page)
        assert sum(map(len, batches)) == rows
        return batches

    return job


def inserted(number: int) -> dict[str, Any]:
    """A change event with a document of about 1 KB."""
    items = [{"sku": f"sku-{n}", "price": 12.5 * n, "count": n} for n in range(5)]
    document = {
        "_id": ObjectId(number.to_bytes(12, "big")), "name": f"name {number}", "number": number,
        "big": Int64(2**40 + number), "price": number / 4, "active": number % 2 == 0,
        "tags": ["a", "b"], "nested": {"a": 1, "b": None}, "items": items,
        "created": DatetimeMS(1_790_000_000_000 + number), "note": "a usual note " * 32,
    }  # fmt: skip
    return event(number, documentKey={"_id": document["_id"]}, fullDocument=document)


def detour(rows: int) -> Callable[[], object]:
    """With a transform: around the JVM, by a file, for the half of the rows that it keeps."""
    folder = TemporaryDirectory()
    batch = changes(rows)
    late = set(batch.schema.names) - {"collection"}
    attempt = Attempt(stage=1, number=7, is_first=True)
    half = pa.array([row % 2 == 0 for row in range(rows)])

    def job() -> object:
        source, sink = (SideChannel(Path(folder.name), late, attempt) for _ in range(2))
        (stub,) = source.write([batch])
        kept = [*sink.join(stub.filter(half)), *sink.remaining()]
        assert sum(map(len, kept)) == rows // 2
        sink.clear()
        return kept

    return job


def encoding(url: str, *, images: Images = "msgpack", **settings: object) -> Make:
    """A task: a batch of changes into MessagePack messages; with JSON images as it comes out of a
    transform. Needs a server, which says what it takes."""
    session = _session(url, **settings)

    def make(rows: int) -> Callable[[], object]:
        part = Part.of(changes(rows, images=images))
        return lambda: session.poison.writer.encoder.encode(part)

    return make


def sending(url: str) -> Make:
    """The writer, around `encoding`: a batch as it comes, into chains for the socket; unsent."""
    session = _session(url)
    connection: Any = session.connection

    def make(rows: int) -> Callable[[], object]:
        batch = changes(rows)

        def job() -> object:
            atomic = Atomic(Tally(), session.flow, stream="WORK", template=session.template)
            sent = []
            for part in Order().arrange(batch):
                atomic.add(session.poison.writer.encoder.encode(part))
                chain = FlightBatch(1, atomic._queue.take(1000, 1 << 22), chain=True)
                sent.append(atomic._encode(connection, chain))
            assert len(sent) == rows // 1000
            return sent

        return job

    return make


def paging(url: str) -> Make:
    """A task: a small page as it comes, into a chain for the socket; unsent."""
    session = _session(url)
    connection: Any = session.connection

    def make(count: int) -> Callable[[], object]:
        context = Context(relations=(_TABLE,))  # as of nearly all pages
        _, head, *rows, end = _messages(_TRANSACTION)
        decoder, page = _decoder(), page_of([head, *rows[:3], end], context=context)

        def job() -> object:
            atomic = Atomic(Tally(), session.flow, stream="WORK", template=session.template)
            measured = PublishLatency([])
            for _ in range(count):
                for batch in decoder.decode_natively(page):
                    for part in Order().arrange(batch):
                        atomic.add(session.poison.writer.encoder.encode(part))
                        chain = FlightBatch(1, atomic._queue.take(1000, 1 << 22), chain=True)
                        assert atomic._encode(connection, chain)
                        measured.sent(part.changes)
            return measured

        return job

    return make


def changes(rows: int, *, transaction: int = 0, images: Images = "msgpack") -> pa.RecordBatch:
    """So many changes as one batch; those of a later transaction come behind."""
    page: Page = page_of(_messages(rows, first=1000 + transaction * rows))
    decoded = _decoder(images).decode(page)
    return pa.Table.from_batches(decoded).combine_chunks().to_batches()[0]


def _session(url: str, **settings: object) -> Session:
    chosen = {"url": url, "stream": "WORK", "subject": "work.{collection}", **settings}
    session = Session(JetStreamSettings.model_validate(chosen))
    session.open()
    return session


def _decoder(images: Images = "msgpack") -> EraDecoder:
    """As a feed makes it."""
    settings = DecoderSettings(backend="default", database="shop", images=images)
    return EraDecoder(PgoutputDecoder(settings))


def _messages(rows: int, *, first: int = 1000) -> list[bytes]:
    messages = [_TABLE]
    for start in range(0, rows, _TRANSACTION):
        lsn = first + start
        messages.append(begin(lsn))
        messages += [insert(1, _row(number)) for number in range(start, start + _TRANSACTION)]
        messages.append(commit(lsn))
    return messages


def _row(number: int) -> list[object]:
    return [
        1_000_000 + number, f"customer {number:06}", "a note of ordinary length", number % 10,
        "tf"[number % 2], f"{number % 10}.5000", "0.25", "2026-11-21 10:41:34.123456+00",
        '{"n": 1, "source": "bench"}', "{red,green,blue}",
    ]  # fmt: skip
