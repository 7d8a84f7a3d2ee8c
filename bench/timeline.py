"""Reading and writing over time: the wal sender's `sent_lsn` and the stream's message count.

`stood_still` is pure; `Timeline` takes its samples. Both connections stay open, so a sample costs
one query and one request.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Self

import psycopg

from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings

EVERY = 0.1  # seconds between two samples

_SENT = """
SELECT sent_lsn - '0/0'::pg_lsn FROM pg_stat_replication JOIN pg_replication_slots
ON active_pid = pid WHERE slot_name = %s
"""


class Sample(NamedTuple):
    """`at` is seconds of a monotonic clock, `sent` the LSN up to which the wal sender has sent, in
    bytes, and `stored` the number of messages in the stream."""

    at: float
    sent: int
    stored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """Shares of the time from the first stored message to the last.

    `reading` did not move though changes were left in the log; `writing` did not move though less
    was stored than was sent. `either` counts the time of both once, `neither` the time in which
    nothing moved at all.
    """

    seconds: float
    reading: float
    writing: float
    either: float
    neither: float


def stood_still(samples: Sequence[Sample], *, begin: int, end: int) -> Standstill:
    """What `samples` of a drain say; the backlog is in the log from LSN `begin` to `end`.

    Whether less is stored than was sent is judged by the share of the log's bytes and the share of
    the messages: the backlog's rows must be alike.
    """
    total = samples[-1].stored if samples else 0
    whole = reading = writing = either = neither = 0.0
    for before, after in pairwise(samples):
        if not before.stored or before.stored == total:
            continue
        seconds = after.at - before.at
        sent = (min(before.sent, end) - begin) / (end - begin)
        waits_reading = after.sent == before.sent < end
        waits_writing = after.stored == before.stored and before.stored / total < sent
        whole += seconds
        reading += seconds * waits_reading
        writing += seconds * waits_writing
        either += seconds * (waits_reading or waits_writing)
        neither += seconds * (waits_reading and waits_writing)
    return Standstill(
        seconds=whole,
        reading=reading / whole if whole else 0.0,
        writing=writing / whole if whole else 0.0,
        either=either / whole if whole else 0.0,
        neither=neither / whole if whole else 0.0,
    )


def relative(samples: Sequence[Sample], begin: int) -> Sequence[Sample]:
    """The same from 0 s on, with bytes counted from the LSN `begin`."""
    return [Sample(one.at - samples[0].at, one.sent - begin, one.stored) for one in samples]


class Timeline:
    """Takes a sample every `EVERY` seconds in a thread, while entered."""

    def __init__(self, *, pg_url: str, slot: str, nats_url: str, stream: str) -> None:
        self.samples: list[Sample] = []
        self._pg_url, self._nats_url = pg_url, nats_url
        self._slot, self._stream = slot, stream
        self._stop = threading.Event()
        self._sampling: Future[None] | None = None

    def __enter__(self) -> Self:
        pool = ThreadPoolExecutor(1)
        self._sampling = pool.submit(self._run)
        pool.shutdown(wait=False)
        return self

    def __exit__(self, *_: object) -> None:
        """Takes a last sample; raises what sampling failed with."""
        self._stop.set()
        if self._sampling is not None:
            self._sampling.result()

    def _run(self) -> None:
        connection = Connection(NatsSettings(url=self._nats_url))
        with closing(connection), psycopg.connect(self._pg_url, autocommit=True) as database:
            connection.open()
            going = True
            while going:
                going = not self._stop.wait(EVERY - time.monotonic() % EVERY)
                self._sample(database, JetStream(connection))

    def _sample(self, database: psycopg.Connection, stream: JetStream) -> None:
        row = database.execute(_SENT, (self._slot,)).fetchone()
        info = stream.stream(self._stream)
        if row is not None and row[0] is not None:
            stored = int(info["state"]["messages"]) if info else 0
            self.samples.append(Sample(time.monotonic(), int(row[0]), stored))
