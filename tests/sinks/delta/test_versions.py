"""Lines become versions of rows in a Delta table: the same that PostgreSQL has of them."""

import re
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import Rejected
from penstock.sinks.delta.database import DeltaDatabase
from penstock.sinks.delta.lake import DeltaLayout
from penstock.tables.history import HistoryColumns
from penstock.tables.staged import RowMapping
from tests.servers import Database
from tests.sinks.delta.lake import Lake, change, ordered
from tests.sinks.postgres.flow import Flow
from tests.tables.test_history import CASES, ITEM, LAST, Changes, shown, transaction
from tests.waiting import until

PERIODS = HistoryColumns()
BUCKETS = pytest.mark.parametrize("buckets", [0, 3])


class Target:
    """A history in a folder, with a row of another source."""

    def __init__(self, folder: Path, buckets: int = 0) -> None:
        self.lake = Lake(folder)
        layout = DeltaLayout(
            uri=str(folder / "public" / "items"), kind="history", buckets=buckets
        )  # fmt: skip
        self.database = DeltaDatabase(folder / "ledger.db", {("public", "items"): layout})
        with self.database.transaction("making the table") as cursor:
            self.database.ledger(cursor).make()
            self.database.create(
                cursor, ITEM, ("public", "items"), periods=PERIODS, sid_column="sid"
            )

    def staged(self, cursor: Any, sid: str = "eu") -> Any:
        found = self.database.find(cursor, "public", "items")
        assert found is not None
        mapping = RowMapping(sid=sid, backend="shop", source=sid)
        staged = self.database.staged(ITEM, found, mapping, periods=PERIODS)
        assert not list(staged.problems())
        return staged

    def apply(self, *batches: Sequence[Changes], sid: str = "eu") -> None:
        for batch in batches:
            with self.database.transaction("writing") as cursor:
                staged = self.staged(cursor, sid)
                staged.apply(cursor, staged.plan([one for changes in batch for one in changes]))

    def versions(self, sid: str = "eu") -> list[str]:
        names = ["id", "kvsz_start", "kvsz_end", "kvsz_deleted", "name", "large", "sid"]
        return [
            f"{id} {name} {large} {shown(start)}..{shown(end)}{' deleted' * deleted}"
            for id, start, end, deleted, name, large, of in sorted(
                self.lake.rows("items", names), key=lambda row: row[:2]
            )
            if of == sid
        ]


@pytest.mark.parametrize("name", CASES)
def test_a_transaction_makes_a_version_of_each_key_however_batches_are_divided(
    tmp_path: Path, name: str
) -> None:
    transactions, expected = CASES[name]
    found = [
        transaction(number, at, *texts.split(","))
        for number, (at, texts) in enumerate(transactions)
    ]  # fmt: skip
    for buckets, batches in ((0, [found]), (3, [[one] for one in found])):
        target = Target(tmp_path / str(buckets), buckets)
        target.apply([transaction(0, 0, "INSERT 1 other")], sid="zz")
        target.apply(*batches)
        assert target.versions() == expected, batches
        assert target.versions("zz") == ["1 other x first..last"]


def test_a_value_that_was_not_sent_and_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="was not sent"):
        Target(tmp_path).apply([transaction(1, 1, "UPDATE 1 a -")])


ITEMS = """
CREATE TABLE items (id int PRIMARY KEY, name text, n numeric(12,2), large text);
ALTER TABLE items ALTER large SET STORAGE EXTERNAL;
INSERT INTO items SELECT g, 'old', g, repeat(g::text, CASE WHEN g % 3 = 0 THEN 3000 ELSE 1 END)
FROM generate_series(1, 50) g
"""
NAMES = ["id", "name", "n", "large"]
HISTORY = {"type": "history"}


@BUCKETS
def test_the_open_versions_are_the_rows_of_the_source_after_random_transactions(
    database: Database, tmp_path: Path, buckets: int
) -> None:
    database.execute(ITEMS)
    lake = Lake(tmp_path / "lake")
    with Flow(database, lake.folder, {"items": HISTORY}, sink={"buckets": buckets}) as flow:
        change(database, 1, 40)
        flow.loaded()
        change(database, 2, 40)
        until(lambda: flow.check() or opened(lake) == rows(database), 60)
        database.execute("ALTER TABLE items ADD size int DEFAULT 7; UPDATE items SET n = 0")
        until(lambda: flow.check() or opened(lake, [*NAMES, "size"]) == rows(database), 60)
    follow_each_other(lake)


def test_all_rows_again_end_versions_and_add_those_that_differ(tmp_path: Path) -> None:
    target = Target(tmp_path)
    target.apply([transaction(1, 1, "INSERT 1 a y", "INSERT 2 b", "INSERT 3 c", "INSERT 4 d"),
                  transaction(2, 2, "DELETE 4")])  # fmt: skip
    with target.database.transaction("loading") as cursor:
        staged = target.staged(cursor)
        with staged.loading(cursor, "part", "0003", merges=True):
            assert staged.load(cursor, [b"a\t1\ty\nz\t2\tx\ne\t4\tx\nf\t5\tx\n"], merges=True) == 4
    found = [re.sub(r"\d+\+\d+", "now", each) for each in target.versions()]
    assert found == [
        "1 a y first..last", "2 b x first..now", "2 z x now..last", "3 c x first..now deleted",
        "4 d x first..2 deleted", "4 e x now..last", "5 f x first..last",
    ]  # fmt: skip


def rows(database: Database) -> Any:
    return ordered(database.execute("SELECT * FROM items"))


def opened(lake: Lake, names: Sequence[str] = NAMES) -> Any:
    found = lake.rows("items", [*names, "kvsz_end"])
    return ordered(row[:-1] for row in found if row[-1].astimezone(UTC) == LAST)


def follow_each_other(lake: Lake) -> None:
    """Versions of a key do not overlap, and there is one moment where two meet at most."""
    ends: dict[int, Any] = {}
    names = ["id", "kvsz_start", "kvsz_end"]
    for key, start, end in sorted(lake.rows("items", names)):
        assert start < end
        assert key not in ends or ends[key] <= start
        ends[key] = end
