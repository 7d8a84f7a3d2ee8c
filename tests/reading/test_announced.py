"""Schemas are stored before their changes where that is possible, and never stop them where not."""

import pytest

from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.table_schema import TableName, TableSchema
from penstock.reading.announced import Announced


class Store:
    """A store that raises `fault`."""

    def __init__(self) -> None:
        self.fault: PenstockError | None = None
        self.tries = 0
        self.stored: list[str] = []

    def put(self, *schemas: TableSchema) -> None:
        self.tries += 1
        if self.fault is not None:
            raise self.fault
        self.stored += [each.version for each in schemas]

    def remove(self, name: TableName) -> None:
        raise NotImplementedError


def schema(table: str, version: str) -> TableSchema:
    return TableSchema(schema="public", table=table, name=(table,), version=version, columns=())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("penstock.reading.announced.time.monotonic", lambda: now[0])
    return now


def test_where_nobody_can_be_reached_reading_waits() -> None:
    store = Store()
    announced, store.fault = Announced(store), Unavailable("no server")
    with pytest.raises(Unavailable, match="the schema of public"):
        announced.record(schema("t", "one"))
    store.fault = None
    announced.record(schema("t", "one"))
    assert store.stored == ["one"]


def test_a_store_that_refuses_is_said_once_and_gets_all_later(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    store = Store()
    announced, store.fault = Announced(store), SettingsError("no rights", hint="give them")
    for version in ("one", "two"):
        announced.record(schema("t", version))
    announced.record(schema("other", "one"))
    assert store.tries == 1, "each try may take seconds"
    clock[0] += 61
    announced.record(schema("third", "one"))
    assert store.tries == 2
    (record,) = caplog.records
    assert "give them" in record.getMessage()
    store.fault = None
    clock[0] += 61
    announced.record(schema("fourth", "four"))
    assert store.stored == ["two", "one", "one", "four"]
