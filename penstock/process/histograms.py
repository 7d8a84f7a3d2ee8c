"""Histograms as counters: what a process observed, in fields that a board adds up.

A field is `NAME:BOUND`, how many values were at most BOUND and above the bound before it, and
`NAME:sum`. The same code writes and reads them.
"""

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_CHANGES = (1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0)

# Name -> the buckets' upper bounds; a last one has the rest.
BUCKETS: Mapping[str, tuple[float, ...]] = {
    "ingest": _SECONDS,
    "publish": _SECONDS,
    "checkpoint": _SECONDS,
    "batch": _CHANGES,
    "published": _CHANGES,
}


def observed(name: str, values: ArrayLike) -> dict[str, float]:
    """The counters that these values add to. A negative duration (two clocks) counts as 0."""
    found = np.maximum(np.atleast_1d(np.asarray(values, np.float64)), 0.0)
    places = np.searchsorted(BUCKETS[name], found)
    counts = np.bincount(places, minlength=len(BUCKETS[name]) + 1)
    fields = {
        f"{name}:{bound}": int(count)
        for bound, count in zip(_bounds(name), counts, strict=True)
        if count
    }
    return {**fields, f"{name}:sum": float(found.sum())} if fields else {}


def histograms(fields: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of an entry's fields: name -> `buckets` (upper bound to how many were at most that; the last
    is `+Inf`, how many there were) and `sum`. One without a value is left out."""
    found: dict[str, dict[str, Any]] = {}
    for name in BUCKETS:
        if f"{name}:sum" in fields:
            counts = [fields.get(f"{name}:{bound}", 0) for bound in _bounds(name)]
            found[name] = {
                "buckets": dict(zip(_bounds(name), accumulate(counts), strict=True)),
                "sum": fields[f"{name}:sum"],
            }
    return found


def _bounds(name: str) -> tuple[str, ...]:
    return (*(f"{bound:g}" for bound in BUCKETS[name]), "+Inf")
