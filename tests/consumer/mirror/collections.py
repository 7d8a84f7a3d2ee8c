"""The same pipeline over a database of MongoDB, and its documents as a mirror has them."""

import base64
import uuid
from pathlib import Path
from typing import Any

import orjson
import psycopg

from penstock.feeds.mongodb.feed import PARTITION
from penstock.wire.changestream.values import CODEC, plain, typed
from tests.consumer.mirror.world import STREAM, World, sqlite_rows
from tests.mongo import Shop
from tests.servers import Nats


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
