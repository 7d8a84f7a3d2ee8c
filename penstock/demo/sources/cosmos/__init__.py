"""Cosmos DB: its embedded stand-in, and a shop whose items have every type of JSON."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from azure.cosmos import CosmosClient, PartitionKey

from penstock.demo.cosmos.embedded import EmbeddedCosmos
from penstock.demo.ledger import Key, Ledger
from penstock.demo.sources import DemoSource
from penstock.demo.sources.cosmos.shop import CONTAINER, KEYS, CosmosWriter
from penstock.demo.verdict import TableRows
from penstock.demo.workload import Writer

_DATABASE = "shop"


class CosmosDemo(DemoSource):
    """Cosmos DB's stand-in."""

    title = "Cosmos DB's stand-in"
    notice = (
        "The database is a server of penstock's own, a stand-in for Azure Cosmos DB: it speaks the"
        " part of its protocol that the change feed needs, keeps everything in memory, and is not"
        " Cosmos DB."
    )
    keys = KEYS
    backend: Mapping[str, Any] = {
        "type": "cosmos",
        "endpoint": "${COSMOS_ENDPOINT}",
        "key": "${COSMOS_KEY}",
        "database": _DATABASE,
        "container": CONTAINER,
        "mode": "all_versions_and_deletes",
        "poll": "100ms",
    }
    # With the range, so that each is delivered exactly once.
    subject = "cdc.{source_partition}.{collection}.{operation}"

    _server: EmbeddedCosmos

    def __init__(self) -> None:
        self._server = EmbeddedCosmos()

    def set_up(self) -> None:
        """The database and the container."""
        database = self._client().create_database(_DATABASE)
        database.create_container(CONTAINER, partition_key=PartitionKey(path="/customer"))

    @property
    def environment(self) -> Mapping[str, str]:
        return {"COSMOS_ENDPOINT": self._server.url, "COSMOS_KEY": self._server.key}

    def writer(self, ledger: Ledger, rate: float) -> Callable[[], AbstractContextManager[Writer]]:
        return CosmosWriter(self._container(), ledger).connected

    def tables(self) -> Mapping[str, TableRows]:
        rows: dict[Key, dict[str, Any]] = {
            (item["customer"], item["id"]): {
                name: value for name, value in item.items() if not name.startswith("_")
            }
            for item in self._container().read_all_items()
        }
        return {CONTAINER: rows}

    def hints(self) -> Sequence[str]:
        return (f"CosmosClient({self._server.url!r}, credential=...)  # any client of the SDK",)

    def _client(self) -> CosmosClient:
        return CosmosClient(self._server.url, credential=self._server.key)

    def _container(self) -> Any:
        return self._client().get_database_client(_DATABASE).get_container_client(CONTAINER)


DEMO = CosmosDemo
