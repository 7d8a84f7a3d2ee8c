"""A mirror of MongoDB collections: snapshots while documents change, then the changes."""

import base64
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
from bson import Decimal128, Int64, ObjectId

from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.errors import SettingsError
from penstock.wire.changestream.values import CODEC, plain, typed
from tests.consumer.mirror.world import STREAM, World, _deadline, converges, sqlite_rows
from tests.mongo import Shop, shop_on
from tests.servers import Nats
from tests.waiting import until


class CollectionWorld(World):
    """`start` what publishes; `replica` makes a consumer."""

    def __init__(
        self,
        shop: Shop,
        nats: Nats,
        folder: Path,
        snapshot: Any = None,
        source: Any = None,
        **sink: Any,
    ) -> None:
        self.shop, self.nats, self.folder, self.slot = shop, nats, folder, PARTITION
        document = {
            "name": "shop", "state": str(folder / "state"),
            "backends": [{"name": "default", "type": "mongodb", "connection": shop.url,
                          "database": shop.name, **(source or {})}],
            "sink": {"type": "jetstream", "url": nats.url, "stream": STREAM, **sink},
            "snapshot": snapshot or {},
        }  # fmt: skip
        (folder / "state").mkdir(exist_ok=True)
        self._open(document)

    def _begin(self) -> None:
        begun = self.feed.begin()
        self.first = begun[PARTITION]
        self._store(begun)

    def published(self) -> None:
        mark = uuid.uuid4().hex
        self.shop.db.marks.insert_one({"_id": mark})
        assert self.pump is not None
        self.pump.until(mark)

    def same(self, target: str, collection: str, copy: str = "") -> None:
        """Asserts that the mirror has the collection's documents, by their keys."""
        found = self.shop.db.get_collection(collection, codec_options=CODEC).find()
        mine = {_text(typed(each["_id"])): _known(plain(each)) for each in found}
        theirs = documents(target, copy or collection)
        assert theirs.keys() == mine.keys()
        assert theirs == mine


def documents(target: str, table: str) -> dict[str, Any]:
    """The rows of a mirror: documents by the texts of their keys."""
    if target.startswith("sqlite"):
        rows = sqlite_rows(target, table)
        return {row["_id"]: orjson.loads(row["document"]) for row in rows}
    with psycopg.connect(target) as connection:
        found = connection.execute(f'SELECT "_id", document FROM "{table}"'.encode()).fetchall()
    return dict(found)


def _text(key: Any) -> str:
    # Larger ones are no integers of JSON readers, and not of MongoDB.
    is_whole = isinstance(key, float) and key.is_integer() and -(2**63) <= key < 2**64
    return orjson.dumps(int(key) if is_whole else key).decode()


def _known(document: Any) -> Any:
    """As JSON has it."""
    return orjson.loads(orjson.dumps(document, default=_base64))


def _base64(value: Any) -> Any:
    return base64.b64encode(value).decode()


KEYS: list[Any] = [
    1, 2.5, 3.0, 1e20, -1e19, 1.5e19, float("inf"), Int64(2**60), "1", "a", ObjectId(), {"a": 1},
    b"x", True, Decimal128("7.5"),
]  # fmt: skip


@pytest.fixture
def collections_of(
    mongo: str, own_nats: Callable[..., Nats], tmp_path: Path
) -> Iterator[Callable[..., CollectionWorld]]:
    with shop_on(mongo) as shop:
        made: list[CollectionWorld] = []

        def make(**sink: Any) -> CollectionWorld:
            made.append(CollectionWorld(shop, own_nats(), tmp_path, **sink))
            return made[-1]

        yield make
        for each in made:
            each.close()


@pytest.mark.parametrize(
    "sink",
    [
        {"encoding": "json"},
        {"encoding": "msgpack"},
        {"encoding": "arrow", "messages": "batch"},
        {"encoding": "json", "layout": "cloudevents"},
    ],
)
def test_documents_of_all_types_then_their_changes(
    collections_of: Callable[..., CollectionWorld], target: str, sink: Any
) -> None:
    world = collections_of(**sink)
    things = world.shop.db.things
    things.insert_many([{"_id": each, "v": {"raw": b"\0\xff", "n": [1, None]}} for each in KEYS])
    world.start()
    world.mirror(target, tables=["things"])
    world.same(target, "things")
    things.update_one({"_id": "1"}, {"$set": {"v.n": "text"}})
    things.replace_one({"_id": 1}, {"w": 1})
    things.delete_one({"_id": "a"})
    things.insert_one({"_id": "new", "document": 1})
    world.mirror(target, tables=["things"])
    world.same(target, "things")
    assert documents(target, "things")['"1"']["v"]["n"] == "text"


