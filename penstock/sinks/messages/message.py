"""Messages: encoded changes, with the headers that say which they are.

The headers are the event id (under the name that the sink's `Framing` has for it),
`Penstock-Position` (`BACKEND PARTITION CURSOR:ORDINAL`, the first two escaped as in subjects: what
a restarted sink reads back), `Penstock-Mark` (of a change that has a mark: with the position a
bookmark), `Penstock-Table-Schema` (the version of the table's schema, where the source announces
schemas), `traceparent` (see `traces`), `Penstock-Schema` (the version of the body's format) and
`Content-Type`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow.compute as pc

from penstock.model.errors import Malformed, Rejected
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.nats.subjects import escape, unescape
from penstock.sinks.messages.formatter import Formatter, Texts
from penstock.sinks.messages.pieces import Header, Pick, Piece, PlacePiece, RawPiece
from penstock.sinks.messages.plain import LineBreak
from penstock.sinks.rows.columns import Column, Columns, Numbers, Values, sizes_of
from penstock.sinks.rows.part import Origin, OriginRun, unstored

EVENT_ID = "Penstock-Event-Id"
POSITION = "Penstock-Position"
MARK = "Penstock-Mark"
SCHEMA = "Penstock-Schema"
COUNT = "Penstock-Count"
REPLAYED = "Penstock-Replayed"  # on what an operator published later: the change's own place
_CACHED = 10_000  # origins whose names are kept

Sizes = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """What a sink's system asks of messages. `start`: bytes before the first header. `event_id`:
    the header with the event id. `limit`: bytes that headers and body may have together, and
    `remedy`, what to do about a change that needs more."""

    start: bytes = b""
    event_id: str = EVENT_ID
    limit: int
    remedy: str = "leave the large column out"


class MessageKeys(Protocol):
    """What says which changes messages are of, column by column; a `Part` does."""

    @property
    def cursors(self) -> Column: ...

    @property
    def ordinals(self) -> Column: ...

    @property
    def ids(self) -> Column: ...

    @property
    def last_id(self) -> str:
        """The last one's."""

    @property
    def written_ids(self) -> Any:
        """As a formatter takes them."""


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """`MessageKeys` of their own."""

    cursors: Column
    ordinals: Column
    ids: Column

    @property
    def last_id(self) -> str:
        found: str = self.ids[len(self.ids) - 1].as_py()
        return found

    @property
    def written_ids(self) -> Column:
        return self.ids


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Encoded changes of one or more origins, in the order in which they are to be stored. Columns
    of the same length.

    `runs` are the origins of the messages, without a gap; `keys` have the place of a message's
    (last) change and its event id. `texts` are subjects, headers and bodies: headers begin as the
    sink's `Framing` says, and lack the empty line at the end, so that a publisher can add its own.
    `weight` is the bytes of headers and bodies. Where a message may have several changes, `counts`
    are their numbers, and `ends` is true for a message after which no earlier change is missing:
    stored messages may end only there. Without them each message is one change, and such an end.
    """

    runs: tuple[OriginRun, ...]
    keys: MessageKeys
    texts: Texts
    weight: int
    counts: Sizes | None = None
    ends: "np.ndarray[Any, np.dtype[np.bool_]] | None" = None

    def __len__(self) -> int:
        return self.texts.rows

    @property
    def subjects(self) -> Column:
        return self.texts.columns[0]

    @property
    def headers(self) -> Column:
        return self.texts.columns[1]

    @property
    def bodies(self) -> Column:
        return self.texts.columns[2]

    @property
    def sizes(self) -> Sizes:
        """Bytes of headers and body."""
        return sizes_of(self.headers) + sizes_of(self.bodies)

    @property
    def changes(self) -> int:
        return len(self) if self.counts is None else int(self.counts.sum())

    def place(self, index: int) -> Place:
        """The place of one message's (last) change."""
        return Place(self.keys.cursors[index].as_py(), self.keys.ordinals[index].as_py())

    def slice(self, start: int, stop: int) -> "Messages":
        """Messages `start` to before `stop`, with no copy."""
        if start == 0 and stop == len(self):
            return self
        rows = slice(start, stop)
        return self._some(
            self._runs(start, stop), rows, lambda column: column.slice(start, stop - start)
        )

    def _some(
        self, runs: Iterable[OriginRun], rows: Any, take: Callable[[Column], Column]
    ) -> "Messages":
        """Some of the messages, which have these runs; `take` takes their `rows` of a column."""
        keys = self.keys
        return Messages(
            tuple(runs),
            KeyColumns(*map(take, (keys.cursors, keys.ordinals, keys.ids))),
            Texts.of(*map(take, self.texts.columns)),
            int(self.sizes[rows].sum()),
            *(None if each is None else each[rows] for each in (self.counts, self.ends)),
        )

    def _runs(self, start: int, stop: int) -> Iterator[OriginRun]:
        for run in self.runs:
            low, high = max(run.start, start), min(run.stop, stop)
            if low < high:
                first = run.first if low == run.start else self.place(low)
                last = run.last if high == run.stop else self.place(high - 1)
                yield OriginRun(run.origin, low - start, high - start, first, last)

    def after(self, stored: Mapping[Origin, Place | None]) -> "Messages":
        """Those after the stored places of their origins."""
        if not (spans := unstored(self.runs, stored, self.place)):
            return self.slice(0, 0)
        left = self.slice(*spans[0]) if len(spans) == 1 else self._take(spans)
        if left is self or left.ends is None:
            return left
        # What was dropped is stored: nothing is missing up to the last message.
        ends = left.ends.copy()
        ends[-1] = True
        return replace(left, ends=ends)

    def _take(self, spans: Sequence[tuple[int, int]]) -> "Messages":
        rows = np.concatenate([np.arange(*span) for span in spans])
        runs: list[OriginRun] = []
        for span in spans:
            at = runs[-1].stop if runs else 0
            found = self._runs(*span)
            runs += [run._replace(start=run.start + at, stop=run.stop + at) for run in found]
        return self._some(runs, rows, lambda column: column.take(rows))

    def whole(self, count: int) -> int:
        """The most first messages, up to `count`, after which what is stored may end; or 0."""
        if self.ends is None or not count:
            return count
        ends = np.flatnonzero(self.ends[:count])
        return int(ends[-1]) + 1 if ends.size else 0

    @property
    def spread(self) -> int:
        """How many different subjects the messages have."""
        return int(pc.count_distinct(self.subjects).as_py())

    def longest(self) -> int:
        """The largest number of messages that must be stored together, or not at all."""
        if self.ends is None or self.ends.all():
            return min(len(self), 1)
        return int(np.diff(np.flatnonzero(self.ends), prepend=-1).max())

    def least(self) -> int:
        """The smallest number of first messages after which what is stored may end."""
        return 1 if self.ends is None else int(self.ends.argmax()) + 1


