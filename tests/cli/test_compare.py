"""`penstock compare`: a stream against the table or collection that it comes from."""

import json
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import boto3
import pymongo
import pytest
import yaml
from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId
from click.testing import CliRunner, Result

from penstock import cli
from penstock.config import load_pipeline
from penstock.feeds import Following
from penstock.sinks import ignore
from tests.dynamodb.endpoints import WHOLE, Given
from tests.mongo import Shop
from tests.mongodb.history import History
from tests.mongodb.server import ScriptedMongod
from tests.servers import Database, Moto, Nats, Secantus

pytestmark = pytest.mark.live


def pipeline_file(
    folder: Path, backend: dict[str, Any], nats: Nats, stream: str, **more: str
) -> Path:
    file = folder / "pipeline.yaml"
    subject = f"{stream.lower()}.{{collection}}.{{operation}}"
    sink = {"type": "jetstream", "url": nats.url, "stream": stream, "subject": subject}
    sink |= more
    document = {"name": "shop", "state": str(folder), "backends": [backend], "sink": sink}
    file.write_text(yaml.safe_dump(document))
    return file


# Ids of several types: each has one text, whatever the layout has of it.
IDS = [Int64(2**60), 5, Binary.from_uuid(uuid.uuid4()), {"a": 1, "b": ObjectId()}, "x", 7.5]


class Delivery:
    """A feed and a sink of a pipeline file, without the service between them."""

    def __init__(self, file: Path) -> None:
        pipeline = load_pipeline(file)
        self._feed = pipeline.backends[0].feed()
        self._sink = pipeline.sink.sink()
        self._decoder = self._feed.decoder("json")
        begun = self._feed.begin().items()
        ((partition, bookmark),) = ((name, each) for name, each in begun if not each.ended)
        self._following: Following = self._feed.follow(partition, bookmark)

    def deliver(self, changes: int) -> None:
        """The next so many changes."""
        deadline = time.monotonic() + 60
        while changes > 0:
            assert time.monotonic() < deadline
            for page in self._following.read(0.5):
                self._sink.write(list(self._decoder.decode(page)), ignore)
                changes -= page.count

    def close(self) -> None:
        self._following.close()


def compare(file: Path, *more: str) -> Result:
    return CliRunner().invoke(cli.main, ["compare", str(file), *more])


