"""Azure Cosmos DB's change feed (API for NoSQL): settings, feed, following."""

from penstock.feeds import FeedPlugin
from penstock.feeds.cosmos.feed import CosmosFeed
from penstock.feeds.cosmos.settings import CosmosSettings

__all__ = ["PLUGIN", "CosmosFeed", "CosmosSettings"]

PLUGIN = FeedPlugin(settings=CosmosSettings, build=CosmosFeed, has_documents=True)
