"""What a later version stored in another format is refused, not misread: in each place."""

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from penstock.consumer.mirror.published_tables import Catalog
from penstock.consumer.mirror.target import MirrorTarget
from penstock.leases import Lease, open_store
from penstock.leases.kinds import verify_kind
from penstock.model.errors import SettingsError
from penstock.model.formats import FORMAT, verify_format
from penstock.nats.buckets import Bucket
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from penstock.snapshots.records import Records
from penstock.tables.database import TableDatabase
from penstock.tables.postgres_database import PostgresDatabase
from penstock.tables.sqlite_database import SqliteDatabase
from tests.servers import Database, Nats

LATER = FORMAT + 1


def refused(read: Callable[[], object]) -> None:
    with pytest.raises(SettingsError, match="a later version of penstock stored") as caught:
        read()
    assert caught.value.code == "model.format"


def test_this_format_and_none_are_read() -> None:
    verify_format(None, "a row")
    verify_format(FORMAT, "a row")


def test_positions(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'positions'}")
    store.put(Lease(name="shop/default/slot", owner="me", properties={"format": LATER}))
    refused(lambda: verify_kind(store.list("shop/"), "pipeline"))


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_ledgers_and_the_state_of_mirrors(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    made: TableDatabase
    if kind == "postgres":
        database: Database = request.getfixturevalue("database")
        made = PostgresDatabase(database.url)
    else:
        made = SqliteDatabase(tmp_path / "target")
    connection = made.connect()
    ledger = made.ledger(connection.cursor())
    ledger.make()
    ledger.run(f"CREATE TABLE {ledger.own}format (number int)")
    ledger.run(f"INSERT INTO {ledger.own}format VALUES ({LATER})")
    refused(ledger.make)
    MirrorTarget(made).open([])
    connection.execute("CREATE TABLE penstock_mirror_format (number int)")
    connection.execute(f"INSERT INTO penstock_mirror_format VALUES ({LATER})")
    connection.close()
    refused(lambda: MirrorTarget(made).open([]))


def test_documents_of_buckets(nats: Nats) -> None:
    connection = Connection(NatsSettings(url=nats.url))
    connection.open()
    for bucket, read in (
        ("schemas", lambda: Catalog(connection).read()),
        ("snapshots", lambda: Records(connection, "shop").all()),
    ):
        found = Bucket(connection, bucket)
        found.create()
        document = {"format": LATER, "table": "t", "schema": "s", "version": "1", "columns": []}
        found.put("shop.t", orjson.dumps(document))
        refused(read)