@pytest.mark.parametrize("layout", ["penstock", "debezium"])
def test_a_table_and_its_stream(
    layout: str, database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE items (id int, part uuid, price numeric, at timestamptz, note text,"
        ' doc jsonb, "for" interval, PRIMARY KEY (id, part));'
        " CREATE PUBLICATION pub FOR TABLE items"
    )
    slot = f"slot_{database.name}"
    backend = {"type": "postgres", "connection": database.url, "slot": slot, "publication": "pub"}
    shape = {} if layout == "penstock" else {"layout": layout, "encoding": "json"}
    file = pipeline_file(tmp_path, backend, nats, stream, **shape)
    delivery = Delivery(file)
    try:
        database.execute(
            "INSERT INTO items SELECT n, gen_random_uuid(), n / 7.0, now(), repeat('é', n),"
            " CASE n % 4 WHEN 0 THEN NULL WHEN 1 THEN 'null' WHEN 2 THEN '\"x\"'"
            " ELSE jsonb_build_object('n', n, 'a', '[1.5, {}]'::jsonb) END, n * interval '1 hour'"
            " FROM generate_series(1, 300) n"
        )
        database.execute("UPDATE items SET id = id + 1000 WHERE id <= 10")
        database.execute("DELETE FROM items WHERE id BETWEEN 11 AND 20")
        delivery.deliver(320)
        found = compare(file, "items", "--all", "--json")
        report = json.loads(found.output)
        assert datetime.fromisoformat(report.pop("since")) <= datetime.now(UTC)
        assert report == {
            "collection": "public.items", "changes": 320, "stream_count": 290,
            "source_count": 290, "compared": 290, "differences": {}, "same": True,
            "older": 0, "is_proven": True,
        }  # fmt: skip
        assert found.exit_code == 0
        assert compare(file, "public.items", "--sample", "20").exit_code == 0

        database.execute("UPDATE items SET note = 'other', price = 0 WHERE id = 100")
        database.execute("DELETE FROM items WHERE id = 101")
        found = compare(file, "items", "--all", "--wait", "0.1s")
        assert found.exit_code == 1
        assert "289 documents in the source, 290 in the stream" in found.output
        assert "price, note" in found.output
        assert "missing in the source" in found.output
        delivery.deliver(2)
        assert compare(file, "items", "--all").exit_code == 0
    finally:
        delivery.close()
    missing = compare(file, "nothing")
    assert missing.exit_code == 2
    assert "primary key" in missing.output


def test_rows_that_are_older_than_the_stream_are_no_difference(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, note text);"
        " CREATE PUBLICATION pub FOR TABLE items;"
        " INSERT INTO items SELECT n, 'old' FROM generate_series(1, 500) n"
    )
    slot = f"slot_{database.name}"
    backend = {"type": "postgres", "connection": database.url, "slot": slot, "publication": "pub"}
    file = pipeline_file(tmp_path, backend, nats, stream)
    delivery = Delivery(file)
    try:
        database.execute("INSERT INTO items SELECT n, 'new' FROM generate_series(501, 510) n")
        database.execute("UPDATE items SET note = 'changed' WHERE id <= 5")
        database.execute("DELETE FROM items WHERE id BETWEEN 6 AND 8")
        delivery.deliver(18)
        found = compare(file, "items", "--all")
        assert found.exit_code == 3, found.output
        assert "507 documents in the source, 15 in the stream (18 changes)" in found.output
        assert "the stream begins at 20" in found.output
        assert "492 documents are older, and were not compared" in found.output
        assert "missing in the stream" not in found.output
        report = json.loads(compare(file, "items", "--sample", "50", "--json").output)
        assert (report["older"], report["is_proven"], report["same"]) == (492, True, False)
        assert report["differences"] == {}
        assert datetime.fromisoformat(report["since"]) <= datetime.now(UTC)

        database.execute("INSERT INTO items VALUES (600, 'lost')")
        found = compare(file, "items", "--all", "--wait", "0.1s")
        assert found.exit_code == 1
        assert "492 documents are older" in found.output
        assert "neither older nor in the stream: 1" in found.output
        delivery.deliver(1)
        assert compare(file, "items", "--all").exit_code == 3
    finally:
        delivery.close()


