"""The same run over collections of MongoDB: chunks, the meta, and what ends it early."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from penstock.config import SnapshotSettings
from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.position import Bookmark, Bookmarks
from penstock.nats.buckets import Bucket
from penstock.sinks.jetstream import JetStreamSettings
from penstock.snapshots.job import Job
from penstock.snapshots.store import SnapshotRun
from tests.mongo import REAL, Shop, shop_on
from tests.servers import Nats
from tests.snapshots.conftest import StatedPipeline, World, read
from tests.snapshots.gate import Gate

FAIL_FIND = {"failCommands": ["find"], "closeConnection": True}


class CollectionWorld(World):
    """Runs over the collections of a database, and what they stored."""

    def __init__(self, shop: Shop, nats: Nats) -> None:
        self.shop, self.feed = shop, shop.feed()
        self.settings = JetStreamSettings(url=nats.url, encoding="json", stream="NONE")
        self.known: Bookmarks = self.feed.begin()
        self.reconnect()

    def job(self, table: str, **more: Any) -> Job:
        pipeline = StatedPipeline(known=lambda: self.known)
        return super().job(table, schema=self.shop.name, pipeline=pipeline, **more)

    def prepared(self, **settings: Any) -> SnapshotRun:
        return SnapshotRun(self.job(self.shop.name), self.sink, SnapshotSettings(**settings))

    def keys(self, run: SnapshotRun) -> list[int]:
        return [key["_id"] for one in self.chunks(run) for key in read(one)["keys"]]


@pytest.fixture
def runs(mongo: str, nats: Nats) -> Iterator[CollectionWorld]:
    with shop_on(mongo) as shop:
        made = CollectionWorld(shop, nats)
        shop.db[shop.name].insert_many([{"_id": n, "v": "x" * 50} for n in range(4000)])
        yield made
        made.close()


def test_chunks_have_keys_and_the_meta_says_that_it_is_not_exact(runs: CollectionWorld) -> None:
    name = runs.shop.name
    run = runs.run(name, chunk_rows=300)
    keys, meta = runs.keys(run), runs.meta(name)
    assert [row["_id"] for one in runs.chunks(run) for row in read(one)["data"]] == keys
    assert sorted(keys) == list(range(4000))
    assert (meta["exact"], meta["columns"], meta["row_count"]) == (False, ["_id"], 4000)
    assert meta["position"] == f"{meta['lsn']}:0"
    found = Bucket(runs.connection, "schemas").get(name)
    assert found is not None
    document = orjson.loads(found.value)
    assert (document["documents"], document["version"]) == (True, meta["schema_version"])


@pytest.mark.skipif(bool(REAL), reason="needs a server with fail points")
def test_a_lost_connection_is_gone_on_after_with_what_is_missing(
    runs: CollectionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, admin = Gate(monkeypatch, "init.snap.", 22), runs.shop.client.admin
    run = runs.prepared(chunk_rows=50, slots=1)
    # The driver tries a read twice.
    fails = {"configureFailPoint": "failCommand", "mode": {"times": 2}, "data": FAIL_FIND}
    gate.during(run.run, lambda: admin.command(fails))
    assert run.progress.snapshots == 2
    meta = runs.meta(runs.shop.name)
    assert sorted(runs.keys(run)) == list(range(4000))  # no range was read twice
    places = [chunk["position"] for chunk in sorted(meta["chunks"], key=lambda c: c["sequence"])]
    assert meta["position"] == places[0] <= places[-1]


def test_another_history_in_the_middle_ends_it(
    runs: CollectionWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as another cluster: positions of before mean nothing after."""
    gate, run = Gate(monkeypatch, "init.snap.", 3), runs.prepared(chunk_rows=50)

    def change_history() -> None:
        mark = {**(runs.known[PARTITION].mark or {}), "era": "e0001-"}
        runs.known = {PARTITION: Bookmark(mark=mark)}

    gate.during(run.run, change_history)
    assert run.progress.snapshots >= 2
    assert runs.meta(runs.shop.name)["position"].startswith("e0001-")
    assert sorted(runs.keys(run)) == list(range(4000))
