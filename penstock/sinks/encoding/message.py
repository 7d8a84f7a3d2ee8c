"""Messages: changes of one origin, encoded, with the headers that say which they are.

The headers are `Nats-Msg-Id` (the event id; the server drops a repeated one inside its duplicate
window), `Penstock-Position` (`BACKEND PARTITION CURSOR:ORDINAL`, the first two escaped as in
subjects: what a restarted sink reads back), `Penstock-Schema` and `Content-Type`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import Malformed, Rejected
from penstock.position import PartitionId, Place
from penstock.sinks.encoding.columns import Column, Columns
from penstock.sinks.encoding.pieces import Piece, PlacePiece, RawPiece
from penstock.sinks.encoding.weave import LineBreak, Weave
from penstock.sinks.subject import escape, unescape

__all__ = [
    "COUNT", "EVENT_ID", "MSG_ID", "POSITION", "REPLAYED", "SCHEMA", "Headers", "Messages",
    "Origin", "read_position",
]  # fmt: skip

MSG_ID = "Nats-Msg-Id"
EVENT_ID = "Penstock-Event-Id"  # instead of Nats-Msg-Id where the server shall not look at it
POSITION = "Penstock-Position"
SCHEMA = "Penstock-Schema"
COUNT = "Penstock-Count"
REPLAYED = "Penstock-Replayed"  # on what an operator published later: the change's own place
_VERSION = b"NATS/1.0\r\n"

Sizes = np.ndarray[Any, np.dtype[np.int64]]


class Origin(NamedTuple):
    """Whose places these are: cursors compare inside one partition of one backend."""

    backend: str
    partition: PartitionId


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Encoded changes of one origin, in the order in which they are to be stored. Columns of the
    same length.

    `cursors` and `ordinals` are the place of a message's (last) change, `ids` its event id.
    `headers` begin with
    `NATS/1.0` and lack the empty line at the end, so that a publisher can add its own; `sizes` are
    bytes of headers and body. Where a message may have several changes, `counts` says how many,
    and `ends` behind which messages everything up to their place has been said: only there may
    what is stored end. Without them each message is one change, and is such an end. `ends_at` are
    the first and the last place, where they are known already.
    """

    origin: Origin
    cursors: Column
    ordinals: Column
    ids: Column
    subjects: Column
    headers: Column
    bodies: Column
    sizes: Sizes
    counts: Sizes | None = None
    ends: "np.ndarray[Any, np.dtype[np.bool_]] | None" = None
    ends_at: tuple[Place, Place] | None = None

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def weight(self) -> int:
        """Bytes of all headers and bodies."""
        return int(np.add.reduce(self.sizes))

    @property
    def changes(self) -> int:
        """How many changes are in the messages."""
        return len(self) if self.counts is None else int(self.counts.sum())

    def place(self, index: int) -> Place:
        """The place of one message's (last) change; negative counts from the end."""
        if self.ends_at is not None and index in (0, -1):
            return self.ends_at[index]
        index %= len(self)
        return Place(self.cursors[index].as_py(), self.ordinals[index].as_py())

    def slice(self, start: int, stop: int) -> "Messages":
        """Messages `start` to before `stop`, with no copy."""
        if start == 0 and stop == len(self):
            return self
        rows = start, stop - start
        return Messages(
            self.origin,
            self.cursors.slice(*rows),
            self.ordinals.slice(*rows),
            self.ids.slice(*rows),
            self.subjects.slice(*rows),
            self.headers.slice(*rows),
            self.bodies.slice(*rows),
            self.sizes[start:stop],
            None if self.counts is None else self.counts[start:stop],
            None if self.ends is None else self.ends[start:stop],
        )

    def after(self, place: Place) -> "Messages":
        """Those behind `place`."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.place(middle) <= place else (low, middle)
        return self.slice(low, len(self)) if low else self

    def whole(self, count: int) -> int:
        """The largest number of first messages, up to `count`, behind which what is stored may
        end; 0 when there is none."""
        if self.ends is None or not count:
            return count
        ends = np.flatnonzero(self.ends[:count])
        return int(ends[-1]) + 1 if ends.size else 0

    def least(self) -> int:
        """The smallest number of first messages behind which what is stored may end."""
        return 1 if self.ends is None else int(self.ends.argmax()) + 1


class Headers:
    """Weaves headers from the columns `event_id`, `cursor` and `ordinal`, and `count` if any."""

    def __init__(self, *, ids: bool, version: bytes, content_type: bytes, counted: bool) -> None:
        self._id = f"{MSG_ID if ids else EVENT_ID}: ".encode()
        self._rest = b"\r\n%b: %b\r\nContent-Type: %b\r\n" % (
            SCHEMA.encode(),
            version,
            content_type,
        )
        self._counted = counted
        self._weaves: dict[Origin, Weave] = {}

    def of(self, origin: Origin, columns: Columns) -> Column:
        """The headers of all rows. Raises Rejected."""
        weave = self._weaves.get(origin) or self._weave(origin)
        try:
            return weave.run(columns)
        except LineBreak:
            raise Rejected(
                f"{origin.partition} has a cursor or event id with a line break",
                hint="no feed of penstock makes one: look at the transform",
            ) from None

    def _weave(self, origin: Origin) -> Weave:
        whose = f"\r\n{POSITION}: {escape(origin.backend)} {escape(origin.partition)} ".encode()
        place = PlacePiece("cursor", "ordinal", "line")
        pieces: list[Piece | bytes] = [
            _VERSION + self._id,
            RawPiece("event_id", "line"),
            whose,
            place,
        ]
        if self._counted:
            names = ("event_id", "cursor", "ordinal", "count")
            count = f"\r\n{COUNT}: ".encode()
            weave = Weave([*pieces, count, RawPiece("count"), self._rest], names, batch=False)
        else:
            weave = Weave([*pieces, self._rest])
        self._weaves[origin] = weave
        return weave


_POSITION = re.compile(r"(\S+) (\S+) (.+)")


def read_position(headers: Mapping[str, str]) -> tuple[Origin, Place] | None:
    """What `Penstock-Position` says; None when the message is not one of ours."""
    match = _POSITION.fullmatch(headers.get(POSITION, ""))
    if match is None:
        return None
    try:
        place = Place.parse(match[3])
    except Malformed:
        return None
    return Origin(unescape(match[1]), PartitionId(unescape(match[2]))), place