def test_the_layout_bridge_is_refused(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    backend = {"type": "postgres", "connection": database.url, "slot": "s", "publication": "p"}
    file = pipeline_file(tmp_path, backend, nats, stream, layout="bridge")
    found = compare(file, "t")
    assert found.exit_code == 2
    assert "messages of the layout bridge cannot be compared" in found.output


@pytest.mark.parametrize("layout", ["penstock", "puller", "debezium", "cloudevents"])
def test_a_collection_and_its_stream(
    layout: str, shop: Shop, nats: Nats, stream: str, tmp_path: Path
) -> None:
    users = shop.db.users
    backend = {"type": "mongodb", "connection": shop.url, "database": shop.name}
    shape = {} if layout == "penstock" else {"layout": layout, "encoding": "json"}
    file = pipeline_file(tmp_path, backend, nats, stream, **shape)
    delivery = Delivery(file)
    try:
        users.insert_many([{"n": n, "tags": ["a", {"b": n / 3}]} for n in range(50)])
        users.update_many({"n": {"$lt": 5}}, {"$set": {"deep": {"x": [1, None]}}})
        users.delete_one({"n": 49})
        delivery.deliver(56)
        found = compare(file, "users", "--all")
        assert found.exit_code == 0, found.output
        assert "49 documents in the source, 49 in the stream" in found.output
        users.update_one({"n": 7}, {"$set": {"tags": []}})
        users.insert_many([{"_id": each, "n": -1} for each in IDS])
        users.delete_many({"n": -1, "_id": {"$in": IDS[::2]}})
        delivery.deliver(1 + len(IDS) + len(IDS[::2]))
        assert compare(file, "users", "--all").exit_code == 0
        users.update_one({"n": 7}, {"$set": {"tags": [1]}})
        assert compare(file, "users", "--all", "--wait", "0.1s").exit_code == 1
    finally:
        delivery.close()


@pytest.mark.parametrize("layout", ["penstock", "puller", "debezium", "cloudevents"])
def test_a_sharded_collection_and_its_stream(
    layout: str, nats: Nats, stream: str, tmp_path: Path
) -> None:
    """The key of a change has the shard key beside the `_id`, also of a delete: `documentKey` in
    https://www.mongodb.com/docs/manual/reference/change-events/delete/. Documents are found by
    their `_id`."""
    documents = [{"_id": n, "country": f"c{n % 3}", "n": n} for n in range(6)]
    keys = [{"country": each["country"], "_id": each["_id"]} for each in documents]
    with ScriptedMongod(History(), "mongos") as server:
        backend = {"type": "mongodb", "connection": server.url, "database": "shop"}
        shape = {} if layout == "penstock" else {"layout": layout, "encoding": "json"}
        file = pipeline_file(tmp_path, backend, nats, stream, **shape)
        delivery = Delivery(file)
        ns = {"db": "shop", "coll": "users"}
        try:
            for each, key in zip(documents, keys, strict=True):
                server.history.write(
                    {"operationType": "insert", "ns": ns, "documentKey": key, "fullDocument": each}
                )
            server.history.write({"operationType": "delete", "ns": ns, "documentKey": keys[5]})
            delivery.deliver(7)
        finally:
            delivery.close()
        server.documents["shop.users"] = documents[:5]
        found = compare(file, "users", "--all")
        assert found.exit_code == 0, found.output
        assert "5 documents in the source, 5 in the stream" in found.output
        server.documents["shop.users"] = [*documents[:4], {**documents[4], "country": "moved"}]
        found = compare(file, "users", "--all", "--wait", "0.1s")
        assert found.exit_code == 1
        assert "4: country" in found.output
        server.documents["shop.users"] = [*documents[:5], {**documents[4], "_id": 99}]
        found = compare(file, "users", "--all", "--wait", "0.1s")
        assert found.exit_code == 3, found.output
        assert "1 documents are older, or their changes are missing" in found.output
        assert "missing in the stream" not in found.output


@pytest.mark.parametrize("kind", [Moto, *WHOLE])
def test_a_dynamodb_table_and_its_stream(
    kind: Any, nats: Nats, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    # moto encodes the binary values of a stream's records twice.
    shop: Any = "main" if kind is Moto else b"\x00\xff"
    text = "S" if kind is Moto else "B"
    binary: Any = {} if kind is Moto else {"raw": b"\x00", "bs": {b"1", b"\xfe"}}

    def item(n: int) -> dict[str, Any]:
        return {
            "shop": shop, "at": n, "name": "é" * n, "price": Decimal("1.10") * n,
            "large": 2**60 + n, "none": None, "deep": {"list": [1, "a", {"b": binary}]},
            "tags": {"x", "a"}, "ns": {3, 20}, **binary,
        }  # fmt: skip

    with kind() as server:
        table = boto3.resource(
            "dynamodb", endpoint_url=server.url, region_name="us-east-1"
        ).create_table(
            TableName="orders",
            KeySchema=[{"AttributeName": "shop", "KeyType": "HASH"},
                       {"AttributeName": "at", "KeyType": "RANGE"}],
            AttributeDefinitions=[{"AttributeName": "shop", "AttributeType": text},
                                  {"AttributeName": "at", "AttributeType": "N"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )  # fmt: skip
        backend = {
            "type": "dynamodb", "table": "orders", "endpoint": server.url, "region": "us-east-1",
        }  # fmt: skip
        file = pipeline_file(tmp_path, backend, nats, stream)
        delivery = Delivery(file)
        try:
            for n in range(40):
                table.put_item(Item={**item(n), "yes": True})
            table.put_item(Item={**item(3), "n": Decimal("0.1")})
            table.delete_item(Key={"shop": shop, "at": 4})
            delivery.deliver(42)
            found = compare(file, "orders", "--all")
            assert found.exit_code == 0, found.output
            assert "orders: 39 documents in the source, 39 in the stream" in found.output
            sampled = json.loads(compare(file, "orders", "--sample", "10", "--json").output)
            assert (sampled["same"], sampled["compared"]) == (True, 10)

            table.put_item(Item={"shop": shop, "at": 5, "name": "other"})
            table.delete_item(Key={"shop": shop, "at": 6})
            found = compare(file, "orders", "--all", "--wait", "0.1s")
            assert found.exit_code == 1
            assert "missing in the source" in found.output
            assert "price" in found.output
            delivery.deliver(2)
            assert compare(file, "orders", "--all").exit_code == 0
        finally:
            delivery.close()
        wrong = compare(file, "customers")
        assert wrong.exit_code == 2
        assert "its table is orders" in wrong.output
        table.delete()
    if kind is Given:
        return
    away = compare(file, "orders")
    assert away.exit_code != 0
    assert "Traceback" not in away.output


def test_two_collections_of_one_name_cannot_be_told_apart_in_a_pullers_messages(
    nats: Nats, stream: str, tmp_path: Path
) -> None:
    client: pymongo.MongoClient[dict[str, Any]]
    with Secantus() as server, pymongo.MongoClient(server.url) as client:
        client.a.users.insert_one({})
        client.b.users.insert_one({})
        backend = {"type": "mongodb", "connection": server.url, "database": "*"}
        file = pipeline_file(tmp_path, backend, nats, stream, layout="puller", encoding="json")
        Delivery(file).close()
        load_pipeline(file).sink.sink().prepare()
        found = compare(file, "a.users")
        assert found.exit_code == 2
        assert "do not name their users" in found.output
        assert "a, b have one" in found.output


def test_what_cannot_be_compared_says_why(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"state: {tmp_path}\nbackends: [{{type: memory}}]\nsink: {{type: memory}}\n")
    for more, words in (
        (["items"], "the sink memory cannot be read back"),
        (["items", "--backend", "none"], "there are: default"),
        (["items", "--wait", "soon"], "--wait"),
    ):
        found = compare(file, *more)
        assert found.exit_code == 2
        assert words in found.output


def test_the_stream_is_read_with_the_login_of_the_sink_unless_a_url_has_one(
    own_nats: Callable[..., Nats], stream: str, tmp_path: Path
) -> None:
    server = own_nats({"authorization": {"users": [{"user": "u", "password": "right"}]}})
    file = tmp_path / "pipeline.yaml"

    def refused(password: str, *more: str) -> str:
        sink = f"{{type: jetstream, url: {server.url}, stream: {stream}, user: u, password: "
        backend = "{type: postgres, slot: s, publication: p, connection: postgresql://nowhere/x}"
        file.write_text(f"state: {tmp_path}\nbackends: [{backend}]\nsink: {sink}{password}}}\n")
        result = compare(file, "items", *more)
        assert result.exit_code == 2
        return result.output

    there_is_none = f"there is no stream '{stream}'"
    assert there_is_none in refused("right")
    assert "refuses the credentials" in refused("wrong")
    assert there_is_none in refused("wrong", "--url", f"nats://u:right@127.0.0.1:{server.port}")
    assert "refuses the credentials" in refused("right", "--url", server.url)