class Headers:
    """Formats headers from columns: `event_id`, `cursor`, `ordinal`, `mark`, and `count` if any."""

    def __init__(
        self, framing: Framing, *, version: bytes, content_type: bytes, counted: bool
    ) -> None:
        self.framing = framing
        self._start = framing.start + f"{framing.event_id}: ".encode()
        schema = SCHEMA.encode()
        self._rest = b"\r\n%b: %b\r\nContent-Type: %b\r\n" % (schema, version, content_type)
        self._counted = counted
        # Most batches have rows of one origin, whose name is a constant then.
        self._formatter = lru_cache(_CACHED)(self._made)

    def of(
        self,
        runs: Sequence[OriginRun],
        columns: Columns,
        schemas: tuple[Numbers, Values] | None,
        traces: Column | None = None,
    ) -> Column:
        """The headers of all rows, which have these origins. `schemas`: which of the lines that
        name a table's schema each row has; `traces`: the line of each row's trace, or null. Raises
        Rejected."""
        origin = runs[0].origin if len(runs) == 1 else None
        extras = {} if origin is not None else self._owners(runs)
        try:
            if schemas is not None:
                extras |= {"schema": schemas[0], "schema_lines": schemas[1]}
            if traces is not None:
                extras["trace_line"] = traces
            formatter = self._formatter(origin, schemas is not None, traces is not None)
            return formatter.run(columns.with_extras(**extras) if extras else columns)
        except LineBreak:
            raise Rejected(
                f"{runs[0].origin.partition} has a cursor, event id or mark with a line break",
                "messages",
                hint="no feed of penstock makes one: look at the transform",
            ) from None

    def _owners(self, runs: Sequence[OriginRun]) -> dict[str, Any]:
        """Which origin each row has, and how the position names it."""
        owners = np.repeat(
            np.arange(len(runs), dtype=np.int32), [run.stop - run.start for run in runs]
        )
        return {"owner": owners, "owners": Values([_owner(run.origin) for run in runs])}

    def pieces(
        self, origin: Origin | None, schema: str | None, *, traced: bool
    ) -> list[Piece | bytes]:
        """The headers of rows of one origin; None: of several. `schema`: the column that says
        which of the `schema_lines` a row has."""
        owner = Pick("owner", "owners") if origin is None else _owner(origin)
        pieces: list[Piece | bytes] = [
            self._start,
            RawPiece("event_id", "line"),
            owner,
            PlacePiece("cursor", "ordinal", "line"),
            Header("mark", f"\r\n{MARK}: ".encode()),
        ]
        if schema is not None:
            pieces.append(Pick(schema, "schema_lines"))
        if traced:
            pieces.append(RawPiece("trace_line"))
        if self._counted:
            pieces += [f"\r\n{COUNT}: ".encode(), RawPiece("count")]
        return [*pieces, self._rest]

    def _made(self, origin: Origin | None, named: bool, traced: bool) -> Formatter:
        names: tuple[str, ...] = _OF_GROUPS if self._counted else ()
        names += ("owner", "owners") if origin is None else ()
        names += ("schema", "schema_lines") if named else ()
        names += ("trace_line",) if traced else ()
        pieces = self.pieces(origin, "schema" if named else None, traced=traced)
        return Formatter(pieces, names, batch=not self._counted)


@lru_cache(_CACHED)
def _owner(origin: Origin) -> bytes:
    names = f"{escape(origin.backend)} {escape(origin.partition)}"
    return f"\r\n{POSITION}: {names} ".encode()


# The columns of messages that may have several changes.
_OF_GROUPS = ("event_id", "cursor", "ordinal", "mark", "count")


_POSITION = re.compile(r"(\S+) (\S+) (.+)")


def read_position(headers: Mapping[str, str]) -> tuple[Origin, Place] | None:
    """What `Penstock-Position` says; None when the message is not one of ours."""
    if (match := _POSITION.fullmatch(headers.get(POSITION, ""))) is None:
        return None
    try:
        place = Place.parse(match[3])
    except Malformed:
        return None
    return Origin(unescape(match[1]), PartitionId(unescape(match[2]))), place


def read_bookmark(headers: Mapping[str, str]) -> tuple[Origin, Bookmark] | None:
    """What `Penstock-Position` and `Penstock-Mark` say: a bookmark exactly after the message, with
    an empty mark where its change has none. None when the message is not one of ours."""
    if (position := read_position(headers)) is None:
        return None
    try:
        mark = orjson.loads(headers.get(MARK, "{}"))
    except orjson.JSONDecodeError:
        return None
    return (position[0], Bookmark(position[1], mark)) if isinstance(mark, dict) else None
