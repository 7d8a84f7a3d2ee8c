"""PostgreSQL logical replication (pgoutput), versions 13 to 18: settings, feed, following."""

from penstock.feeds import FeedPlugin
from penstock.feeds.postgres.feed import PostgresFeed
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.feeds.postgres.sources import build

__all__ = ["PLUGIN", "PostgresFeed", "PostgresSettings"]

PLUGIN = FeedPlugin(
    settings=PostgresSettings, build=build, has_clock=True, connector="postgresql",
    has_lines=True,
)  # fmt: skip
