"""The workload writes what its ledger says, and nothing else: read back from the log itself."""

import time
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from penstock.demo.sources.postgres import PostgresWriter, shop
from penstock.demo.sources.postgres.shop import ACTIONS
from penstock.demo.workload import Ledger, Workload
from penstock.model.errors import Unavailable
from tests.servers import Database

OPERATIONS = {b"I": "INSERT", b"U": "UPDATE", b"D": "DELETE", b"T": "TRUNCATE"}


@pytest.fixture
def opened(database: Database) -> Iterator[Database]:
    """The shop, and a slot that sees everything written to it."""
    database.execute(shop.CREATE)
    database.execute(f"SELECT pg_create_logical_replication_slot('{database.name}', 'pgoutput')")
    yield database


def run(database: Database, *, rate: float, changes: int) -> Ledger:
    workload = Workload(PostgresWriter(database.url, rate=rate), rate)
    ledger = workload.ledger
    workload.start()
    deadline = time.monotonic() + 60
    while ledger.count < changes and time.monotonic() < deadline and workload.running:
        time.sleep(0.01)
    workload.stop()
    return ledger


def logged(database: Database) -> dict[str, Counter[tuple[str, str]]]:
    """Transaction -> (operation, table) -> how often, as the server's own log has it."""
    tables = dict(database.execute("SELECT oid::int, relname FROM pg_class"))
    found: dict[str, Counter[tuple[str, str]]] = {}
    for xid, data in database.execute(
        f"""
        SELECT xid::text, data FROM pg_logical_slot_get_binary_changes(
            '{database.name}', NULL, NULL, 'proto_version', '1',
            'publication_names', '{shop.PUBLICATION}')"""
    ):
        operation = OPERATIONS.get(data[:1])
        if operation is not None:
            oid = data[6:10] if operation == "TRUNCATE" else data[1:5]
            table = tables[int.from_bytes(oid, "big")]
            found.setdefault(xid, Counter())[operation, table] += 1
    return found


def test_the_ledger_is_what_the_log_has(opened: Database) -> None:
    ledger = run(opened, rate=100_000, changes=4000)
    written = {
        name: Counter((change.operation, change.table) for change in changes)
        for name, changes in ledger.committed.items()
        if changes
    }
    assert written == logged(opened)
    assert ledger.count == sum(len(changes) for changes in ledger.committed.values())


def test_a_run_has_everything_that_a_change_can_be(opened: Database) -> None:
    ledger = run(opened, rate=1999, changes=5000)
    changes = [change for written in ledger.committed.values() for change in written]
    assert {change.operation for change in changes} == {"INSERT", "UPDATE", "DELETE", "TRUNCATE"}
    assert {change.table for change in changes} == set(shop.KEYS)
    assert any(
        len({change.table for change in written}) > 1 for written in ledger.committed.values()
    )
    assert ledger.rolled_back
    assert not ledger.rolled_back & set(ledger.committed)
    order = [int(name) for name in ledger.committed]
    assert order != sorted(order), "no transaction committed after a younger one"


def test_the_rate_is_kept(opened: Database) -> None:
    started = time.monotonic()
    run(opened, rate=200, changes=300)
    took = time.monotonic() - started
    assert 1.0 < took < 60.0


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_an_action_reports_every_row_it_wrote(opened: Database, action) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    writer = PostgresWriter(opened.url, rate=1, seed=5)
    with psycopg.connect(opened.url) as connection:
        for prepare in (*list(ACTIONS)[:2], list(ACTIONS)[1], action):
            changes = prepare(writer, connection.cursor())
            connection.commit()
            writer.committed(changes, "any")
    found = logged(opened)
    last = found[max(found, key=int)] if changes else Counter()
    assert sum(last.values()) == len(changes) > 0


def test_what_ends_the_writer_is_raised(database: Database) -> None:
    workload = Workload(PostgresWriter(database.url, rate=10), 10)
    workload.start()
    with pytest.raises(Unavailable, match="customers"):
        workload.stop()
