"""The Processor on Cosmos DB: the feed's ranges, and the leases in a container beside it."""

import itertools
import threading
from typing import Any

import pytest

from penstock import Changes, Observer, PartitionContext, Processor
from penstock.leases.cosmos import CosmosStore
from penstock.leases.memory import MemoryStore
from tests.cosmos.reading import settings_of, store_url
from tests.cosmos.server import CosmosServer
from tests.waiting import until


class Ids(Observer):
    """Notes the ids of items, in all partitions."""

    lock = threading.Lock()
    found: list[str]

    def process(self, changes: Changes, context: PartitionContext) -> None:
        with self.lock:
            self.found += [change["key"]["id"] for change in changes]


@pytest.mark.slow
def test_with_more_ranges_than_threads_a_refusal_costs_what_the_service_says() -> None:
    """Each tenth answer is a 429: with `poll` (an hour here) for each of them this takes days."""
    with CosmosServer() as server:
        orders = server.container("shop", "orders")
        for _ in range(4):
            for each in list(orders.ranges):
                orders.split(range_id=each.id)
        for n in range(400):
            orders.put({"id": f"i{n}", "pk": f"p{n}"})
        answer, asked = server.answer, itertools.count(1)

        def throttled(verb: str, path: str, headers: dict[str, str], body: Any) -> Any:
            if "a-im" in headers and "pkranges" not in path and next(asked) % 10 == 0:
                server.fail("feed", 429, headers={"x-ms-retry-after-ms": "30"})
            return answer(verb, path, headers, body)

        server.answer = throttled  # type: ignore[method-assign]
        observer = type("Fresh", (Ids,), {"found": []})
        made = Processor(
            "cosmos",
            settings_of(server, page_items=5).model_dump(exclude_unset=True),
            leases=MemoryStore(),
            name="orders",
            observer=observer,
            threads=2,
            poll=3600.0,
        )
        thread = threading.Thread(target=made.run)
        thread.start()
        try:
            until(lambda: len(observer.found) >= 400)
        finally:
            made.stop()
            thread.join(60)
        assert next(asked) > 80, "some were refused"
        assert sorted(observer.found) == sorted(f"i{n}" for n in range(400))


@pytest.mark.slow  # a look-up comes after 30 s
def test_two_hosts_share_ranges_that_split_and_merge_and_double_nothing() -> None:
    with CosmosServer() as server:
        orders = server.container("shop", "orders")
        orders.split()
        settings = settings_of(server, poll=0.05, page_items=10)
        observer = type("Fresh", (Ids,), {"found": []})
        store = CosmosStore(store_url(server))
        hosts = [
            Processor(
                "cosmos",
                settings.model_dump(exclude_unset=True),
                leases=store,
                name="orders",
                observer=observer,
                renew=0.3,
                acquire=0.2,
                expire=20.0,
                poll=0.1,
            )
            for _ in range(2)
        ]
        threads = [threading.Thread(target=host.run) for host in hosts]
        for thread in threads:
            thread.start()
        try:
            until(lambda: [len(host.partitions) for host in hosts] == [1, 1])
            for n in range(60):
                orders.put({"id": f"i{n}", "pk": f"p{n}"})
                if n == 20:
                    orders.split()
                if n == 40:
                    orders.merge(*orders.ranges[1:])
            until(lambda: len(observer.found) >= 60)
            until(lambda: sum(len(host.partitions) for host in hosts) == 3)
            # Rows of ranges that have ended go, at a look-up (30 s).
            until(lambda: len(store.list("orders/")) == 3, 180.0)
        finally:
            for host in hosts:
                host.stop()
            for thread in threads:
                thread.join(30)
        assert sorted(observer.found) == sorted(f"i{n}" for n in range(60))
        rows = store.list("orders/")
        assert {row.owner for row in rows} == {""}, "leases are released"
