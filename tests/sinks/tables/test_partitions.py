"""The ledger's rows of a table whose rows are of all its partitions together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from penstock.config.load import build_pipeline
from penstock.model.errors import SettingsError
from penstock.model.position import ROWS, PartitionId
from penstock.model.table_schema import TableSchema
from penstock.snapshots.loading import TableLoad
from penstock.tables.ledger_rows import LedgerRow
from penstock.tables.states import TableEvent


class Partitions:
    """The partitions of one table, in the ledger of a lake."""

    def __init__(self, folder: Path, **options: Any) -> None:
        data = {
            "backends": [{"name": "shop", "type": "dynamodb", "table": "users"}],
            "sink": {
                "type": "delta", "location": f"{folder}/{{table}}",
                "map": [{"backend": "shop", "tables": {"users": options}}],
            },
        }  # fmt: skip
        self.sink: Any = build_pipeline(data, name="p", secrets=()).sink.sink()

    def enter(self, *sids: str, initial: bool = True) -> None:
        for sid in sids:
            self.sink.enter("shop", PartitionId(sid), initial=initial)

    def states(self) -> Mapping[str, str]:
        return {each["sid"]: each["state"] for each in self.sink.tables()}

    def row(self, sid: str) -> LedgerRow:
        with self.sink._ledger() as (ledger, _):
            (found,) = (each.row for each in ledger.tables() if each.sid == sid)
            return found

    def save(self, row: LedgerRow) -> None:
        with self.sink._ledger() as (ledger, _):
            ledger.save(row)

    def plan(self) -> None:
        """Its rows begin to come."""
        self.save(self.row(ROWS).at_points("0"))

    def fill(self) -> None:
        """All rows are there, and nothing was held."""
        for load in self.sink.unfinished():
            if load.partition == ROWS and not load.has_rows:
                load.finish([])
                load.settle("stop")

    def due(self) -> list[str]:
        found: list[TableLoad] = [*self.sink.unfinished()]
        return [str(each.partition) for each in found if not each.is_early]


@pytest.fixture
def table(tmp_path: Path) -> Partitions:
    return Partitions(tmp_path)


def test_partitions_wait_for_the_rows_of_all(table: Partitions) -> None:
    table.enter("a", "b", ROWS, "c")
    assert {*table.states().values()} == {"loading"}
    assert table.due() == [ROWS]
    table.fill()
    table.enter("d")
    assert table.states() == dict.fromkeys(["a", "b", ROWS, "c", "d"], "live")


def test_partitions_are_live_where_nothing_is_loaded(table: Partitions) -> None:
    table.enter("a", ROWS, "b", initial=False)
    assert {*table.states().values()} == {"live"}


def test_a_partition_loads_all_of_its_table(table: Partitions) -> None:
    table.enter("a", "b", ROWS)
    table.fill()
    assert not table.sink.load_after("shop", PartitionId("b"), "lost")
    assert {*table.states().values()} == {"loading"}
    table.fill()
    assert table.sink.load_after("shop", PartitionId("b"), "lost")
    table.sink.reload("users", "a")
    assert {*table.states().values()} == {"loading"}


@pytest.mark.parametrize("initial", [True, False])
def test_a_ledger_of_before_is_loaded_where_a_partition_was_to_be(
    table: Partitions, initial: bool
) -> None:
    table.enter("a", "b", initial=False)
    table.enter(ROWS, initial=initial)
    assert {*table.states().values()} == {"live"}


def test_a_ledger_of_before_is_loaded_anew_where_that_was_begun(table: Partitions) -> None:
    table.enter("a", "b", initial=False)
    table.save(table.row("b").become(TableEvent.ANEW))
    table.enter(ROWS, initial=False)
    assert {*table.states().values()} == {"loading"}


def test_a_load_goes_on_after_a_start(table: Partitions) -> None:
    table.enter("a", ROWS)
    table.plan()
    table.enter("a", ROWS)
    assert table.row(ROWS).point == "0"


def test_a_new_partition_comes_after_those_that_wait(table: Partitions) -> None:
    table.enter("a", "b", ROWS)
    table.fill()
    table.save(table.row("b").wait(SettingsError("a column is missing", "tables")))
    table.enter("c", "d")
    assert table.states() == {
        "a": "live", "b": "waiting", ROWS: "live", "c": "loading", "d": "loading",
    }  # fmt: skip
    for name in ("b", "c", "d"):
        assert table.due() == [name]
        (load,) = (each for each in table.sink.unfinished() if not each.is_early)
        load.settle("stop")
    assert {*table.states().values()} == {"live"}


def test_a_table_that_leaves_the_map_is_not_loaded(table: Partitions) -> None:
    table.enter("a", ROWS)
    with table.sink._ledger() as (ledger, _):
        ledger.leave("shop", [], None, ["a"])
    assert {*table.states().values()} == {"left"}


def documents(*key: str) -> TableSchema:
    columns = tuple({"name": name, "key": True} for name in key)
    return TableSchema(
        schema="shop", table="users", name=("users",), version="", columns=columns,
        is_of_documents=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "initial", "states"),
    [("clone", True, {"loading"}), ("clone", False, {"waiting"}), ("log", True, {"waiting"})],
)
def test_a_table_with_another_key_is_loaded_anew_or_waits(
    tmp_path: Path, kind: str, initial: bool, states: set[str]
) -> None:
    table = Partitions(tmp_path, type=kind)
    table.enter("a", ROWS, initial=initial)
    if initial:
        table.plan()
        table.fill()
    assert {*table.states().values()} == {"live"}
    assert not table.sink.notice("shop", ROWS, [documents("id")])
    assert table.sink.notice("shop", ROWS, [documents("id", "other")])
    assert {*table.states().values()} == states
    table.sink.reload("users", None)
    assert {*table.states().values()} == {"loading"}
