"""Sources of each kind for runs of a query: what is written to them has numbers from 1 on."""

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from penstock.feeds.postgres import PostgresSettings
from penstock.microbatch.options import feed_options
from penstock.model.settings import Settings
from tests.cosmos.reading import settings_of as cosmos_settings
from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer
from tests.dynamodb.server import settings_of as dynamodb_settings
from tests.mongo import Shop
from tests.mongodb.history import History
from tests.mongodb.server import ScriptedMongod
from tests.servers import Database
from tests.slots import drop_slots


class Written:
    """A source that a test writes to. `write` and `split` may be called from another thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers = itertools.count(1)

    def write(self, count: int) -> None:
        """So many changes more."""
        with self.lock:
            self._write(list(itertools.islice(self.numbers, count)))

    def _write(self, numbers: Sequence[int]) -> None:
        raise NotImplementedError

    def split(self) -> None:
        """A partition gets children, where it may."""

    def found(self, rows: Sequence[dict[str, Any]]) -> list[int]:
        """The numbers of changes, in the order in which they came."""
        return [int(row["document_id"]) for row in rows]

    @property
    def options(self) -> dict[str, str]:
        """Of a Spark source."""
        return {}


def _given(backend: str, settings: Settings) -> dict[str, str]:
    return {"backend": backend, "max_events": "100", "patience": "100ms", **feed_options(settings)}


class Table(Written):
    """A table of PostgreSQL, beside one that is not followed."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database
        database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int)")

    @property
    def options(self) -> dict[str, str]:
        return {
            "backend": "postgres", "connection": self.database.url, "slot": "runs",
            "publication": "runs", "create_publication": "true", "tables": "public.t",
            "max_events": "1000", "page_rows": "300", "patience": "100ms",
        }  # fmt: skip

    def _write(self, numbers: Sequence[int]) -> None:
        for first in range(0, len(numbers), 100):
            some = numbers[first : first + 100]
            self.database.execute(f"INSERT INTO t SELECT generate_series({some[0]}, {some[-1]})")

    def kept(self) -> int:
        """How many bytes of WAL the server still has to keep for the slot."""
        ((behind,),) = self.database.execute(
            "SELECT (pg_current_wal_flush_lsn() - confirmed_flush_lsn)::bigint"
            " FROM pg_replication_slots WHERE slot_name = 'runs'"
        )
        return int(behind)


class Shards(Written):
    """The same table in two databases, which are the sources of one backend."""

    def __init__(self, databases: Mapping[str, Database]) -> None:
        super().__init__()
        self.databases = databases
        for each in databases.values():
            each.execute("CREATE TABLE t (id int PRIMARY KEY)")

    @property
    def options(self) -> dict[str, str]:
        sources = [{"sid": sid, "connection": each.url} for sid, each in self.databases.items()]
        settings = {"name": "runs", "tables": "public.t", "sources": sources, "page_rows": 30}
        return _given("postgres", PostgresSettings.model_validate(settings))

    def _write(self, numbers: Sequence[int]) -> None:
        for number, each in enumerate(self.databases.values()):
            some = numbers[number :: len(self.databases)]
            each.execute("INSERT INTO t SELECT unnest(%s::int[])", (list(some),))

    def found(self, rows: Sequence[dict[str, Any]]) -> list[int]:
        return sorted(super().found(rows))


class Documents(Written):
    """A collection of the embedded MongoDB."""

    def __init__(self, shop: Shop) -> None:
        super().__init__()
        self.shop = shop

    @property
    def options(self) -> dict[str, str]:
        return _given("mongodb", self.shop.feed(page_rows=30).settings)

    def _write(self, numbers: Sequence[int]) -> None:
        self.shop.db["t"].insert_many([{"_id": number} for number in numbers])


class Events(Written):
    """The history of a scripted mongod, whose tokens have times."""

    def __init__(self, server: ScriptedMongod, history: History) -> None:
        super().__init__()
        self.server, self.history = server, history

    @property
    def options(self) -> dict[str, str]:
        return {
            "backend": "mongodb", "connection": self.server.url,
            "database": "shop", "page_rows": "30", "max_events": "100", "patience": "100ms",
        }  # fmt: skip

    def _write(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.history.insert(number)


class Items(Written):
    """Records of two shards of the scripted DynamoDB Streams, and of their children."""

    def __init__(self, server: StreamsServer) -> None:
        super().__init__()
        self.server = server
        server.page_of_records = 30
        self.stream = server.stream("users")
        self.shards = [self.stream.shard(), self.stream.shard()]

    @property
    def options(self) -> dict[str, str]:
        return _given("dynamodb", dynamodb_settings(self.server, reads=1000, poll=0.01))

    def _write(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            shard = self.shards[number % len(self.shards)]
            self.stream.put(shard, str(number), new={"n": number}, at=self.server.now)

    def split(self) -> None:
        with self.lock:
            self.shards += self.stream.split(self.shards.pop(0))

    def found(self, rows: Sequence[dict[str, Any]]) -> list[int]:
        return sorted(super().found(rows))


class Orders(Written):
    """A container of the scripted Cosmos DB."""

    def __init__(self, server: CosmosServer, mode: str) -> None:
        super().__init__()
        self.server, self.mode = server, mode
        self.container = server.container("shop", "orders")

    @property
    def options(self) -> dict[str, str]:
        return _given("cosmos", cosmos_settings(self.server, mode=self.mode, page_items=30))

    def _write(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.container.put({"id": str(number), "pk": str(number % 7)})

    def split(self) -> None:
        with self.lock:
            self.container.split()

    def found(self, rows: Sequence[dict[str, Any]]) -> list[int]:
        return sorted(int(orjson.loads(row["document_id"])[-1]) for row in rows)


def is_read(database: Database) -> bool:
    """Whether a slot of this database has a reader."""
    mine = "SELECT FROM pg_replication_slots WHERE active AND database = current_database()"
    return bool(database.execute(mine))


@contextmanager
def table_in(database: Database) -> Iterator[Table]:
    """A table, whose slots go at the end."""
    yield Table(database)
    drop_slots(database)


@contextmanager
def writing(write: Callable[[], None]) -> Iterator[None]:
    """Writes in another thread until the end."""
    stopped = threading.Event()

    def go_on() -> None:
        while not stopped.wait(0.005):
            write()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