def test_each_collection_is_taken_once_by_itself(
    collections_of: Callable[..., CollectionWorld], tmp_path: Path
) -> None:
    """`start: snapshot`, and a mirror that finds nobody to ask."""
    world = collections_of(source={"start": "snapshot"})
    world.shop.db.things.insert_many([{"_id": n} for n in range(5)])
    world.start()
    subject = "init.meta.things"
    until(lambda: world.api.stream("INIT") is not None)
    until(lambda: world.api.last("INIT", subject) is not None)
    world.shop.db.things.insert_one({"_id": "later"})
    world.published()
    world.stop_service()
    target = f"sqlite:///{tmp_path}/m.db"
    world.mirror(target, tables=["things"])
    world.same(target, "things")


def test_an_update_of_a_document_that_is_gone_waits_for_its_deletion(
    collections_of: Callable[..., CollectionWorld], tmp_path: Path
) -> None:
    """The server looks a document up when it sends the change: the image is null then."""
    world, target = collections_of(), f"sqlite:///{tmp_path}/m.db"
    things = world.shop.db.things
    things.insert_many([{"_id": n} for n in range(3)])
    world.start()
    world.mirror(target, tables=["things"])
    world.stop_pump()
    things.update_one({"_id": 1}, {"$set": {"a": 1}})
    things.delete_one({"_id": 1})
    things.update_one({"_id": 2}, {"$set": {"a": 1}})
    things.delete_one({"_id": 2})
    things.insert_one({"_id": 2, "again": True})
    world.start_pump()
    world.mirror(target, tables=["things"])
    world.same(target, "things")
    assert set(documents(target, "things")) == {"0", "2"}


def test_a_collection_that_is_dropped_or_renamed(
    collections_of: Callable[..., CollectionWorld], tmp_path: Path
) -> None:
    world, target = collections_of(), f"sqlite:///{tmp_path}/m.db"
    db = world.shop.db
    for name in ("things", "others", "third"):
        db[name].insert_many([{"_id": f"{name}{n}"} for n in range(3)])
    world.start()
    names = ["things", "others", "third"]
    world.mirror(target, tables=names)
    db.things.drop()
    db.things.insert_one({"_id": "again"})
    db.others.rename("third", dropTarget=True)
    world.mirror(target, tables=names)
    assert set(documents(target, "things")) == {'"again"'}
    assert documents(target, "others") == {}
    world.same(target, "third")


def test_writes_while_it_is_read_converge(
    collections_of: Callable[..., CollectionWorld], tmp_path: Path
) -> None:
    """The chunks are of many moments, none of which is the meta's position."""
    world = collections_of(snapshot={"chunk_rows": 100, "slots": 2})
    target, things = f"sqlite:///{tmp_path}/m.db", world.shop.db.things
    things.insert_many([{"_id": n, "v": 0} for n in range(3000)])
    world.start()

    def write(over: threading.Event) -> None:
        """Updates, deletes and inserts, all over the collection."""
        rng, numbers = random.Random(7), count(1)
        while not over.is_set():
            key, number = {"_id": rng.randrange(3200)}, next(numbers)
            match rng.randrange(4):
                case 0:
                    things.delete_one(key)
                case 1:
                    things.replace_one(key, {"v": number, "new": True}, upsert=True)
                case _:
                    things.update_one(key, {"$set": {"v": number}, "$inc": {"n": 1}}, upsert=True)

    converges(
        world, target, "things", write, lambda: int(things.count_documents({"v": {"$gt": 0}}))
    )
    world.same(target, "things")


def test_a_layout_without_keys_is_refused(
    collections_of: Callable[..., CollectionWorld], tmp_path: Path
) -> None:
    world = collections_of(encoding="json", layout="debezium")
    world.shop.db.things.insert_one({"_id": 1})
    world.start()
    world.mirror(f"sqlite:///{tmp_path}/m.db", tables=["things"])
    world.shop.db.things.insert_one({"_id": 2})
    world.published()
    with (
        world.replica(f"sqlite:///{tmp_path}/m.db", tables=["things"]) as replica,
        pytest.raises(SettingsError, match="a message has no key"),
    ):
        replica.run(once=True, is_stopped=_deadline())
