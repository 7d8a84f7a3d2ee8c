"""What a sink of tables may tell of a target: which of its rows are not those of the source."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from penstock.model.table_schema import TableSchema
from penstock.sinks.tables.settings import MappedTable, TableSinkSettings


class Difference(NamedTuple):
    """A key whose row differs: `missing` in the target, `extra` there, or in these `columns`."""

    key: str
    kind: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The keys that differ; and of how many rows, which change, that could not be told."""

    differences: Sequence[Difference]
    unsettled: int = 0


@runtime_checkable
class ComparesTables(Protocol):
    """A sink that compares a target with the table of one source."""

    settings: TableSinkSettings

    def compare(
        self, source: Any, settle: Callable[[], None], *, table: MappedTable, sid: str,
        schemas: Sequence[TableSchema], repair: bool,
    ) -> Verdict:  # fmt: skip
        """Rows that differ get what the source has of them, if it may `repair`. `source`: a
        connection, and `settle` returns once what it has now was written, or can't be waited for.
        `schemas`: of the table, or of all its partitions. Raises Unavailable, SettingsError."""
        ...
