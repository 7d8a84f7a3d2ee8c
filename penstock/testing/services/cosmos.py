"""Azure Cosmos DB (API for NoSQL): a scratch database with containers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import count
from typing import Any
from uuid import uuid4

from azure.cosmos import CosmosClient, DatabaseProxy, PartitionKey
from azure.cosmos.exceptions import CosmosResourceNotFoundError

from penstock.feeds import Feed, GapPolicy
from penstock.leases.cosmos import parts_of_cosmos
from penstock.model.errors import SettingsError
from penstock.process.plugins import driver
from penstock.stream.opening import feed_of
from penstock.testing.claims import NotTried
from penstock.testing.losses import LostHistory
from penstock.testing.services import Loss, SourceService

_KEY = PartitionKey(path="/pk")


class CosmosService(SourceService):
    """See above. The feed reads the latest version of each item."""

    kind = "Cosmos DB"
    drivers = ("azure-cosmos",)
    makes = "the database {}"
    stays = "a split takes more than 10,000 request units a second, and hours"
    needs = "the account's key, which may make databases"

    def __init__(self, url: str, given: Mapping[str, str]) -> None:
        super().__init__(url, given)
        base, mark, query = url.partition("?")
        try:
            found = parts_of_cosmos(f"{base.rstrip('/')}/{self.name}/one{mark}{query}")
        except SettingsError:
            raise SettingsError(
                "the URL names no account of Cosmos DB", "cli.prove-url",
                hint="write cosmos://:KEY@ACCOUNT.documents.azure.com:443, KEY percent-encoded",
            ) from None  # fmt: skip
        self._endpoint, self._key = found[:2]
        self.price = "" if self._endpoint.startswith("http://") else (
            "It makes containers of 400 request units a second, which are billed for an hour:"
            " about 0.10 USD, or nothing in a free tier."
        )  # fmt: skip
        self._numbers = count(1)

    @cached_property
    def _client(self) -> CosmosClient:
        key = self._key or driver("azure.identity").DefaultAzureCredential()
        return CosmosClient(self._endpoint, credential=key)

    @property
    def _database(self) -> DatabaseProxy:
        return self._client.get_database_client(self.name)

    def make(self) -> None:
        self._client.create_database(self.name)
        self._database.create_container("one", partition_key=_KEY)

    def version(self) -> str:
        heard = dict[str, Any]()
        self._client.get_database_client(self.name).read(
            response_hook=lambda headers, _: heard.update(headers)
        )
        return str(heard.get("x-ms-serviceversion", ""))

    def remove(self) -> None:
        with suppress(CosmosResourceNotFoundError):
            self._client.delete_database(self.name)

    def reader(self, policy: GapPolicy = "fail", container: str = "one") -> Feed:
        login = {"key": self._key} if self._key else {}
        return feed_of("cosmos", {
            "name": "prove", "endpoint": self._endpoint, **login, "database": self.name,
            "container": container, "page_items": 4, "poll": 0.1, "on_gap": policy,
        })  # fmt: skip

    def _put(self, ids: Sequence[str], container: str = "one", **more: Any) -> None:
        found = self._database.get_container_client(container)
        for each in ids:
            found.upsert_item({"id": each, "pk": each[-1], **more})

    def insert(self, ids: Sequence[str]) -> None:
        self._put(ids)

    def workload(self) -> Sequence[tuple[str, str]]:
        first = [f"a{n:02}" for n in range(24)]
        self._put(first)
        self._put(first[:4], text="y")  # what they were before is superseded
        self._put(["b"], text="long " * 2000)
        return [(each, "REPLACE") for each in (*first, "b")]

    def _stopping(self, container: str, policy: GapPolicy) -> Feed:
        if policy != "fail":
            raise NotTried("places of another container cannot be compared: nothing goes on")
        return self.reader(container=container)

    @contextmanager
    def lost(self) -> Iterator[LostHistory]:
        """A container that is deleted and made again."""
        name = f"lost{next(self._numbers)}"
        self._database.create_container(name, partition_key=_KEY)
        try:
            ((partition, begun),) = self.reader(container=name).begin("now").items()
            self._put([uuid4().hex for _ in range(3)], name)
            self._database.delete_container(name)
            self._database.create_container(name, partition_key=_KEY)
            causes = ["container_replaced"]
            yield Loss(partial(self._stopping, name), partition, begun, causes, self.insert)
        finally:
            self._database.delete_container(name)


build = CosmosService
