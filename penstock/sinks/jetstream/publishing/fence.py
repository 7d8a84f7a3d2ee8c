"""The fence: what a batch expects of the stream, so that it is refused after anybody else's write.

While the stream has one writer, a batch expects the stream's last sequence, which is known before
the batch before it is stored: batches follow each other (`whole`). When another writer was seen, a
batch expects the last sequence of each of its shards, and goes alone.

A batch that follows another one may be accepted although that one was refused, if others stored
just as many messages in between. So it also expects that the shard in which the one before it ended
is there. Only a stream that can have no other shards does without (`sole`). A replicated stream
refuses such a batch while the one before it is in process (nats-server 2.15.1).
"""

from collections.abc import Iterator

from penstock.sinks.jetstream.publishing.flight import FlightBatch
from penstock.sinks.jetstream.publishing.places import StreamState
from penstock.sinks.messages.message import Messages
from penstock.sinks.rows.part import Origin
from penstock.sinks.subject import Template

_STREAM = b"Nats-Expected-Last-Sequence: %d\r\n"
_SHARD = (
    b"Nats-Expected-Last-Subject-Sequence: %d\r\n"
    b"Nats-Expected-Last-Subject-Sequence-Subject: %b\r\n"
)


class Fence:
    """What the next batch expects. `sole`: the stream takes only messages of one shard."""

    def __init__(self, template: Template, *, sole: bool, replicated: bool, whole: bool) -> None:
        self._template, self._sole = template, sole
        self.whole = whole  # whether the stream's sequence is expected, not the shards'
        self._orderly = sole or not replicated
        self.sequence = 0  # the stream's last, once all in flight is stored
        self.last_id: str | None = None  # of the message there, if it is known
        self._anchor: tuple[Origin, int] | None = None  # a shard and its last sequence by then
        self._shards: dict[Origin, int] = {}

    @property
    def pipelined(self) -> bool:
        """Whether a batch may follow one that is in flight."""
        return self.whole and self._orderly

    def read(self, state: StreamState) -> None:
        """What is stored was read back, and nothing is in flight."""
        self.sequence, self.last_id = state.sequence, None
        self._anchor = next(
            ((origin, shard.sequence) for origin, shard in state.shards.items()), None
        )
        self.learned(state)

    def learned(self, state: StreamState) -> None:
        """More shards were read."""
        self._shards.update((origin, one.sequence) for origin, one in state.shards.items())

    def sent(self, batch: FlightBatch, last_id: str | None) -> None:
        """A batch that expects what this says is in flight."""
        self.sequence += batch.messages
        self.last_id = last_id
        self._anchor = batch.end[0], self.sequence

    def stored(self, batch: FlightBatch, sequence: int) -> None:
        """The last message of the batch has this sequence."""
        if self.whole:
            return
        start = sequence - batch.messages + 1
        for piece in batch.pieces:
            for run in piece.runs:
                self._shards[run.origin] = start + run.stop - 1
            start += len(piece)

    def first(self) -> bytes:
        """The header lines of the first message, where the stream's sequence is expected."""
        stream = _STREAM % self.sequence
        return stream if self._sole or self._anchor is None else stream + self._line(*self._anchor)

    def lines(self, pieces: list[Messages]) -> Iterator[tuple[int, bytes]]:
        """(number of a message in the batch, its header lines), where the shards' sequences are
        expected: of the first message of each shard."""
        seen: set[Origin] = set()
        start = 0
        for piece in pieces:
            for run in piece.runs:
                if run.origin not in seen:
                    seen.add(run.origin)
                    yield start + run.start, self._line(run.origin, self._shards[run.origin])
            start += len(piece)

    def _line(self, origin: Origin, sequence: int) -> bytes:
        return _SHARD % (sequence, self._template.shard(*origin).encode())
