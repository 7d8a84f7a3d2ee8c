"""Scripted servers."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.feeds.mongodb import MongoFeed
from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.position import Bookmark
from tests.mongodb.history import History
from tests.mongodb.reading import Read, Reading, Serve
from tests.mongodb.server import ScriptedMongod


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a history until the test ends."""
    with ExitStack() as servers:
        yield lambda history, kind="primary": servers.enter_context(ScriptedMongod(history, kind))


@pytest.fixture
def server(serve: Serve) -> ScriptedMongod:
    return serve(History())


@pytest.fixture
def reading(serve: Serve) -> Iterator[Read]:
    """Reads a feed from a bookmark, or from now on."""
    made: list[Reading] = []

    def read(feed: MongoFeed, bookmark: Bookmark | None = None) -> Reading:
        made.append(Reading(feed, bookmark or feed.begin()[PARTITION]))
        return made[-1]

    yield read
    for each in made:
        each.close()
