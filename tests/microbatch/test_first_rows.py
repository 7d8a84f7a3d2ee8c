"""A query that has a table's rows first: rows and changes together are the table, whatever ends."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from penstock.microbatch.source import Source
from penstock.model.errors import SettingsError
from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer
from tests.microbatch.runs import Row, Run
from tests.microbatch.sources import Documents, Items, Orders, Table, is_read, table_in
from tests.mongo import Shop
from tests.servers import Database
from tests.waiting import until

_CRASHES = 12  # more than there are micro-batches of rows


@pytest.fixture
def table(database: Database) -> Iterator[Table]:
    with table_in(database) as made:
        database.execute("ALTER TABLE t ADD n int NOT NULL DEFAULT 0, ADD large text")
        database.execute("ALTER TABLE t ALTER large SET STORAGE EXTERNAL")
        yield made


class Copy:
    """What a consumer makes of rows and changes: by key, the newest in the order of the source."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.changes: list[int] = []
        self._newest: dict[int, tuple[tuple[str, int], dict[str, Any] | None]] = {}

    @property
    def rows(self) -> dict[int, dict[str, Any]]:
        return {key: row for key, (_, row) in self._newest.items() if row is not None}

    def take(self, rows: Sequence[Row]) -> None:
        for row in rows:
            image = json.loads(row["after"] or "null")
            if row["operation"] == "READ":
                self.reads.append(image["id"])
                self._put(image["id"], (row["cursor"], -1), image)
                continue
            place = row["cursor"], row["ordinal"]
            old = json.loads(row["before"] or "null") or json.loads(row["key"])
            self.changes.append(old["id"])
            before = self._newest.get(old["id"], (None, None))[1] or {}
            if image is None or image["id"] != old["id"]:
                self._put(old["id"], place, None)
            if image is not None:
                kept = {name: before.get(name) for name in row["unchanged"] or ()}
                self._put(image["id"], place, kept | image)

    def _put(self, key: int, place: tuple[str, int], row: dict[str, Any] | None) -> None:
        if key not in self._newest or place >= self._newest[key][0]:
            self._newest[key] = place, row


def rows_of(database: Database) -> dict[int, dict[str, Any]]:
    found = database.execute("SELECT id, n, large FROM t")
    return {id_: {"id": id_, "n": n, "large": large} for id_, n, large in found}


def options_of(table: Table, **more: str) -> dict[str, str]:
    return {**table.options, "max_events": "400", "snapshot": "initial", **more}


def fill(table: Table, count: int) -> None:
    table.database.execute(
        "INSERT INTO t SELECT i, 0, CASE WHEN i %% 50 = 0 THEN repeat(i::text, 3000) END"
        " FROM generate_series(1, %s) i",
        (count,),
    )


def test_rows_come_first_and_then_the_changes_that_they_do_not_have(table: Table) -> None:
    fill(table, 1_000)
    run, copy = Run(options_of(table)), Copy()

    def write(number: int) -> None:
        if number == 1:  # under the snapshot, which has none of these
            table.database.execute("UPDATE t SET n = 1 WHERE id <= 10")
            table.database.execute("DELETE FROM t WHERE id = 999")

    copy.take(run(write))
    operations = [row["operation"] for batch in run.batches for row in batch]
    assert operations[:1_000] == ["READ"] * 1_000
    assert sorted(copy.reads) == list(range(1, 1_001))
    assert len(run.batches) > 3
    assert sorted(copy.changes) == [*range(1, 11), 999]
    assert copy.rows == rows_of(table.database)
    ids = [row["event_id"] for batch in run.batches for row in batch]
    assert len(set(ids)) == len(ids)
    # From then on the query is like any other.
    table.database.execute("UPDATE t SET n = 2 WHERE id = 5")
    assert [row["operation"] for row in run()] == ["UPDATE"]
    assert "@rows" not in run.committed


def test_changes_that_are_in_the_rows_do_not_come(table: Table) -> None:
    """The slot is there before the snapshot: what comes between the two is in the rows."""
    source = Source.open(table.options)
    source.initial()
    source.stop()
    until(lambda: not is_read(table.database))
    fill(table, 500)
    table.database.execute("UPDATE t SET n = 1")
    found = Run(options_of(table))()
    assert [row["operation"] for row in found] == ["READ"] * 500


