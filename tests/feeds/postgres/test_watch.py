"""Announcements ask the catalogue little, and never stop what reads."""

from typing import Any

import pytest

from penstock.feeds.postgres import PostgresSettings
from penstock.feeds.postgres.collecting import KnownRelation
from penstock.feeds.postgres.schemas import relation_in
from penstock.feeds.postgres.watch import SchemaAnnouncer
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from tests.feeds.postgres.reading import Recorded
from tests.wire.pages import relation

INT = 23


class Log:
    """An announcer, and a catalogue that has the table as it was sent last, or as `now`, or raises
    `fault`."""

    def __init__(self) -> None:
        self.recorded = Recorded()
        self.asked = 0
        self.fault: PenstockError | None = None
        self.now = self._sent = b""
        settings = PostgresSettings.model_validate(
            {"connection": "postgresql://h/d", "slot": "s", "publication": "p", "tables": "t"}
        )
        self.announcer = SchemaAnnouncer(settings, self.recorded)

    def sends(self, raw: bytes) -> "Log":
        self._sent = raw
        self.announcer.announce(KnownRelation(raw=raw), self._ask, "1:0")
        return self

    def _ask(self, query: str, names: Any, *_: Any) -> list[tuple[Any, ...]]:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        if "unnest" in query:
            return [(name, "integer", "integer", True, None) for name in names]
        found = relation_in(self.now or self._sent)
        return [
            (found.namespace, found.name, found.oid, found.replica_identity, one.name,
             one.type_oid, one.type_modifier, one.key, "integer", "integer", True, None,
             number, False, False, [1], {"publication": {"via_root": False}})
            for number, one in enumerate(found.columns, 1)
        ]  # fmt: skip


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("penstock.feeds.postgres.watch.time.monotonic", lambda: now[0])
    return now


def test_each_message_is_asked_for_and_what_is_older_than_the_catalogue_comes_first() -> None:
    log, more = Log(), relation(16, {"id": INT, "v": INT})
    log.sends(relation(16, {"id": INT})).sends(more)
    assert [(len(one.columns), one.is_current) for one in log.recorded] == [(1, True), (2, True)]
    assert (log.asked, log.recorded[0].position) == (2, "1:0")
    log.now = more
    log.sends(relation(16, {"id": INT}))
    assert [(len(one.columns), one.is_current) for one in log.recorded[2:]] == [
        (1, False), (2, True),
    ]  # fmt: skip
    assert log.recorded[2].version == log.recorded[0].version


def test_nothing_is_recorded_of_tables_that_are_not_followed() -> None:
    assert not Log().sends(relation(17, {"id": INT}, name="other")).recorded


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


def test_a_broken_message_is_the_decoders_matter() -> None:
    assert Log().sends(b"R\0").asked == 0
