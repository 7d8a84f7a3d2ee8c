"""Items of DynamoDB and Cosmos DB are in Delta tables as their sources have them."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree, rmtree
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
    """A source of items with an `id`. `backend`: its settings; `schema` and `table`: what it is in
    the lake. `put` takes the number of an item's key and its values; `divide` ends a partition,
    which has children; `forget` forgets changes."""

    backend: dict[str, Any]
    schema: str
    table: str
    keys: list[str]
    put: Callable[[int, dict[str, Any]], None]
    delete: Callable[[int], None]
    divide: Callable[[], Any] = print
    forget: Callable[[], Any] = print

    def flow(self, folder: Path, options: dict[str, Any] | None, **more: Any) -> Kept:
        given = {"initial": False, **self.backend, **more}
        return Kept({}, folder, {self.table: options}, folder.parent / "p.db", **given)


@contextmanager
def dynamodb() -> Iterator[Source]:
    with StreamsServer() as server, table_on(server) as table:
        yield Source(
            {"type": "dynamodb", "poll": "20ms", "start": "latest", **table.given},
            "shop", table.name, ["id"],
            lambda key, values: table.put(f"k{key}", **{n: typed(v) for n, v in values.items()}),
            lambda key: table.delete(f"k{key}"), lambda: _roll(server),
            lambda: _forget(server),
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
            orders.split,
        )  # fmt: skip


def _roll(server: StreamsServer) -> None:
    server.rolls = 3600.0
    server.advance(3601)


def _forget(server: StreamsServer) -> None:
    server.ages = True
    server.advance(25 * 3600)


def _put(orders: StoredContainer, item: dict[str, Any], how: str = "upsert") -> None:
    orders.put(item, how=how)


def _pk(key: int) -> Any:
    return [key % 3, str(key % 3), None, True][key % 4]


def change(
    source: Source, now: dict[int, Any], steps: int, seed: int = 1, keys: int = 12
) -> Counter[bool]:
    """Random writes; how many deleted an item or not. `now`: what is there, by key."""
    chance, done = random.Random(seed), Counter[bool]()
    for number in range(steps):
        key = chance.randrange(keys)
        gone = key in now and chance.random() < 0.3
        if gone:
            source.delete(key)
            del now[key]
        else:
            now[key] = {"n": number, "deep": {"a": [1, None, "é\n\\N"]}}
            source.put(key, now[key])
        done[gone] += 1
    return done


def same(flow: Kept, lake: Lake, source: Source, now: dict[int, Any]) -> None:
    """Waits until the table has these items, each once."""
    want = sorted(each["n"] for each in now.values())

    def found() -> list[int]:
        flow.check()
        rows = lake.rows(source.table, ["document"])
        return sorted(orjson.loads(text)["n"] for (text,) in rows)

    until(lambda: found() == want, 60, problem=lambda: (found(), want, flow.states()))
    assert len({*lake.rows(source.table, source.keys)}) == len(want)


@pytest.mark.parametrize("source_of", [dynamodb, cosmos])
def test_a_table_has_the_items_of_its_source(source_of: Callable[[], Any], tmp_path: Path) -> None:
    now: dict[int, Any] = {}
    with source_of() as source, source.flow(tmp_path / "lake", None) as flow:
        lake = Lake(tmp_path / "lake", source.schema)
        change(source, now, 60)
        same(flow, lake, source, now)


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


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("source_of", [dynamodb, cosmos])
def test_items_of_before_are_loaded_while_they_change(
    source_of: Callable[[], Any], seed: int, tmp_path: Path
) -> None:
    now: dict[int, Any] = {}
    with source_of() as source:
        change(source, now, 40, seed)
        flow = source.flow(tmp_path / "lake", None, initial=True)
        lake = Lake(tmp_path / "lake", source.schema)
        with ThreadPoolExecutor(1) as pool, flow:
            changing = pool.submit(change, source, now, 150, seed + 10)
            flow.loaded()
            changing.result()
            same(flow, lake, source, now)
            change(source, now, 40, seed + 20)
            same(flow, lake, source, now)


@pytest.mark.parametrize("source_of", [dynamodb, cosmos])
def test_a_log_begins_with_the_items_of_before_and_anew_by_a_reload(
    source_of: Callable[[], Any], tmp_path: Path
) -> None:
    now: dict[int, Any] = {}
    names = ["_sequence", "_operation", "document"]

    def is_whole(flow: Kept, source: Source, loaded: int, seed: int) -> bool:
        """Changes some; whether all changes after the loaded items come to what there is."""
        done, lake = change(source, now, 40, seed).total(), Lake(tmp_path / "lake", source.schema)
        until(lambda: flow.check() or len(lake.rows(source.table)) == loaded + done, 60)
        rows = lake.rows(source.table, [*names, *source.keys])
        assert Counter(row[1] for row in rows)["READ"] == loaded
        last = {row[3:]: row for row in rows}  # of each key, in the order of `_sequence`
        there = [orjson.loads(row[2])["n"] for row in last.values() if row[1] != "DELETE"]
        return sorted(there) == sorted(each["n"] for each in now.values())

    with source_of() as source:
        change(source, now, 40)
        with source.flow(tmp_path / "lake", {"type": "log"}, initial=True) as flow:
            flow.loaded()
            assert is_whole(flow, source, len(now), 2)
            flow.reload(source.table)
            flow.loaded()
            assert is_whole(flow, source, len(now), 3)


@pytest.mark.parametrize("source_of", [dynamodb, cosmos])
def test_a_table_that_went_back_says_so_and_is_loaded_by_a_reload(
    source_of: Callable[[], Any], tmp_path: Path
) -> None:
    now: dict[int, Any] = {}
    with source_of() as source, source.flow(tmp_path / "lake", None) as flow:
        lake = Lake(tmp_path / "lake", source.schema)
        change(source, now, 20)
        same(flow, lake, source, now)
        place = lake.folder / source.schema / source.table
        copytree(place, tmp_path / "kept")
        change(source, now, 20, 2)
        same(flow, lake, source, now)
        rmtree(place)
        (tmp_path / "kept").rename(place)
        change(source, now, 20, 3)
        until(lambda: flow.check() or "waiting" in dict(flow.states()), 60, problem=flow.states)
        assert any("has less than it had" in error for _, error in flow.states())
        flow.reload(source.table)
        flow.loaded()
        same(flow, lake, source, now)
        change(source, now, 20, 4)
        same(flow, lake, source, now)


@pytest.mark.parametrize("source_of", [dynamodb, cosmos])
def test_a_table_is_loaded_after_lost_changes(source_of: Callable[[], Any], tmp_path: Path) -> None:
    now: dict[int, Any] = {}
    with source_of() as source, source.flow(tmp_path / "lake", None, initial=True) as flow:
        lake = Lake(tmp_path / "lake", source.schema)
        flow.loaded()
        change(source, now, 20)
        same(flow, lake, source, now)
        lake.table(source.table).delete()  # as if it had never had these changes
        for partition in flow.bookmarks("shop"):
            flow._sink.load_after("shop", partition, "lost")
        until(lambda: all(
            flow._sink.load_after("shop", name, "lost") for name in flow.bookmarks("shop")
        ), 60, problem=flow.states)  # fmt: skip
        flow.loaded()
        same(flow, lake, source, now)
        change(source, now, 20, 2)
        same(flow, lake, source, now)


def test_a_table_is_loaded_where_its_source_forgot_changes(tmp_path: Path) -> None:
    now: dict[int, Any] = {}
    with dynamodb() as source:
        lake, options = Lake(tmp_path / "lake", source.schema), {"on_gap": "resnapshot"}
        with source.flow(tmp_path / "lake", None, initial=True, **options) as flow:
            flow.loaded()
            change(source, now, 20)
            same(flow, lake, source, now)
        change(source, now, 40, 2)
        source.forget()
        with source.flow(tmp_path / "lake", None, initial=True, **options) as flow:
            until(lambda: flow.check() or flow.positions().gaps.rows(), 60)
            same(flow, lake, source, now)
            flow.loaded()
            until(
                lambda: not any(each["stale"] for each in flow.positions().gaps.rows().values()), 60
            )


def test_a_clone_of_a_source_that_sends_no_deletes_is_warned_of(tmp_path: Path) -> None:
    with cosmos() as source:
        for mode, kind, want in [
            ("latest_version", "clone", {"tables.deletes-unsent"}),
            ("latest_version", "append", set[str]()),
            ("all_versions_and_deletes", "clone", set[str]()),
        ]:
            flow = source.flow(tmp_path / "lake", {"type": kind}, mode=mode)
            assert {each.code for each in flow.findings()} == want
