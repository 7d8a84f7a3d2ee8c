"""Items of DynamoDB and Cosmos DB are in Delta tables as their sources have them."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from tests.cosmos.container import StoredContainer
from tests.cosmos.server import CosmosServer
from tests.dynamodb.endpoints import table_on
from tests.dynamodb.server import StreamsServer
from tests.dynamodb.streams import typed
from tests.sinks.delta.lake import Lake
from tests.sinks.tables.kept import Kept
from tests.waiting import until


class Source(NamedTuple):
    """A source of items with an `id`. `backend`: its settings; `lake`: the schema and the name of
    its table there. `put` takes the number of an item's key and its values."""

    backend: dict[str, Any]
    schema: str
    table: str
    keys: list[str]
    put: Callable[[int, dict[str, Any]], None]
    delete: Callable[[int], None]

    def flow(self, folder: Path, options: dict[str, Any] | None, **more: Any) -> Kept:
        given = {"initial": False, **self.backend, **more}
        return Kept({}, folder, {self.table: options}, folder.parent / "p.db", **given)


@contextmanager
def dynamodb() -> Iterator[Source]:
    with StreamsServer() as server, table_on(server) as table:
        yield Source(
            {"type": "dynamodb", "poll": "20ms", "start": "latest", **table.given}, "shop", table.name, ["id"],
            lambda key, values: table.put(f"k{key}", **{n: typed(v) for n, v in values.items()}),
            lambda key: table.delete(f"k{key}"),
        )  # fmt: skip


@contextmanager
def cosmos() -> Iterator[Source]:
    with CosmosServer() as server:
        orders = server.container("shop", "orders")
        backend = {
            "type": "cosmos", "endpoint": server.url, "key": server.key, "database": "shop",
            "container": "orders", "poll": "20ms", "mode": "all_versions_and_deletes",
        }  # fmt: skip
        yield Source(
            backend, "shop", "orders", ["pk", "id"],
            lambda key, values: _put(orders, {"id": f"k{key}", "pk": _pk(key), **values}),
            lambda key: _put(orders, {"id": f"k{key}", "pk": _pk(key)}, how="delete"),
        )  # fmt: skip


def _put(orders: StoredContainer, item: dict[str, Any], how: str = "upsert") -> None:
    orders.put(item, how=how)


def _pk(key: int) -> Any:
    return [key % 3, str(key % 3), None, True][key % 4]


@pytest.mark.parametrize("source_of", [dynamodb, cosmos])
def test_a_table_has_the_items_of_its_source_and_a_log_each_change(
    source_of: Callable[[], Any], tmp_path: Path
) -> None:
    folder, chance = tmp_path / "lake", random.Random(1)
    now: dict[int, Any] = {}
    done = Counter[str]()

    def change(source: Source, steps: int) -> None:
        for number in range(steps):
            key = chance.randrange(12)
            if key in now and chance.random() < 0.3:
                source.delete(key)
                del now[key]
                done["gone"] += 1
            else:
                now[key] = {"n": number, "deep": {"a": [1, None, "é\n\\N"]}}
                source.put(key, now[key])
                done["there"] += 1

    with source_of() as source:
        lake = Lake(folder, source.schema)
        for options in (None, {"type": "log"}):
            own = folder if options is None else folder / "log"
            lake = Lake(own, source.schema)
            now.clear()
            done.clear()
            with source.flow(own, options) as flow:

                def found() -> Any:
                    flow.check()  # noqa: B023
                    rows = lake.rows(source.table, ["document"])  # noqa: B023
                    if options is None:  # noqa: B023
                        return sorted(orjson.loads(text)["n"] for (text,) in rows)
                    return len(rows)

                change(source, 60)
                want = sorted(each["n"] for each in now.values())
                until(lambda: found() == (want if options is None else done.total()), 60,
                      problem=lambda: (found(), want, flow.states()))  # noqa: B023 # fmt: skip
            for key in [*now]:
                source.delete(key)
        rows = lake.rows(source.table, ["_sequence", *source.keys, "_operation", "document"])
        assert Counter(row[-2] == "DELETE" for row in rows)[True] == done["gone"]
