"""A MongoDB for all of these tests and a fresh database for each, and scripted servers."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.feeds.mongodb import MongoFeed
from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.position import Bookmark
from tests.mongo import Shop, mongodb, shop_on
from tests.mongodb.history import History
from tests.mongodb.reading import Read, Reading, Serve
from tests.mongodb.server import ScriptedMongod


@pytest.fixture(scope="session")
def mongo() -> Iterator[str]:
    """The URL of a MongoDB: the stand-in, with fail points, or PENSTOCK_MONGODB_URL."""
    with mongodb() as url:
        yield url


@pytest.fixture
def shop(mongo: str) -> Iterator[Shop]:
    """A fresh database: `.url`, `.name`, `.db`, `.feed(**settings)`."""
    with shop_on(mongo) as fresh:
        yield fresh


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
