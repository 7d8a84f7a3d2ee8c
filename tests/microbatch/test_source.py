"""A backend that starts paused, in both ways of reading."""

from pathlib import Path

import pytest

from penstock.feeds.memory import MemoryFeed, MemoryFollowing
from penstock.microbatch.run_folder import pause_reader
from penstock.microbatch.source import Source
from penstock.model.errors import Rejected
from tests.reading.made import P0


@pytest.fixture(params=["rows", "realtime"])
def paused(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    pause_reader(tmp_path, "memory", is_paused=True)
    return Source.open({
        "backend": "memory", "mode": request.param, "runtime": str(tmp_path), "pipeline": "test",
        "positions": f"sqlite:///{tmp_path}/positions.db",
    })  # fmt: skip


@pytest.mark.slow
def test_a_paused_start_connects_and_takes_nothing(
    paused: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[str] = []
    follow = MemoryFeed.follow
    monkeypatch.setattr(
        MemoryFeed, "follow", lambda *a, **k: connected.append(a[1]) or follow(*a, **k)
    )
    start = paused.initial()
    while not connected:
        assert paused.latest(start) == start
    assert connected == [P0]
    assert paused.latest(start) == start
    paused.stop()


def test_a_pause_reports_what_reading_failed_with(
    paused: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise Rejected("the source refuses us")

    monkeypatch.setattr(MemoryFollowing, "read", read)
    start = paused.initial()
    with pytest.raises(Rejected, match="the source refuses us"):
        while True:
            paused.latest(start)
