"""Options of the data source: its own, and the feed's settings among them."""

import pytest

from penstock.feeds.cosmos import CosmosFeed, CosmosSettings
from penstock.microbatch.options import feed_options, read_source
from penstock.model.errors import SettingsError


def test_a_setting_that_the_source_has_an_option_of_reaches_the_feed() -> None:
    settings = CosmosSettings(
        endpoint="https://h", database="d", container="c", mode="all_versions_and_deletes"
    )
    options = feed_options(settings) | {"backend": "cosmos", "mode": "rows"}
    source, feed = read_source(options)
    assert source.mode == "rows"
    assert isinstance(feed, CosmosFeed)
    assert feed.settings == settings


def test_rows_have_no_lines() -> None:
    with pytest.raises(SettingsError, match="no images of the form text"):
        read_source({"backend": "memory", "images": "text"})
