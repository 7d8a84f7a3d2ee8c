"""The same run over collections of MongoDB: chunks, the meta, and what ends it early."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from penstock.config import SnapshotSettings
from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.position import Bookmark, Bookmarks
from penstock.nats.api import JetStream
from penstock.nats.buckets import Bucket
from penstock.nats.connection import Connection
from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.server import JetStreamServer
from penstock.snapshots.job import Job
from penstock.snapshots.run import SnapshotRun
from tests.mongo import REAL, Shop, mongodb, shop_on
from tests.servers import Nats
from tests.snapshots.conftest import read
from tests.snapshots.gate import Gate
from tests.snapshots.pipeline import StatedPipeline

pytestmark = pytest.mark.live

FAIL_FIND = {"failCommands": ["find"], "closeConnection": True}


@pytest.fixture(scope="module")
def mongo() -> Iterator[str]:
    with mongodb() as url:
        yield url


class CollectionRuns:
    """Runs over the collections of a database, and what they stored."""

    def __init__(self, shop: Shop, nats: Nats) -> None:
        self.shop, self.feed = shop, shop.feed()
        self.settings = JetStreamSettings(url=nats.url, encoding="json", stream="NONE")
        self.known: Bookmarks = self.feed.begin()
        self.connection = Connection(self.settings)
        self.connection.open()

    def run(self, collection: str, **settings: Any) -> SnapshotRun:
        job = Job(
            snapshot_id=f"snap-{self.shop.name}", backend="shop", feed=self.feed,
            pipeline=StatedPipeline(known=lambda: self.known), schema=self.shop.name,
            table=collection, name=(collection,),
        )  # fmt: skip
        return SnapshotRun(job, JetStreamServer(self.settings), SnapshotSettings(**settings))

    def stored(self, subject: str) -> list[Any]:
        api, found, sequence = JetStream(self.connection), [], 0
        while message := api.next("INIT", subject, sequence + 1):
            sequence = message.sequence
            found.append(message)
        return found

    def chunks(self, run: SnapshotRun) -> list[dict[str, Any]]:
        subject = f"init.snap.{'.'.join(run.job.name)}.{run.job.snapshot_id}.>"
        return [read(one) for one in self.stored(subject)]

    def meta(self, run: SnapshotRun) -> dict[str, Any]:
        return read(self.stored(f"init.meta.{'.'.join(run.job.name)}")[-1])


@pytest.fixture
def runs(mongo: str, nats: Nats) -> Iterator[CollectionRuns]:
    with shop_on(mongo) as shop:
        made = CollectionRuns(shop, nats)
        shop.db[shop.name].insert_many([{"_id": n, "v": "x" * 50} for n in range(4000)])
        yield made
        made.connection.close()


def test_chunks_have_keys_and_the_meta_says_that_it_is_not_exact(runs: CollectionRuns) -> None:
    name = runs.shop.name
    run = runs.run(name, chunk_rows=300)
    run.run()
    chunks, meta = runs.chunks(run), runs.meta(run)
    assert [row["_id"] for body in chunks for row in body["data"]] != []
    keys = [key["_id"] for body in chunks for key in body["keys"]]
    assert [row["_id"] for body in chunks for row in body["data"]] == keys
    assert sorted(keys) == list(range(4000))
    assert (meta["exact"], meta["columns"], meta["row_count"]) == (False, ["_id"], 4000)
    assert meta["position"] == f"{meta['lsn']}:0"
    found = Bucket(runs.connection, "schemas").get(name)
    assert found is not None
    document = orjson.loads(found.value)
    assert (document["documents"], document["version"]) == (True, meta["schema_version"])


def test_an_empty_collection_has_a_meta_without_chunks(runs: CollectionRuns) -> None:
    runs.shop.db.create_collection("empty")
    run = runs.run("empty")
    run.run()
    meta = runs.meta(run)
    assert (meta["batch_count"], meta["row_count"], meta["chunks"]) == (0, 0, [])


@pytest.mark.skipif(bool(REAL), reason="needs a server with fail points")
def test_a_lost_connection_is_gone_on_after_with_what_is_missing(
    runs: CollectionRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, name, admin = Gate(monkeypatch, "init.snap.", 22), runs.shop.name, runs.shop.client.admin
    run = runs.run(name, chunk_rows=50, slots=1)
    # The driver tries a read twice.
    fails = {"configureFailPoint": "failCommand", "mode": {"times": 2}, "data": FAIL_FIND}
    gate.during(run.run, lambda: admin.command(fails))
    assert run.progress.snapshots == 2
    meta = runs.meta(run)
    keys = [key["_id"] for body in runs.chunks(run) for key in body["keys"]]
    assert sorted(keys) == list(range(4000))  # no range was read twice
    places = [chunk["position"] for chunk in sorted(meta["chunks"], key=lambda c: c["sequence"])]
    assert meta["position"] == places[0] <= places[-1]


def test_another_history_in_the_middle_ends_it(
    runs: CollectionRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as another cluster: positions of before mean nothing after."""
    gate, name = Gate(monkeypatch, "init.snap.", 3), runs.shop.name
    run = runs.run(name, chunk_rows=50)

    def change_history() -> None:
        mark = {**(runs.known[PARTITION].mark or {}), "era": "e0001-"}
        runs.known = {PARTITION: Bookmark(mark=mark)}

    gate.during(run.run, change_history)
    assert run.progress.snapshots >= 2
    assert runs.meta(run)["position"].startswith("e0001-")
    keys = [key["_id"] for body in runs.chunks(run) for key in body["keys"]]
    assert sorted(keys) == list(range(4000))
