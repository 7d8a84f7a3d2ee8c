"""The page's steps on a real server: its role can read changes, and nothing else."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from penstock.config import Pipeline, parse_pipeline
from penstock.feeds import Feed
from penstock.leases import Lease, open_store
from penstock.model.position import PartitionId
from penstock.process.plugins import plugin
from tests.docs.pages import DOCS, blocks, section, statements
from tests.servers import Database, Postgres
from tests.waiting import until

PAGE = (DOCS / "how-to" / "postgresql.md").read_text()
TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, name text);
CREATE TABLE orders (id int PRIMARY KEY, total numeric);
"""


@pytest.fixture(scope="module")
def shop() -> Iterator[Database]:
    """A database after all steps of the page; the role may connect with its password only."""
    hba = re.findall(r"^ *hostssl +(.*)$", PAGE, re.MULTILINE)
    assert len(hba) == 1
    lines = ["host " + hba[0].replace("10.0.0.0/8", "127.0.0.1/32")]
    with Postgres(version=16, hba=lines) as server, server.database("shop") as database:
        database.execute(TABLES)
        for sql in statements(section(PAGE, "Read your own PostgreSQL")):
            database.execute(sql)
        server.stop()
        server.start()
        yield replace(database, url=server.url_of("shop"))


def own(database: Database, role: str) -> str:
    """The URL of the page for this server."""
    found = re.search(rf"postgresql://({role}:[^@]+)@[\w.]+/(\w+)", PAGE)
    assert found is not None
    return f"postgresql://{found[1]}@{database.url.rpartition('@')[2].partition('/')[0]}/{found[2]}"


def pipeline(database: Database) -> Pipeline:
    text = next(block for block in blocks(PAGE, "yaml") if "backends:" in block)
    variables = {"PG_URL": own(database, "penstock"), "NATS_URL": "nats://h"}
    return parse_pipeline(text, environment=variables)


def feed_of(database: Database) -> Feed:
    backend = pipeline(database).backends[0]
    feed: Feed = plugin("feeds", backend.type).build(backend.settings)
    return feed


def test_preflight_finds_no_error(shop: Database) -> None:
    found = [finding for finding in feed_of(shop).check() if finding.level == "error"]
    assert found == []


def test_the_role_reads_changes_without_a_privilege_on_the_tables(shop: Database) -> None:
    with (
        psycopg.connect(own(shop, "penstock")) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT * FROM customers")
    feed = feed_of(shop)
    bookmarks = feed.begin()
    shop.execute("INSERT INTO orders VALUES (1, 10); UPDATE orders SET total = 20")
    following = feed.follow(PartitionId("shop"), bookmarks[PartitionId("shop")])
    rows: list[dict[str, object]] = []
    deadline = time.monotonic() + 60
    while len(rows) < 2:
        assert time.monotonic() < deadline, rows
        for page in following.read(0.2):
            for batch in feed.decoder("json").decode(page):
                rows += batch.to_pylist()
    following.close()
    assert [row["operation"] for row in rows] == ["INSERT", "UPDATE"]
    assert '"total":"10"' in str(rows[1]["before"]), "REPLICA IDENTITY FULL gives the old row"


def test_the_positions_store_works_with_its_own_role(shop: Database) -> None:
    for statement in statements(section(PAGE, "Keep positions in PostgreSQL")):
        shop.execute(statement)
    store = open_store(own(shop, "penstock_positions"))
    assert store.put(Lease(name="a", owner="b")).revision == "1"
    store.close()


def test_a_retired_slot_is_gone(shop: Database) -> None:
    feed_of(shop).begin()
    until(lambda: shop.execute("SELECT active FROM pg_replication_slots") == [(False,)])
    for sql in statements(section(PAGE, "Retire a pipeline")):
        shop.execute(sql)
    assert shop.execute("SELECT slot_name FROM pg_replication_slots") == []
