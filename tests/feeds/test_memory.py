"""The memory feed: what it makes up is always the same."""

import time
from datetime import UTC, datetime

import pytest

from penstock.feeds.memory import PLUGIN, MemoryFeed, MemoryFeedSettings, place_of
from penstock.model.change import schema
from penstock.model.errors import Malformed, SettingsError
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.model.settings import Settings


def _feed(**settings: object) -> MemoryFeed:
    return MemoryFeed(MemoryFeedSettings.model_validate(settings))


def _read(feed: MemoryFeed, partition: str = "p0", after: Place | None = None) -> list[Page]:
    following = feed.follow(PartitionId(partition), Bookmark(after))
    pages: list[Page] = []
    while more := following.read(0):
        pages += more
    return pages


def test_the_plug_in_builds_a_feed_of_its_settings() -> None:
    assert issubclass(PLUGIN.settings, Settings)
    assert PLUGIN.build(PLUGIN.settings(changes=5)).backend == "memory"


@pytest.mark.parametrize("setting", [{"generations": 1}, {"trimmed": 3}, {"on_gap": "continue"}])
def test_settings_that_earlier_versions_had_are_named(setting: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(setting))} is no more"):
        _feed(**setting)


def test_pages_have_the_size_that_was_asked_for() -> None:
    assert [page.count for page in _read(_feed(changes=25, page=10))] == [10, 10, 5]


@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_batches_have_the_fixed_schema(images: str) -> None:
    feed = _feed(changes=30)
    (batch,) = feed.decoder(images).decode(_read(feed)[0])  # type: ignore[arg-type]
    assert batch.schema == schema(images)  # type: ignore[arg-type]
    assert set(batch["operation"].to_pylist()) == {"INSERT", "UPDATE", "DELETE"}


def test_a_place_of_another_feed_is_malformed() -> None:
    with pytest.raises(Malformed):
        _feed().follow(PartitionId("p0"), Bookmark(Place("00000000/016B3748", 0)))


def test_a_partition_that_is_not_there_is_refused() -> None:
    with pytest.raises(SettingsError):
        _feed().follow(PartitionId("p9"))


def test_it_begins_at_a_time() -> None:
    feed = _feed(changes=100)
    (begun,) = feed.begin(datetime(2026, 1, 1, 0, 0, 0, 40_000, tzinfo=UTC)).values()
    following = feed.follow(PartitionId("p0"), begun)
    assert following.read(0)[0].first == place_of(feed.settings, "p0", 40)
    (begun,) = feed.begin("now").values()
    assert not feed.follow(PartitionId("p0"), begun).read(0)


def test_each_read_takes_as_long_as_it_is_told() -> None:
    following = _feed(latency="50ms").follow(PartitionId("p0"))
    begun = time.monotonic()
    following.read(0)
    assert time.monotonic() - begun >= 0.05
