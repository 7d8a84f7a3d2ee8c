"""Amazon DynamoDB Streams: settings, feed, following."""

from penstock.feeds import FeedPlugin
from penstock.feeds.dynamodb.feed import DynamodbFeed
from penstock.feeds.dynamodb.settings import DynamodbSettings

__all__ = ["PLUGIN", "DynamodbFeed", "DynamodbSettings"]

PLUGIN = FeedPlugin(
    settings=DynamodbSettings, build=DynamodbFeed, share="look_ups", has_documents=True
)
