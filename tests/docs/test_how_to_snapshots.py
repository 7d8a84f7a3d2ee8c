"""The page's grants are what a role needs, and its permissions what an account needs."""

import re
from pathlib import Path

import orjson

from penstock.config import SnapshotSettings
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.server import JetStreamServer
from penstock.snapshots.job import Job
from penstock.snapshots.records import Records, RunRecord, new_id
from penstock.snapshots.store import SnapshotRun
from tests.docs.pages import DOCS, section, statements
from tests.servers import Nats, Postgres
from tests.snapshots.conftest import StatedPipeline

PAGE = (DOCS / "how-to" / "snapshots.md").read_text()


def test_a_role_and_an_account_with_what_the_page_says_take_a_snapshot(tmp_path: Path) -> None:
    subjects = re.findall(
        r"`([^`]+)`", PAGE.partition("publishes to")[2].partition("At its start")[0]
    )
    usual = re.findall(r'"([^"]+)"', (DOCS / "how-to" / "nats.md").read_text())
    account = {
        "publish": [
            *(one for one in usual if one.startswith("$JS.API")),
            *(one for one in subjects if one != "snapshot.>"),
        ],
        "subscribe": ["_INBOX.>", "snapshot.>"],
    }
    users = [{"user": "penstock", "password": "p", "permissions": account}]
    with (
        Postgres(version=16) as server,
        server.database() as database,
        Nats(config={"authorization": {"users": users}}) as nats,
    ):
        database.execute(
            "CREATE ROLE penstock LOGIN REPLICATION; CREATE TABLE customers (id int PRIMARY KEY);"
            "INSERT INTO customers VALUES (1), (2); CREATE PUBLICATION shop FOR ALL TABLES"
        )
        for sql in statements(section(PAGE, "Take snapshots of tables")):
            database.execute(sql)
        feed = PostgresFeed(
            PostgresSettings(
                connection=database.url.replace("postgres@", "penstock@"),
                slot="shop", publication="shop",
            )
        )  # fmt: skip
        feed.begin()
        sink = JetStreamSettings(url=nats.url, user="penstock", password="p", encoding="json")
        job = Job(
            snapshot_id=new_id(), pipeline=StatedPipeline(), backend="shop", feed=feed,
            schema="public", table="customers", name=("customers",),
        )  # fmt: skip
        run = SnapshotRun(job, JetStreamServer(sink), SnapshotSettings())
        run.run()
        connection = Connection(sink)
        connection.open()
        connection.subscribe("snapshot.>")
        meta = JetStream(connection).last("INIT", "init.meta.customers")
        assert meta is not None
        assert orjson.loads(meta.payload)["row_count"] == 2
        JetStream(connection).purge("INIT", "init.snap.customers.>")
        records = Records(connection, "shop")
        records.make(replicas=1)
        records.put(
            RunRecord(
                snapshot_id=job.snapshot_id, pipeline="shop", backend="default", schema="public",
                table="customers", name=("customers",), state="done",
            )
        )  # fmt: skip
        assert [one.snapshot_id for one in records.all()] == [job.snapshot_id]
        connection.close()
