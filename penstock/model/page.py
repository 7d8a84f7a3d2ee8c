"""A page: what following a partition returns, untouched, and cheap to hold and to ship."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from penstock.model.position import PartitionId, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Raw bytes of a source, with what is known of them without decoding.

    `first` and `last` are the places of the first and last change inside, `count` the number of
    changes. `context` is what the decoder must know besides the payload (relations in force, the
    transaction that the page starts in); its format is the feed's own. `captured_at` is when we
    read it, in microseconds since 1970 UTC. A page is never empty, and never mixes partitions.
    """

    partition: PartitionId
    first: Place
    last: Place
    count: int
    captured_at: int
    context: bytes
    payload: bytes

    @property
    def size(self) -> int:
        """Bytes that holding or shipping this page costs."""
        return len(self.payload) + len(self.context)


class Decoder(Protocol):
    """Page -> changes. Pure: no socket, no clock, CPU only; runs where the CPU is.

    The same page always gives the same batch. Raises Malformed if the page breaks its protocol.
    `unknown_types` collects the names of source types that are delivered as their text because
    nobody taught the decoder better; whoever runs it logs each of them once.
    """

    unknown_types: set[str]

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """The page's changes in order, as batches of `change.schema(...)`, `page.count` rows or
        fewer (a feed's own filter may drop some; ordinals are counted before it)."""


class DecoderAround:
    """What a decoder around another one keeps of it."""

    def __init__(self, decoder: Decoder) -> None:
        self.unknown_types = decoder.unknown_types  # the same set, which only grows
        self.decoder = decoder

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.decoder,)
