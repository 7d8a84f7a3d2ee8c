"""Which documents differ between a stream and its source, also while both move on.

The stream is read to its end, then the source, then the stream goes on: each row of the source is a
state that its document passes through, so a difference that is not real resolves when the stream
comes to it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.consumer.compare.same import differing
from penstock.consumer.mirror.fold import Fold

_MISSING_IN_STREAM, _MISSING_IN_SOURCE = "missing in the stream", "missing in the source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found. `differences`: identity -> in which fields, or where it is missing."""

    collection: str
    changes: int
    stream_count: int
    source_count: int
    compared: int
    differences: Mapping[str, str] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.differences and self.stream_count == self.source_count


class Comparison:
    """Of one collection. `add` its rows as they were read, then `apply` what the stream still has,
    until `differences` is empty or nothing comes."""

    def __init__(self, fold: Fold[str]) -> None:
        self.fold = fold
        self.compared = 0
        self.differences: dict[str, str] = {}
        self._rows: dict[str, Mapping[str, Any] | None] = {}

    def add(self, rows: Iterable[tuple[str, Mapping[str, Any]]], *, every: bool) -> None:
        """Compares rows of the source; `every`: they are all that it has."""
        seen = set()
        for identity, row in rows:
            seen.add(identity)
            self._compare(identity, row)
        if every:
            for identity in [name for name in self.fold.rows if name not in seen]:
                self._compare(identity, None)

    def apply(self, body: Mapping[str, Any]) -> None:
        """The stream goes on."""
        for identity in self.fold.apply(body):
            if identity in self.differences:
                self._judge(identity, self._rows[identity])

    def _compare(self, identity: str, row: Mapping[str, Any] | None) -> None:
        self.compared += 1
        self._judge(identity, row)
        if identity in self.differences:
            self._rows[identity] = row

    def _judge(self, identity: str, row: Mapping[str, Any] | None) -> None:
        copy = self.fold.rows.get(identity)
        if row is None:
            problem = "" if copy is None else _MISSING_IN_SOURCE
        elif copy is None:
            problem = _MISSING_IN_STREAM
        else:
            problem = ", ".join(differing(row, copy))
        if problem:
            self.differences[identity] = problem
        else:
            self.differences.pop(identity, None)
