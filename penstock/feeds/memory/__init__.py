"""A feed that makes up its changes: for tests, benchmarks and first steps, without a server.

The same settings always give the same changes, whichever process asks: nothing is remembered but
what the process itself acknowledged. It cuts units (transactions) across pages, has any number of
partitions with any lineage, ends and trims them, and fails on demand.
"""

from penstock.feeds import FeedPlugin
from penstock.feeds.memory.decoder import MemoryDecoder
from penstock.feeds.memory.feed import MemoryFeed
from penstock.feeds.memory.following import MemoryFollowing
from penstock.feeds.memory.places import place_of
from penstock.feeds.memory.settings import MemoryFeedSettings

__all__ = [
    "PLUGIN",
    "MemoryDecoder",
    "MemoryFeed",
    "MemoryFeedSettings",
    "MemoryFollowing",
    "place_of",
]

PLUGIN = FeedPlugin(settings=MemoryFeedSettings, build=MemoryFeed)
