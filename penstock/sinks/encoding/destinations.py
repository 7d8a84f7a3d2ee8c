"""Where messages go: the subject of each row, by its route and its partition."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.sinks.encoding.columns import Column, Columns, Numbers, Values
from penstock.sinks.encoding.message import Origin, OriginRun
from penstock.sinks.encoding.part import Part
from penstock.sinks.encoding.pieces import Pick, Piece
from penstock.sinks.encoding.routes import Route, Routed
from penstock.sinks.encoding.weave import Weave
from penstock.sinks.subject import Template, escape

__all__ = ["Destinations", "Subjects", "destinations"]


class Subjects:
    """The subjects of rows; routes are those of the template's `segments`."""

    def __init__(self, template: Template) -> None:
        self._parts = [f"subject{n}" for n in range(len(template.segments))]
        names: tuple[str, ...] = ("kind", *self._parts)
        pieces: list[Piece | bytes] = [Pick("kind", self._parts[0])]
        if len(self._parts) > 1:
            names = (*names, "owner", "partitions")
            for part in self._parts[1:]:
                pieces += [Pick("owner", "partitions"), Pick("kind", part)]
        self._weave = Weave(pieces, names, batch=False)

    def of(self, part: Part, routed: Routed) -> Column:
        """The subject of each row."""
        parts: dict[str, Any] = dict(zip(self._parts, routed.subjects, strict=True))
        if len(parts) > 1:
            parts |= {
                "owner": np.repeat(np.arange(len(part.runs), dtype=np.int32), _lengths(part.runs)),
                "partitions": Values([escape(run.origin.partition).encode() for run in part.runs]),
            }
        return self._weave.run(Columns(len(part), kind=routed.kinds, **parts))


class Destinations(NamedTuple):
    """The combinations of a route and an origin that some rows have: what may share a message.
    `kinds` is the number of each row's combination."""

    kinds: Numbers
    routes: Sequence[Route]
    origins: Sequence[Origin]

    @property
    def tables(self) -> list[tuple[Any, ...] | None]:
        """The table of each combination; None where changes belong to none."""
        return [
            None if route.table is None else (origin, route.table)
            for route, origin in zip(self.routes, self.origins, strict=True)
        ]

    def subject(self, kind: int) -> bytes:
        """The subject of a combination's messages."""
        name = escape(self.origins[kind].partition).encode()
        return name.join(self.routes[kind].subject)


def destinations(part: Part, routed: Routed) -> Destinations:
    """What the rows of a part are sent to."""
    routes = routed.routes
    if len(part.runs) == 1:
        return Destinations(routed.kinds, routes, [part.runs[0].origin] * len(routes))
    numbers: dict[Origin, int] = {}
    owners = [numbers.setdefault(run.origin, len(numbers)) for run in part.runs]
    combined = np.repeat(owners, _lengths(part.runs)) * len(routes) + routed.kinds
    found, kinds = np.unique(combined, return_inverse=True)
    origins = list(numbers)
    return Destinations(
        kinds.astype(np.int32),
        [routes[number % len(routes)] for number in found.tolist()],
        [origins[number // len(routes)] for number in found.tolist()],
    )


def _lengths(runs: Sequence[OriginRun]) -> list[int]:
    return [run.stop - run.start for run in runs]
