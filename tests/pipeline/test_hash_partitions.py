"""Hash partitions of a PostgreSQL database through `penstock run`, which is killed on the way."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.running import Run, count, document, eventually, messages
from tests.servers import Database, Nats
from tests.wire.test_hash_partitions import VECTORS, by_the_book

pytestmark = [
    pytest.mark.live,
    pytest.mark.spark,
    pytest.mark.fault,
    pytest.mark.timeout(900),  # two starts of Spark
]

PARTITIONS, DOCUMENTS, ROUNDS = 16, 200, 30
# What is published for sixteen.
PUBLISHED = {tuple(name.split("/")): numbers[-1] for name, numbers in VECTORS.items()}


def changes_of(bodies: list[dict[str, Any]], subjects: list[str]) -> list[dict[str, Any]]:
    """The changes of messages with one change or with several; each with its `subject`."""
    found = []
    for body, subject in zip(bodies, subjects, strict=True):
        if "changes" not in body:
            found.append({**body, "subject": subject})
            continue
        shared = {name: value for name, value in body.items() if name not in ("fields", "changes")}
        for change in body["changes"]:
            each = dict(zip(body["fields"], change, strict=True))
            found.append({**shared, **each, "subject": subject})
    return found


# Order and prefixes with hash partitions are the sink's own tests; kills are other sources'.
@pytest.mark.thorough
@pytest.mark.parametrize("packing", ["change", "batch"])
def test_documents_keep_their_partition_and_their_order_under_kill_9(
    packing: str, database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    for table in ("messages", "users", "orders", "items"):
        database.execute(f"CREATE TABLE {table} (id text PRIMARY KEY, n int)")
    database.execute("CREATE PUBLICATION pub FOR ALL TABLES")
    subject = f"{stream.lower()}.{{source_partition}}.{{collection}}.{{partition}}"
    pipeline = document(tmp_path, database, nats, stream, partitions=PARTITIONS)
    pipeline["sink"] |= {"subject": subject, "messages": packing}
    pipeline["checkpoint"] = {"interval": "0.5s"}

    def write(first: int) -> None:
        for number in range(first, first + ROUNDS):
            database.execute("UPDATE items SET n = %s", (number,))

    run = Run(tmp_path, pipeline)
    try:
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        for table, key in PUBLISHED:
            database.execute(f"INSERT INTO {table} VALUES (%s, 0)", (key,))
        database.execute(
            f"INSERT INTO items SELECT 'item ' || n, 0 FROM generate_series(1, {DOCUMENTS}) n"
        )
        eventually(lambda: count(nats, stream) > 0, run=run)
        write(1)
        run.kill()
        write(1 + ROUNDS)
        run = Run(tmp_path, pipeline)
        total = len(PUBLISHED) + DOCUMENTS * (1 + 2 * ROUNDS)

        def stored() -> list[dict[str, Any]]:
            found = messages(nats, stream)
            return changes_of([each.body for each in found], [each.subject for each in found])

        changes = eventually(
            lambda: found if len(found := stored()) >= total else None, run=run
        )  # fmt: skip
        assert run.stop() == 0
    finally:
        if run.process.poll() is None:
            run.stop()
    assert len({change["event_id"] for change in changes}) == len(changes) == total
    slot = pipeline["backends"][0]["slot"]
    seen: dict[str, list[int]] = {}
    for change in changes:
        table, key = change["collection"], change["document_id"]
        wanted = PUBLISHED.get((table, key), by_the_book(table, key, PARTITIONS))
        assert change["subject"] == f"{stream.lower()}.{slot}.{table}.{wanted}"
        if table == "items":
            seen.setdefault(key, []).append(change["data"]["n"])
    assert len(seen) == DOCUMENTS
    for numbers in seen.values():
        assert numbers[0] == 0
        assert all(a + 1 == b for a, b in pairwise(numbers)), numbers
    assert len({change["subject"] for change in changes if change["collection"] == "items"}) == (
        PARTITIONS
    )
