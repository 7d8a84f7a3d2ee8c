"""`penstock positions FILE --remaining`: how many changes the sources have after what is stored.

A source that cannot be asked for a number has a lag in seconds at most, which only what reads it
knows: the ops server of the running pipeline is asked for that.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import click

from penstock.cli.options import OpsClient, columns
from penstock.cli.positions_edit import StoredRow
from penstock.config import Backend, Deployment
from penstock.model.position import Bookmark, PartitionId
from penstock.reading.remaining import estimate

_Rows = list[dict[str, Any]]


def print_remaining(pipeline: Deployment, stored: Sequence[StoredRow], *, as_json: bool) -> None:
    """Of all partitions that have not ended, and in sum."""
    rows, totals = remaining(pipeline, stored)
    known = [each for each in totals.values() if each is not None]
    total = sum(known) if known else None
    # A partition is not in its backend's sum, or has ended and has descendants that may have more.
    at_least = any(row["remaining"] is None and totals[row["backend"]] is not None for row in rows)
    if as_json:
        found = {"remaining": total, "at_least": at_least, "backends": totals, "partitions": rows}
        click.echo(json.dumps(found, indent=2))
        return
    cells = [(row["backend"], row["partition"], _text(row)) for row in rows]
    if cells:
        click.echo(columns(("backend", "partition", "remaining"), cells))
    for name in (name for name, found in totals.items() if found is None):
        click.echo(f"{name}: not known; not in the sum", err=True)
    text = "not known" if total is None else f"at least {total}" if at_least else str(total)
    click.echo(f"in sum: {text}")


def remaining(
    pipeline: Deployment, stored: Sequence[StoredRow]
) -> tuple[_Rows, dict[str, int | None]]:
    """A row for each partition that has not ended, or whose descendants are not stored yet, and
    backend -> its sum; see `Estimate`.

    In rows: `remaining` (changes, or null), `lag_seconds` (or null) and `error`, why neither is
    known."""
    rows: _Rows = []
    totals: dict[str, int | None] = {}
    for backend in pipeline.backends:
        mine = {
            PartitionId(row.name.removeprefix(f"{backend.name}/")): row.bookmark
            for row in stored
            if row.name.startswith(f"{backend.name}/")
        }
        found, totals[backend.name] = _of_backend(pipeline, backend, mine)
        rows += found
    return rows, totals


def _of_backend(
    pipeline: Deployment, backend: Backend, stored: Mapping[PartitionId, Bookmark | None]
) -> tuple[_Rows, int | None]:
    bookmarks = {name: each for name, each in stored.items() if each is not None}
    errors = {name: "the stored position can't be read" for name in stored if name not in bookmarks}
    found = estimate(backend.feed(), bookmarks)
    counts: Mapping[PartitionId, int] = {}
    lags: Mapping[str, float] = {}
    awaited: Collection[PartitionId] = ()
    total: int | None = None if stored else 1
    if found is None:
        lags = _lags(pipeline, backend.name) if bookmarks else {}
        why = f"{backend.type} has no number of changes, and no running pipeline knows a lag"
        errors |= {name: why for name in bookmarks if name not in lags}
    else:
        counts, errors, awaited = found.counts, errors | dict(found.failed), found.awaited
        errors |= dict.fromkeys(awaited, "it has ended, and its descendants have no position yet")
        total = found.total if bookmarks else total
    rows = [
        {
            "backend": backend.name,
            "partition": name,
            "remaining": counts.get(name),
            "lag_seconds": lags.get(name),
            "error": errors.get(name, "") if name not in counts else "",
        }
        for name, bookmark in stored.items()
        if bookmark is None or not bookmark.ended or name in awaited
    ]
    return rows, total


def _lags(pipeline: Deployment, backend: str) -> Mapping[str, float]:
    """Partition -> seconds, as the running pipeline reports them."""
    ops = pipeline.ops
    answer = OpsClient.of(ops).ask("/status?partitions=all") if ops.port else {}
    if answer.get("name") != pipeline.name:
        return {}
    return {
        str(row["partition"]): float(row["lag_seconds"])
        for each in answer.get("backends", [])
        if each.get("name") == backend
        for row in each.get("partitions", [])
        if row.get("lag_seconds") is not None
    }


def _text(row: Mapping[str, Any]) -> str:
    if row["remaining"] is not None:
        return str(row["remaining"])
    if row["lag_seconds"] is not None:
        return f"{row['lag_seconds']:.1f} s late; how many changes is not known"
    return f"not known: {row['error']}"
