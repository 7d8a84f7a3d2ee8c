"""Where messages go: the subject of each row, by its kind and its partitions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.nats.subjects import escape
from penstock.sinks.messages.formatter import Formatter
from penstock.sinks.messages.kinds import MessageKind, RowKinds
from penstock.sinks.messages.pieces import Pick, Piece
from penstock.sinks.rows.columns import Column, Columns, Numbers, Values, hashes_of
from penstock.sinks.rows.part import Origin, OriginRun, Part
from penstock.sinks.subject import Template
from penstock.wire.hash_partitions import MOST

# The numbers of all hash partitions, as text.
HASHES = Values([b"%d" % number for number in range(MOST)])


_SMALL = 1 << 17  # values below which a table of all costs less than sorting


class Subjects:
    """The subjects of rows; kinds are those of the template's `segments`."""

    def __init__(self, template: Template) -> None:
        self.parts = [f"subject{n}" for n in range(len(template.segments))]
        self._joints = template.joints
        names: tuple[str, ...] = ("kind", *self.parts)
        self.pieces: list[Piece | bytes] = [Pick("kind", self.parts[0])]
        for joint, part in zip(self._joints, self.parts[1:], strict=True):
            self.pieces += [Pick(*_PICKED[joint]), Pick("kind", part)]
        for joint in dict.fromkeys(self._joints):
            names = (*names, *_PICKED[joint])
        self._formatter = Formatter(self.pieces, names, batch=False)

    def of(self, part: Part, row_kinds: RowKinds) -> Column:
        """The subject of each row. Raises SettingsError."""
        extras: dict[str, Any] = dict(zip(self.parts, row_kinds.set.subjects, strict=True))
        for joint in dict.fromkeys(self._joints):
            if joint == "partition":
                extras |= {"hash": hashes_of(part.batch.column("route")), "hashes": HASHES}
                continue
            extras |= {
                "owner": np.repeat(np.arange(len(part.runs), dtype=np.int32), _lengths(part.runs)),
                "partitions": Values([escape(run.origin.partition).encode() for run in part.runs]),
            }
        return self._formatter.run(Columns(len(part), kind=row_kinds.numbers, **extras))


# By which numbers, of which values.
_PICKED = {"source_partition": ("owner", "partitions"), "partition": ("hash", "hashes")}


class Destinations(NamedTuple):
    """The combinations of a kind, an origin and a hash partition that some rows have: what may
    share a message. `numbers` says which combination each row has; `hashes` are all 0 where
    subjects do not have the hash partition."""

    numbers: Numbers
    kinds: Sequence[MessageKind]
    origins: Sequence[Origin]
    hashes: Sequence[int]
    joints: Sequence[str]

    @property
    def tables(self) -> list[tuple[Any, ...] | None]:
        """Each combination's table, or part of one in a hash partition; None: changes of none."""
        return [
            None if kind.table is None else (origin, kind.table, number)
            for kind, origin, number in zip(self.kinds, self.origins, self.hashes, strict=True)
        ]

    def subject(self, number: int) -> bytes:
        """The subject of a combination's messages."""
        first, *rest = self.kinds[number].subject
        joined = (
            self._name(joint, number) + part for joint, part in zip(self.joints, rest, strict=True)
        )
        return first + b"".join(joined)

    def _name(self, joint: str, number: int) -> bytes:
        if joint == "partition":
            return b"%d" % self.hashes[number]
        return escape(self.origins[number].partition).encode()


def destinations(part: Part, row_kinds: RowKinds, joints: Sequence[str]) -> Destinations:
    """What the rows of a part are sent to, by a template's `joints`. Raises SettingsError."""
    kinds, hashed = row_kinds.set.kinds, "partition" in joints
    if len(part.runs) == 1 and not hashed:
        count = len(kinds)
        origins = [part.runs[0].origin] * count
        return Destinations(row_kinds.numbers, kinds, origins, [0] * count, joints)
    numbers: dict[Origin, int] = {}
    owners = [numbers.setdefault(run.origin, len(numbers)) for run in part.runs]
    combined = np.repeat(owners, _lengths(part.runs)) * MOST
    if hashed:
        combined += hashes_of(part.batch.column("route"))
    combined = combined * len(kinds) + row_kinds.numbers
    found, known = _numbered(combined)
    origins = list(numbers)
    return Destinations(
        found,
        [kinds[number % len(kinds)] for number in known],
        [origins[number // len(kinds) // MOST] for number in known],
        [number // len(kinds) % MOST for number in known],
        joints,
    )


def _numbered(values: "np.ndarray[Any, np.dtype[np.int64]]") -> tuple[Numbers, list[int]]:
    """Each value's number among the different ones, and these, ascending. `np.unique` sorts: five
    times the time, where values are small."""
    most = int(values.max())
    if most >= _SMALL:
        found, kinds = np.unique(values, return_inverse=True)
        return kinds.astype(np.int32), found.tolist()
    numbers = np.zeros(most + 1, np.int32)
    numbers[values] = 1
    found = np.flatnonzero(numbers)
    numbers[found] = np.arange(len(found), dtype=np.int32)
    return numbers[values], found.tolist()


def _lengths(runs: Sequence[OriginRun]) -> list[int]:
    return [run.stop - run.start for run in runs]
