"""Announcements ask the catalogue little, and never stop what reads."""

from typing import Any

import pytest

from penstock.errors import PenstockError, SettingsError, Unavailable
from penstock.feeds.postgres import PostgresSettings
from penstock.feeds.postgres.announcer import SchemaAnnouncer
from penstock.table_schema import TableSchema
from tests.wire.pages import relation

INT = 23


class Log:
    """An announcer, and a catalogue that knows one column or raises `fault`."""

    def __init__(self) -> None:
        self.recorded: list[TableSchema] = []
        self.asked = 0
        self.fault: PenstockError | None = None
        settings = PostgresSettings.model_validate(
            {
                "connection": "postgresql://h/d",
                "slot": "s",
                "publication": "p",
                "tables": ["public.t"],
            }
        )
        self.announcer = SchemaAnnouncer(settings, self.recorded.append)

    def sends(self, raw: bytes) -> "Log":
        self.announcer.announce(raw, self._ask, "1:0")
        return self

    def _ask(self, query: str, names: list[str], *_: Any) -> list[tuple[Any, ...]]:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        return [(name, "integer", True, None, False) for name in names]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("penstock.feeds.postgres.announcer.time.monotonic", lambda: now[0])
    return now


def test_a_schema_is_asked_for_and_recorded_once() -> None:
    log, more = Log(), relation(16, {"id": INT, "v": INT})
    log.sends(relation(16, {"id": INT})).sends(relation(16, {"id": INT}))
    assert (log.asked, len(log.recorded)) == (1, 1)
    log.sends(more).sends(more).sends(relation(16, {"id": INT}))
    assert log.asked == 3
    assert [len(one.columns) for one in log.recorded] == [1, 2, 1]
    assert log.recorded[0].position == "1:0"


def test_nothing_is_asked_of_tables_that_are_not_followed() -> None:
    assert Log().sends(relation(17, {"id": INT}, name="other")).asked == 0


@pytest.mark.parametrize("fault", [Unavailable("no connection"), SettingsError("no rights")])
def test_a_catalogue_that_fails_is_said_once_and_asked_again(
    fault: PenstockError, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    log, other = Log(), relation(18, {"id": INT})
    log.fault = fault
    log.sends(relation(16, {"id": INT})).sends(other)
    assert log.asked == 1, "a catalogue that hangs would hold up each table"
    clock[0] += 61
    log.sends(other)
    assert (log.asked, len(caplog.records), log.recorded) == (2, 1, [])
    log.fault = None
    clock[0] += 61
    log.sends(other)
    assert len(log.recorded) == 1


def test_what_is_not_recorded_is_announced_again() -> None:
    log = Log()
    record, log.announcer._record = log.announcer._record, _refuses
    with pytest.raises(Unavailable):
        log.sends(relation(16, {"id": INT}))
    log.announcer._record = record
    assert len(log.sends(relation(16, {"id": INT})).recorded) == 1


def test_a_broken_message_is_the_decoders_matter() -> None:
    assert Log().sends(b"R\0").asked == 0


def _refuses(_: TableSchema) -> None:
    raise Unavailable("the bucket is away")
