"""MongoDB: change streams of a database or of a whole cluster."""

from penstock.feeds import FeedPlugin
from penstock.feeds.mongodb.feed import MongoFeed
from penstock.feeds.mongodb.settings import MongoSettings

__all__ = ["PLUGIN", "MongoFeed", "MongoSettings"]

PLUGIN = FeedPlugin(settings=MongoSettings, build=MongoFeed, has_clock=True, has_documents=True)
