"""Splits: pages cross whole, and what lies outside the bounds does not."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from penstock.microbatch.ticket import bounded
from penstock.model.change import event_id, schema
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place

PLACES = [Place("0A", 0), Place("0A", 1), Place("0A", 2), Place("0B", 0), Place("0C", 0)]


def page(places: list[Place]) -> Page:
    return Page(
        partition=PartitionId("slot"),
        first=places[0],
        last=places[-1],
        count=len(places),
        captured_at=1_700_000_000_000_000,
        context=b"context",
        payload=b"payload" * 100,
    )


def changes(places: list[Place]) -> pa.RecordBatch:
    now = datetime.now(UTC)
    rows = [
        {
            "backend": "default",
            "partition": "slot",
            "cursor": place.cursor,
            "ordinal": place.ordinal,
            "event_id": event_id("default", place),
            "operation": "INSERT",
            "captured_at": now,
        }
        for place in places
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema())


@pytest.mark.parametrize("low", range(-1, len(PLACES) - 1))
@pytest.mark.parametrize("high", range(len(PLACES)))
def test_only_changes_inside_the_bounds_are_delivered(low: int, high: int) -> None:
    after = PLACES[low] if low >= 0 else None
    got = list(bounded(page(PLACES), [changes(PLACES)], after, PLACES[high]))
    ids = [value for batch in got for value in batch.column("event_id").to_pylist()]
    assert ids == [event_id("default", place) for place in PLACES[low + 1 : high + 1]]


def test_without_an_end_everything_behind_the_start_is_delivered() -> None:
    got = list(bounded(page(PLACES), [changes(PLACES)], PLACES[1], None))
    ids = [value for batch in got for value in batch.column("event_id").to_pylist()]
    assert ids == [event_id("default", place) for place in PLACES[2:]]


def test_a_split_anywhere_yields_the_same_changes() -> None:
    whole = changes(PLACES).column("event_id").to_pylist()
    for cut in PLACES:
        parts = [
            *bounded(page(PLACES), [changes(PLACES)], None, cut),
            *bounded(page(PLACES), [changes(PLACES)], cut, PLACES[-1]),
        ]
        assert [i for part in parts for i in part.column("event_id").to_pylist()] == whole
