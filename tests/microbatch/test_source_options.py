"""Options of the data source: its own, and the feed's settings among them."""

import pyarrow as pa
import pytest

from penstock.feeds.cosmos import CosmosFeed, CosmosSettings
from penstock.microbatch.options import feed_options, read_source, today, typed_rows
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


def test_chosen_columns_are_of_changes_in_rows() -> None:
    options = {"backend": "memory", "columns": "after,event_id"}
    source, _ = read_source(options)
    assert today(source).names == ["event_id", "after"]
    with pytest.raises(SettingsError, match="these rows have others"):
        typed_rows(source, pa.schema([("id", pa.int64())]))
    positions = {"positions": "sqlite:////p.db", "mode": "realtime"}
    with pytest.raises(SettingsError, match="tickets have no columns"):
        read_source(options | positions)
