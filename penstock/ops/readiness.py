"""Whether changes can flow: what /ready answers. Pure.

Ready means that every backend has begun, its bookmark is saved, and something can flow: whatever is
written at a source from now on is delivered. It does not depend on how far behind a backend is.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.ops.board import Snapshot


class Readiness(NamedTuple):
    """`reasons`: what keeps changes from flowing, of one backend or of all. One backend that
    fails after it has begun is a reason, but does not make the pipeline unready."""

    ready: bool
    reasons: Sequence[str]


def readiness(snapshot: Snapshot, backends: Sequence[str], standby: str | None) -> Readiness:
    """Of a pipeline of these backends, or of an instance on `standby`."""
    if standby is not None:
        return Readiness(ready=False, reasons=(standby,))
    waiting = {name: why for name in backends if (why := _not_begun(snapshot, name))}
    failed = {name: why for name in backends if (why := _cannot_read(snapshot, name))}
    sinks = tuple(_sinks_away(snapshot))
    reasons = [f"backend {name}: {why}" for name, why in (failed | waiting).items()]
    flows = len(failed) < len(backends) and not sinks
    return Readiness(ready=flows and not waiting, reasons=(*reasons, *sinks))


def _not_begun(snapshot: Snapshot, backend: str) -> str:
    query = snapshot.get(("query", backend))
    if query is not None and query.fields["begun"]:
        return ""
    error = query.fields["blocked"] or query.fields["last_error"] if query is not None else ""
    return "has not begun" + (f": {error}" if error else "")


def _cannot_read(snapshot: Snapshot, backend: str) -> str:
    query, source = snapshot.get(("query", backend)), snapshot.get(("source", backend))
    if query is not None and query.fields["blocked"]:
        return f"stands still: {query.fields['blocked']}"
    if source is None:
        return ""  # it has begun, and its reader starts
    if source.fields.get("stopped"):
        return "has stopped"
    if not source.fields.get("connected", True):
        error = source.fields.get("last_error")
        return "is disconnected" + (f": {error}" if error else "")
    return ""


def _sinks_away(snapshot: Snapshot) -> Iterator[str]:
    for (kind, name), entry in snapshot.items():
        if kind != "sink":
            continue
        if not entry.fields.get("connected", True):
            yield f"sink {name}: is disconnected"
        elif entry.fields.get("breaker") == "open":
            yield f"sink {name}: the circuit breaker is open"
