"""Servers for the stores that only they need."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit, urlunsplit

import pymongo
import pytest

from tests.conftest import need_etcd
from tests.servers import Etcd


@pytest.fixture
def own_etcd() -> Iterator[Callable[..., Etcd]]:
    """`own_etcd(**options)`: a server that this test may kill."""
    need_etcd()
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Etcd(options=options))


@pytest.fixture
def lease_mongo_url(mongo: str) -> Iterator[str]:
    """The URL of a database that is gone after the test."""
    name = f"t{uuid.uuid4().hex[:12]}"
    parts = urlsplit(mongo)
    yield urlunsplit(parts._replace(path=f"/{name}"))
    client: pymongo.MongoClient[dict[str, object]]
    with pymongo.MongoClient(mongo) as client:
        client.drop_database(name)
