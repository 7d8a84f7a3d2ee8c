"""The same promises on Azure itself, in an account where a database may be made.

`PENSTOCK_COSMOS_URL` is its endpoint, `PENSTOCK_COSMOS_KEY` its key (Entra ID without it). Each run
makes a database of its own and deletes it. With `PENSTOCK_COSMOS_EVERY=1`, where the account has
continuous backup, all versions and deletes are read, too.
"""

import os
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from azure.cosmos import CosmosClient, PartitionKey

from penstock.feeds.cosmos import CosmosFeed, CosmosSettings
from penstock.feeds.cosmos.client import credential_of
from penstock.model.page import Page
from penstock.model.position import Bookmark, Bookmarks
from tests.cosmos.reading import rows_of

URL = os.environ.get("PENSTOCK_COSMOS_URL", "")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not URL, reason="PENSTOCK_COSMOS_URL names no account of Azure"),
]
PATIENCE = 120.0


@pytest.fixture(scope="module")
def settings() -> Iterator[CosmosSettings]:
    name = f"penstock-{uuid.uuid4().hex[:8]}"
    made = CosmosSettings.model_validate(
        {
            "endpoint": URL,
            "key": os.environ.get("PENSTOCK_COSMOS_KEY"),
            "database": name,
            "container": "orders",
            "page_items": 5,
        }
    )
    client = CosmosClient(URL, credential=credential_of(made))
    database = client.create_database(name)
    try:
        database.create_container("orders", partition_key=PartitionKey(path="/pk"))
        yield made
    finally:
        client.delete_database(name)


def container_of(settings: CosmosSettings) -> Any:
    client = CosmosClient(URL, credential=credential_of(settings))
    return client.get_database_client(settings.database).get_container_client("orders")


def read(feed: CosmosFeed, begun: Bookmarks, count: int) -> list[tuple[Page, Bookmark]]:
    """Pages, with the bookmarks at their ends."""
    found: list[tuple[Page, Bookmark]] = []
    followings = [feed.follow(name, bookmark) for name, bookmark in begun.items()]
    deadline = time.monotonic() + PATIENCE
    while sum(page.count for page, _ in found) < count:
        assert time.monotonic() < deadline, found
        for each in followings:
            for page in each.read(0.5):
                bookmark = each.bookmark(page.last)
                assert bookmark is not None
                found.append((page, bookmark))
    return found


def test_what_is_written_after_now_is_read_in_order_and_resumed_after_every_place(
    settings: CosmosSettings,
) -> None:
    feed = CosmosFeed(settings)
    begun = feed.begin("now")
    container = container_of(settings)
    for n in range(12):
        container.create_item({"id": f"i{n}", "pk": f"p{n % 3}"})
    found = read(feed, begun, 12)
    pages = [page for page, _ in found]
    rows = rows_of(feed, pages)
    assert {row["document_id"] for row in rows} == {f'["p{n % 3}","i{n}"]' for n in range(12)}
    for page, bookmark in found[:-1]:
        after = [p for p in pages if p.partition == page.partition and p.first > page.last]
        if after:
            rest = read(feed, {page.partition: bookmark}, sum(p.count for p in after))
            assert rows_of(feed, [p for p, _ in rest])[0]["cursor"] == after[0].first.cursor


def test_the_preflight_finds_no_error(settings: CosmosSettings) -> None:
    assert {each.level for each in CosmosFeed(settings).check()} == {"ok"}


@pytest.mark.skipif(
    not os.environ.get("PENSTOCK_COSMOS_EVERY"), reason="PENSTOCK_COSMOS_EVERY is not set"
)
def test_all_versions_and_deletes_are_read(settings: CosmosSettings) -> None:
    feed = CosmosFeed(settings.model_copy(update={"mode": "all_versions_and_deletes"}))
    begun = feed.begin()
    container = container_of(settings)
    container.create_item({"id": "v", "pk": "a", "n": 1})
    container.upsert_item({"id": "v", "pk": "a", "n": 2})
    container.delete_item("v", partition_key="a")
    rows = rows_of(feed, [page for page, _ in read(feed, begun, 3)])
    assert [row["operation"] for row in rows] == ["INSERT", "REPLACE", "DELETE"]
    assert {row["document_id"] for row in rows} == {'["a","v"]'}
