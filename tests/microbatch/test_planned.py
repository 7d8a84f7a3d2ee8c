"""A query without saved positions begins once, whatever it is asked again."""

from typing import Any

import pytest

from penstock.feeds.memory import MemoryFeed
from penstock.microbatch.planned import bookmarks_of
from penstock.microbatch.source import Source
from penstock.model.position import Bookmark, bookmarks_to_json
from tests.reading.made import P0, place

OPTIONS = {"backend": "memory", "changes": "100", "page": "10", "unit": "1", "max_events": "10"}
LATER = {P0: Bookmark(place(59), {})}


def test_the_first_offset_comes_at_once_and_a_start_after_a_crash_plans_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {**OPTIONS, "patience": "10s"}
    first = Source.open(options)
    begun = first.initial()
    end = first.latest(begun)
    planned = first.splits(begun, end)
    first.stop()
    monkeypatch.setattr(MemoryFeed, "begin", lambda *_: LATER)  # "now" has moved on
    second = Source.open(options)
    again = second.initial()
    assert again == bookmarks_to_json(LATER)
    assert ranges(second.splits(again, end)) == ranges(planned) != []
    later = end
    while later == end:  # it is being read
        later = second.latest(end)
    assert ranges(second.splits(end, later))[0][0] == bookmarks_of(end)[P0].place
    second.stop()


def test_a_query_without_a_change_has_a_first_offset_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFeed, "begin", lambda *_: {P0: Bookmark(place(99), {})})
    source = Source.open(OPTIONS)
    begun = source.initial()
    end = source.latest(begun)
    assert end != begun
    assert bookmarks_of(end) == bookmarks_of(begun)
    assert source.splits(begun, end) == []
    assert source.latest(end) == end  # and then no more empty micro-batches
    source.stop()


def ranges(splits: Any) -> list[Any]:
    return [(part.after, part.until) for each in splits for part in each.parts]
