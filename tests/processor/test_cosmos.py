"""The Processor on Cosmos DB: the feed's ranges, and the leases in a container beside it."""

import threading

from penstock import Changes, Observer, PartitionContext, Processor
from penstock.demo.cosmos.server import CosmosServer
from penstock.leases.cosmos import CosmosStore
from tests.cosmos.reading import settings_of, store_url
from tests.reading.made import until


class Ids(Observer):
    """Notes the ids of items, in all partitions."""

    lock = threading.Lock()
    found: list[str]

    def process(self, changes: Changes, context: PartitionContext) -> None:
        with self.lock:
            self.found += [change["key"]["id"] for change in changes]


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
        finally:
            for host in hosts:
                host.stop()
            for thread in threads:
                thread.join(30)
        assert sorted(observer.found) == sorted(f"i{n}" for n in range(60))
        rows = store.list("orders/")
        assert {row.owner for row in rows} == {""}, "leases are released"
