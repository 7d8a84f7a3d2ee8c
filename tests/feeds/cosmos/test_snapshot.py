"""Items of a container, as a snapshot reads them while it is written to, split and merged."""

from collections import Counter
from collections.abc import Iterator

import pytest

from penstock.feeds import SnapshotWait
from penstock.model.errors import Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmarks
from tests.cosmos.container import StoredContainer
from tests.cosmos.reading import feed_of, ids_of
from tests.cosmos.server import CosmosServer


def fill(orders: StoredContainer, count: int = 100) -> list[str]:
    for number in range(count):
        orders.put({"id": f"{number:03}", "pk": str(number % 7)})
    return [f'["{number % 7}","{number:03}"]' for number in range(count)]


def pages_of(server: CosmosServer, known: Bookmarks | None = None) -> Iterator[Page]:
    wait = SnapshotWait(patience=1.0)
    with (
        feed_of(server).snapshot("shop", "orders", known, wait) as taken,
        taken.source.opened(lambda: False) as pages,
    ):
        for part in taken.plan(10, 2**20):
            yield from pages(part, 10, 2**20)


def test_each_item_comes_once(server: CosmosServer, orders: StoredContainer) -> None:
    written = fill(orders)
    assert sorted(ids_of(feed_of(server), list(pages_of(server)))) == sorted(written)


def test_no_item_is_lost_while_its_range_is_split(
    server: CosmosServer, orders: StoredContainer
) -> None:
    written, found = fill(orders), []
    for number, page in enumerate(pages_of(server)):
        found.append(page)
        if number in (2, 4):
            orders.split()
    assert {*ids_of(feed_of(server), found)} == {*written}


def test_a_container_that_is_written_to_all_the_time_has_an_end(
    server: CosmosServer, orders: StoredContainer
) -> None:
    written, found = fill(orders), []
    for number, page in enumerate(pages_of(server)):
        found.append(page)
        orders.put({"id": f"new{number}", "pk": "1"})
    counts = Counter(ids_of(feed_of(server), found))
    assert {*written} <= {*counts}
    assert max(counts.values()) == 1


def test_what_is_stopped_ends(server: CosmosServer, orders: StoredContainer) -> None:
    fill(orders)
    wait = SnapshotWait(patience=1.0)
    with (
        feed_of(server).snapshot("shop", "orders", None, wait) as taken,
        taken.source.opened(lambda: True) as pages,
    ):
        (part,) = taken.plan(10, 2**20)
        with pytest.raises(Unavailable, match="stopped"):
            list(pages(part, 10, 2**20))


def test_without_a_saved_position_there_is_none(
    server: CosmosServer, orders: StoredContainer
) -> None:
    with pytest.raises(Unavailable, match="no position"):
        list(pages_of(server, {}))
