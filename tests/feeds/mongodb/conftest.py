"""A MongoDB for all of these tests, and a fresh database for each."""

from collections.abc import Iterator

import pytest

from tests.mongo import Shop, mongodb, shop_on


@pytest.fixture(scope="session")
def mongo() -> Iterator[str]:
    """The URL of a MongoDB: the stand-in, with fail points, or PENSTOCK_MONGO_URL."""
    with mongodb() as url:
        yield url


@pytest.fixture
def shop(mongo: str) -> Iterator[Shop]:
    """A fresh database: `.url`, `.name`, `.db`, `.feed(**settings)`."""
    with shop_on(mongo) as fresh:
        yield fresh
