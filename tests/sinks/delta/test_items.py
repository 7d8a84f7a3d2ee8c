"""Items of DynamoDB and Cosmos DB are in Delta tables as their sources have them."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

from penstock.model.errors import SettingsError
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
            {"type": "dynamodb", "poll": "20ms", **table.given}, "shop", table.name, ["id"],
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


def change(source: Source, now: dict[int, Any], steps: int) -> Counter[bool]:
    """Random writes; how many deleted an item or not. `now`: what is there, by key."""
    chance, done = random.Random(1), Counter[bool]()
    for number in range(steps):
        key = chance.randrange(12)
        gone = key in now and chance.random() < 0.3
        if gone:
            source.delete(key)
            del now[key]
        else:
            now[key] = {"n": number, "deep": {"a": [1, None, "é\n\\N"]}}
            source.put(key, now[key])
        done[gone] += 1
    return done


@pytest.mark.parametrize("source_of", [dynamodb, cosmos])
def test_a_table_has_the_items_of_its_source(source_of: Callable[[], Any], tmp_path: Path) -> None:
    now: dict[int, Any] = {}
    with source_of() as source, source.flow(tmp_path / "lake", None) as flow:
        lake = Lake(tmp_path / "lake", source.schema)
        change(source, now, 60)
        want = sorted(each["n"] for each in now.values())

        def found() -> list[int]:
            flow.check()
            rows = lake.rows(source.table, ["document"])
            return sorted(orjson.loads(text)["n"] for (text,) in rows)

        until(lambda: found() == want, 60, problem=lambda: (found(), want, flow.states()))
        assert len({*lake.rows(source.table, source.keys)}) == len(want)


@pytest.mark.parametrize("source_of", [dynamodb, cosmos])
def test_a_log_has_each_change_of_an_item(source_of: Callable[[], Any], tmp_path: Path) -> None:
    with source_of() as source, source.flow(tmp_path / "lake", {"type": "log"}) as flow:
        lake = Lake(tmp_path / "lake", source.schema)
        done = change(source, {}, 60)

        def found() -> Counter[bool]:
            flow.check()
            return Counter(kind == "DELETE" for (kind,) in lake.rows(source.table, ["_operation"]))

        until(lambda: found() == done, 60, problem=lambda: (found(), done, flow.states()))


def test_a_stream_without_new_images_is_refused(tmp_path: Path) -> None:
    with StreamsServer() as server, table_on(server, "KEYS_ONLY") as table:
        source = Source(
            {"type": "dynamodb", **table.given}, "shop", table.name, ["id"], print, print
        )
        flow = source.flow(tmp_path / "lake", None)
        with pytest.raises(SettingsError, match="have no documents"), flow:
            table.put("a")
            until(lambda: flow.check(), 60)
