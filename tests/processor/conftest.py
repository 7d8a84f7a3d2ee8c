"""Servers."""

from collections.abc import Iterator

import pytest

from penstock.model.errors import Unavailable
from tests.servers import Etcd, etcd_program


@pytest.fixture
def etcd() -> Iterator[Etcd]:
    """An etcd server."""
    try:
        etcd_program()
    except Unavailable as error:
        pytest.skip(str(error))
    with Etcd(options={"unsafe-no-fsync": "true"}) as server:
        yield server
