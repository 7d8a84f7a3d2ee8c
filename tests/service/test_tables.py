"""The look at the tables, with a source and a bucket that are scripted."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.model.errors import SettingsError, Unavailable
from penstock.model.table_schema import TableName, TableSchema
from penstock.service.tables import FollowedTables
from penstock.snapshots.followed_tables import FollowedTable, SnapshotSource
from tests.waiting import until


class Script:
    """What the source has, and what is done to the bucket; both raise `fault`s on demand."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.looks = 0
        self.done: list[Any] = []
        self.source_fault: Exception | None = None
        self.bucket_fault: Exception | None = None
        self.entered, self.proceed = threading.Event(), threading.Event()
        self.proceed.set()

    def tables_of(self, source: SnapshotSource) -> list[FollowedTable]:
        self.looks += 1
        if self.source_fault is not None:
            raise self.source_fault
        schemas = [
            TableSchema(schema="public", table=name, name=(name,), version=version, columns=())
            for name, version in self.versions.items()
        ]
        return [FollowedTable(source=source, schema=schema) for schema in schemas]

    def schemas(self, *_: object) -> "Script":
        return self

    def put(self, *schemas: TableSchema) -> None:
        self.entered.set()
        assert self.proceed.wait(60)
        self._do(*(each.name for each in schemas))

    def keep(self, *names: TableName) -> None:
        self._do("keep", *names)

    def remove(self, name: TableName) -> None:
        self._do("remove", name)

    def _do(self, *what: Any) -> None:
        if self.bucket_fault is not None:
            raise self.bucket_fault
        self.done.append(what)

    def look_again(self) -> None:
        looks = self.looks
        until(lambda: self.looks > looks + 1)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    made = Script()
    monkeypatch.setattr("penstock.service.tables.tables_of", made.tables_of)
    monkeypatch.setattr("penstock.service.tables._LOOK", 0.005)
    monkeypatch.setattr("penstock.service.tables._AGAIN", 0.01)
    return made


def tables_of(script: Any, suspended: Callable[[], Any] = dict) -> FollowedTables:
    feed: Any = None
    source = SnapshotSource(backend="shop", feed=feed, prefix=())
    owned: Any = SimpleNamespace(name="pipe", is_ours=True, is_held=True, suspended=suspended)
    return FollowedTables(owned, [source], script)


@pytest.fixture
def tables(script: Script) -> Iterator[FollowedTables]:
    with tables_of(script) as made:
        yield made


def test_what_is_gone_is_removed_although_that_failed_first(
    script: Script, tables: FollowedTables
) -> None:
    script.versions = {"kept": "1", "gone": "1"}
    tables.start()
    until(lambda: (("kept",), ("gone",)) in script.done)
    script.bucket_fault = Unavailable("away")
    del script.versions["gone"]
    script.look_again()
    script.bucket_fault = None
    until(lambda: ("remove", ("gone",)) in script.done)
    script.look_again()
    assert script.done.count(("remove", ("gone",))) == 1


def test_a_table_that_is_missing_for_a_moment_stays(script: Script, tables: FollowedTables) -> None:
    script.versions = {"t": "1"}
    tables.look()
    answers, tables_there = iter([[], None]), script.tables_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "penstock.service.tables.tables_of",
            lambda source: tables_there(source) if (one := next(answers)) is None else one,
        )
        tables.look()
    assert [each.name for each in tables.all] == [("t",)]


def test_what_fails_is_said_once_and_stops_nothing_else(
    script: Script, tables: FollowedTables
) -> None:
    script.versions = {"t": "1"}
    script.bucket_fault = SettingsError("may not publish")
    with capture_logs() as logs:
        tables.start()
        until(lambda: bool(logs) and not tables.unknown)
        script.look_again()
        script.source_fault = Unavailable("away")
        until(lambda: len(logs) == 2)
        script.look_again()
    assert ["may not publish" in logs[0]["error"], "away" in logs[1]["error"]] == [True, True]
    assert len(logs) == 2
    assert [each.name for each in tables.all] == [("t",)], "what is known stays known"


def test_requests_do_not_wait_for_the_bucket_and_neither_does_the_end(
    script: Script, tables: FollowedTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.service.tables._LEAVING", 0.05)
    monkeypatch.setattr("penstock.service.tables._TOGETHER", 1)
    script.versions = {"one": "1", "two": "1"}
    script.proceed.clear()
    tables.start()
    assert script.entered.wait(60)
    tables.look()
    assert len(tables.all) == 2
    tables.close()
    script.proceed.set()
    tables._thread.join(60)
    assert script.done == [(("one",),)], "it goes on with no other table"


@pytest.mark.parametrize("ends", ["by a stop", "by another instance", "while the source is away"])
def test_what_changed_since_the_last_look_is_stored_at_a_stop(
    script: Script, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A mirror that runs while no service does knows what the bucket has."""
    monkeypatch.setattr("penstock.service.tables._LOOK", 3600)
    script.versions = {"t": "1"}
    with tables_of(script) as tables:
        tables.start()
        until(lambda: ("keep", ("t",)) in script.done)
        script.done.clear()
        script.versions = {"other": "1"}
        owned: Any = tables._owned
        owned.is_ours, owned.is_held = False, ends != "by another instance"
        if ends == "while the source is away":
            script.source_fault = Unavailable("away")
    stored = [(("other",),), ("remove", ("t",))]
    assert script.done == (stored if ends == "by a stop" else [])


def test_a_suspended_table_has_its_reason(script: Script) -> None:
    script.versions = {"t": "1"}
    reasons = iter([{}, {("shop", "public.t"): "decode"}, {}])

    def suspended() -> Any:
        found = next(reasons, None)
        if found is None:
            raise Unavailable("away")
        return found

    with tables_of(script, suspended) as tables:
        found = []
        for _ in range(4):
            tables.look()
            found.append(tables.all[0].schema.suspended)
    assert found == ["", "decode", "", ""]
