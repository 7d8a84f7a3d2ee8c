"""The server's clock and the idle token in a slot's status: what `max_gap` looks at."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock.feeds.postgres import watch
from penstock.wire.pgoutput.lsn import parse_lsn
from tests.feeds.postgres.reading import Reader


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "INTERVAL", 0.1)


def read_until(reader: Reader, check: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + 60
    while True:
        reader.following.read(0.2)
        status = reader.following.status()
        if check(status):
            return status
        assert time.monotonic() < deadline, status


def flushed(reader: Reader) -> int:
    return parse_lsn(reader.database.execute("SELECT pg_current_wal_flush_lsn()")[0][0])


def test_an_idle_server_gives_tokens_with_its_clock(reader_of: Callable[..., Reader]) -> None:
    """After each kind of end that a log may have."""
    reader = reader_of(silence="1s").prepare()
    for end in ("SELECT 1", "SELECT pg_switch_wal()", "CHECKPOINT"):
        reader.database.execute(end)
        wanted = flushed(reader)
        first = read_until(
            reader,
            lambda status, wanted=wanted: (
                status["clock"] is not None and status["details"]["received_lsn"] >= wanted
            ),
        )
        assert abs(first["clock"] - time.time()) < 60
        later = read_until(reader, lambda status, at=first["clock"]: status["clock"] > at)
        assert later["token"] != first["token"]


def test_a_server_that_sends_less_than_it_has_gives_no_token(
    reader_of: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keepalives go on, and say nothing of the log that is after them."""
    reader = reader_of(silence="1s").prepare()
    first = read_until(reader, lambda status: status["clock"] is not None)
    further = f"1{first['details']['received_lsn']:015d}"
    look = watch._QUERY.partition("SELECT wal_status, safe_wal_size,")[0]
    monkeypatch.setattr(
        watch, "_QUERY",
        f"{look}SELECT wal_status, safe_wal_size, NULL::bigint, {further}::bigint"
        " FROM pg_replication_slots WHERE slot_name = %s",
    )  # fmt: skip
    before = read_until(reader, lambda status: "/" not in status["token"].partition("/")[2])
    after = read_until(reader, lambda status: status["clock"] > before["clock"])
    assert after["token"].partition("/")[0] == before["token"].partition("/")[0]
    assert "/" not in after["token"].partition("/")[2]
