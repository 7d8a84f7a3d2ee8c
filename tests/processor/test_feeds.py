"""The Processor on each kind of source, with the servers that tests have; of Cosmos DB see
`test_cosmos`."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock import Changes, Observer, PartitionContext, Processor
from penstock.leases.memory import MemoryStore
from tests.dynamodb.endpoints import table_on
from tests.mongo import Shop
from tests.servers import Database, Moto
from tests.waiting import until

pytestmark = [pytest.mark.live]

FAST = {"renew": 0.3, "acquire": 0.2, "poll": 0.1}


class Host:
    """A processor in a thread; `keys` are those of the inserted rows that it was given. `expire`:
    unless a test waits for the end of a term, a busy machine is to cost no lease."""

    def __init__(
        self,
        kind: str,
        settings: dict[str, Any],
        store: MemoryStore,
        key: str,
        expire: float = 60.0,
    ) -> None:
        self.keys: list[Any] = []
        host = self

        class Noting(Observer):
            def process(self, changes: Changes, context: PartitionContext) -> None:
                host.keys += [each["key"][key] for each in changes if each["key"]]
                assert changes.batch.num_rows == len(list(changes))

        intervals: dict[str, Any] = {**FAST, "expire": expire}
        self.processor = Processor(
            kind, settings, leases=store, name="t", observer=Noting, **intervals
        )
        self._thread = threading.Thread(target=self.processor.run)

    def start(self) -> "Host":
        self._thread.start()
        return self

    def stop(self) -> None:
        self.processor.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextmanager
def running(*given: Any) -> Iterator[Host]:
    host = Host(*given).start()
    try:
        yield host
    finally:
        host.stop()


def continues(
    kind: str, settings: dict[str, Any], key: str, write: Callable[[int], Any], first: int = 0
) -> MemoryStore:
    """What one host has not processed, the next one does; nothing twice."""
    store = MemoryStore()
    with running(kind, settings, store, key) as host:
        until(lambda: host.processor.partitions)
        for number in range(first, 10):
            write(number)
        until(lambda: len(host.keys) >= 10)
    for number in range(10, 20):
        write(number)
    with running(kind, settings, store, key) as other:
        until(lambda: len(other.keys) >= 10)
    assert [str(each) for each in host.keys + other.keys] == [str(n) for n in range(20)]
    return store


def postgres(database: Database) -> dict[str, Any]:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    return {
        "connection": database.url,
        "slot": f"processor_{uuid.uuid4().hex[:12]}",
        "publication": "p",
        "create_publication": True,
    }


def test_postgresql_is_processed_and_acknowledged(database: Database) -> None:
    settings = postgres(database)

    def write(number: int) -> None:
        database.execute("INSERT INTO items VALUES (%s)", (number,))

    def confirmed() -> int:
        rows = database.execute(
            "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots"
            " WHERE slot_name = %s",
            (settings["slot"],),
        )
        return int(rows[0][0])

    store = continues("postgres", settings, "id", write)
    before = int(database.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")[0][0])
    with running("postgres", settings, store, "id") as host:
        until(lambda: host.processor.partitions)
        write(20)
        until(lambda: host.keys == [20])
        until(lambda: confirmed() > before)


def test_one_host_reads_postgresql_and_another_takes_over_and_ends_a_connection_that_is_left(
    database: Database,
) -> None:
    settings, store = postgres(database), MemoryStore()
    with (
        running("postgres", settings, store, "id", 2.0) as frozen,
        running("postgres", settings, store, "id", 2.0) as other,
    ):
        until(lambda: frozen.processor.partitions or other.processor.partitions)
        if other.processor.partitions:
            frozen, other = other, frozen
        database.execute("INSERT INTO items VALUES (0)")
        until(lambda: frozen.keys == [0])
        leases = frozen.processor.node._work.leases
        until(lambda: leases.readers)
        until(lambda: any("readers" in row.properties for row in store.list("t/")))
        assert other.processor.partitions == []
        leases.renew = lambda: None  # type: ignore[method-assign] # as a host that is cut off
        until(lambda: other.processor.partitions)
        database.execute("INSERT INTO items VALUES (1)")
        until(lambda: other.keys == [1])
        assert frozen.keys == [0]


def test_mongodb_is_processed(shop: Shop) -> None:
    settings = {"connection": shop.url, "database": shop.name}
    continues("mongodb", settings, "_id", lambda n: shop.db.items.insert_one({"_id": n}))


def test_dynamodb_is_processed() -> None:
    with Moto() as server, table_on(server) as table:
        settings: dict[str, Any] = {**table.given, "reads": 1000, "poll": 0.01}
        settings["start"] = "trim_horizon"
        continues("dynamodb", settings, "id", lambda n: table.put(str(n)))
