"""Readers of a slot on a real server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.feeds.postgres.reading import Reader
from tests.feeds.postgres.story import TABLE, feed_of, server_of
from tests.servers import Database, Postgres


@pytest.fixture
def reader(database: Database) -> Iterator[Reader]:
    """On PostgreSQL 16; `prepare` is the test's."""
    reader = Reader(database)
    yield reader
    reader.close()


@pytest.fixture
def reader_any(database_any: Database) -> Iterator[Reader]:
    """On PostgreSQL 15, 16 and 18; `prepare` is the test's."""
    reader = Reader(database_any)
    yield reader
    reader.close()


@pytest.fixture
def reader_of(database: Database) -> Iterator[Callable[..., Reader]]:
    """Makes a reader with settings."""
    readers: list[Reader] = []

    def make(**settings: Any) -> Reader:
        readers.append(Reader(database, **settings))
        return readers[-1]

    yield make
    for each in readers:
        each.close()


@pytest.fixture(params=[15, pytest.param(16, marks=pytest.mark.thorough), 18])
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A server of its own, because it is stopped and copied; with a table and a slot."""
    with server_of(request.param) as made:
        made.execute(TABLE)
        feed_of(made).begin()
        yield made