@pytest.mark.parametrize("crash", ["before it is stored", "before Spark knows that it is"])
def test_a_query_that_ends_in_any_micro_batch_goes_on_with_what_is_left(
    table: Table, crash: str
) -> None:
    """Spark runs a micro-batch that was planned again, and a sink that has it leaves it out."""
    fill(table, 1_000)
    execute, copy = table.database.execute, Copy()
    run = Run(options_of(table))
    stored: set[str] = set()  # micro-batches that the sink has

    def store(rows: list[Row]) -> None:
        name = json.dumps(run.planned, sort_keys=True)
        if name not in stored:
            copy.take(rows)
            stored.add(name)

    def between(number: int, rows: list[Row]) -> None:
        if number != 1 or crash != "before it is stored":
            store(rows)
        if number == 1 and turn < _CRASHES:
            raise InterruptedError

    for turn in range(_CRASHES + 1):
        try:
            run.with_rows(between)
        except InterruptedError:
            # Rows move in both directions, with large values that the log does not have.
            first = 50 * (turn + 1)
            execute("UPDATE t SET id = -id, n = n + 1 WHERE id IN (%s, %s)", (first, 1_000 - first))
            execute("UPDATE t SET id = id + 2000 WHERE id = %s", (first + 100,))
            execute("DELETE FROM t WHERE id = %s", (first + 1,))
            execute("INSERT INTO t VALUES (%s, 7, 'new')", (-5_000 - turn,))
            until(lambda: not is_read(table.database))
    assert run.planned is None
    assert copy.rows == rows_of(table.database)


def test_a_table_without_a_key_is_not_gone_on_with(table: Table) -> None:
    fill(table, 500)
    table.database.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey; CREATE PUBLICATION runs FOR TABLE t"
        " WITH (publish = 'insert')"
    )
    run = Run(options_of(table, create_publication="false"))

    def stop(number: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run(stop)
    with pytest.raises(SettingsError, match="another checkpoint"):
        run()


def test_an_empty_table_has_no_rows_and_then_its_changes(table: Table) -> None:
    run = Run(options_of(table))
    assert run() == []
    table.write(3)
    assert [row["operation"] for row in run()] == ["INSERT"] * 3


def test_a_query_of_two_tables_is_refused_and_names_them(table: Table) -> None:
    table.database.execute("ALTER TABLE other ADD PRIMARY KEY (id)")
    with pytest.raises(SettingsError, match=r"public\.other, public\.t"):
        Run(options_of(table, tables="public.t,public.other"))()


def test_a_run_with_saved_positions_is_refused(table: Table) -> None:
    with pytest.raises(SettingsError, match="snapshot"):
        Source.open(options_of(table, positions="memory://"))


def test_documents_of_mongodb_come_first(shop: Shop) -> None:
    written = Documents(shop)
    shop.db["t"].insert_many([{"_id": -number} for number in range(1, 301)])
    run = Run({**written.options, "snapshot": "initial"})

    def crash(number: int, rows: list[Row]) -> None:
        if number == 1:
            written.write(2)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run.with_rows(crash)
    read = [row for batch in run.batches for row in batch]
    rest = run()
    # What the documents had when they were read may come once more as a change.
    found = {row["document_id"] for row in read + rest if row["operation"] == "READ"}
    assert found >= {str(-number) for number in range(1, 301)}
    assert [row["document_id"] for row in rest if row["operation"] == "INSERT"] == ["1", "2"]


def test_items_of_dynamodb_come_first() -> None:
    with StreamsServer() as server:
        written = Items(server)
        server.items = {f"k{number}": {"n": {"N": str(number)}} for number in range(300)}
        run = Run({**written.options, "snapshot": "initial"})
        found = run(lambda number: written.write(2) if number == 0 else None)
        reads = [json.loads(row["key"])["id"] for row in found if row["operation"] == "READ"]
        assert sorted(reads) == sorted(server.items)
        assert sorted(row["document_id"] for row in found[300:]) == ["1", "2"]


@pytest.mark.parametrize("mode", ["latest_version", "all_versions_and_deletes"])
def test_items_of_cosmos_db_come_first_also_of_a_range_that_is_split(mode: str) -> None:
    with CosmosServer() as server:
        written = Orders(server, mode)
        written.write(200)
        written.split()
        run = Run({**written.options, "snapshot": "initial"})

        def crash(number: int, rows: list[Row]) -> None:
            if number == 0:  # it is read again
                written.write(2)
                written.split()
                raise InterruptedError

        with pytest.raises(InterruptedError):
            run.with_rows(crash)
        found = run()
        reads = [row for row in found if row["operation"] == "READ"]
        assert written.found(reads) == [*range(1, 203)]
        assert written.found([row for row in found if row not in reads]) == [201, 202]
        ids = [row["event_id"] for row in found]
        assert len(set(ids)) == len(ids)


def test_a_feed_without_rows_of_tables_is_refused() -> None:
    with pytest.raises(SettingsError, match="no rows of tables"):
        Run({"backend": "memory", "snapshot": "initial"})()
