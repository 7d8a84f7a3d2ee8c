"""A feed on the stand-in, and reading it until there is enough."""

import time
from typing import Any
from urllib.parse import quote

from penstock.feeds.cosmos import CosmosFeed, CosmosSettings
from penstock.feeds.cosmos.following import CosmosFollowing
from penstock.model.page import Page
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from tests.cosmos.server import CosmosServer


def settings_of(server: CosmosServer, **given: Any) -> CosmosSettings:
    """Of the container shop/orders."""
    return CosmosSettings.model_validate(
        {
            "endpoint": server.url,
            "key": server.key,
            "database": "shop",
            "container": "orders",
            "poll": 0.001,
            **given,
        }
    )


def feed_of(server: CosmosServer, **given: Any) -> CosmosFeed:
    """Of the container shop/orders."""
    return CosmosFeed(settings_of(server, **given))


def store_url(server: CosmosServer) -> str:
    """Of a lease store in a container that is not there yet."""
    host = server.url.removeprefix("http://")
    return f"cosmos://:{quote(server.key, safe='')}@{host}/penstock/leases?tls=false"


def only(bookmarks: Bookmarks) -> tuple[PartitionId, Bookmark]:
    """The one partition there is."""
    ((name, bookmark),) = bookmarks.items()
    return name, bookmark


def read_pages(following: CosmosFollowing, count: int) -> list[Page]:
    """Until there are so many changes, or the range has ended."""
    pages: list[Page] = []
    deadline = time.monotonic() + 20
    while sum(page.count for page in pages) < count and not following.drained:
        assert time.monotonic() < deadline, pages
        pages += following.read(0.05)
    return pages


def rows_of(feed: CosmosFeed, pages: list[Page]) -> list[dict[str, Any]]:
    """Changes of the pages."""
    decoder = feed.decoder("json")
    return [row for page in pages for batch in decoder.decode(page) for row in batch.to_pylist()]


def ids_of(feed: CosmosFeed, pages: list[Page]) -> list[str]:
    """Document ids of the pages' changes."""
    return [row["document_id"] for row in rows_of(feed, pages)]
