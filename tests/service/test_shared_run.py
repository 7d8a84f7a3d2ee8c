"""A pipeline that hosts share: nobody waits for the others, but for an instance that does not
share; and one of them begins."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.config import Pipeline, Sharing, parse_pipeline
from penstock.errors import Unavailable
from penstock.feeds.memory import MemoryFeed
from penstock.leases import Lease, replace
from penstock.leases.memory import MemoryStore
from penstock.ops.board import Board
from penstock.position import Bookmark
from penstock.reading.positions import Positions
from penstock.reading.shared import SharedPositions
from penstock.service.beginning import Beginnings
from penstock.service.ownership import Ownership
from penstock.service.resuming import shared_start
from penstock.service.shared_run import SharedRun
from tests.reading.made import P0, Clock, place, until

PIPELINE: dict[str, Any] = {
    "name": "shop",
    "backends": [{"name": "a", "type": "memory", "polled": True, "partitions": 3}],
    "sink": {"type": "memory"},
    "share": "leases",
}
SHARING = Sharing(renew=1.0, acquire=1.0, expire=10.0)


def pipeline_of(folder: Path) -> Pipeline:
    given = {**PIPELINE, "positions": f"sqlite:///{folder}/positions.db"}
    return parse_pipeline(json.dumps(given), environment={})


class Alone:
    """A `SharedRun` over a store."""

    def __init__(self, folder: Path) -> None:
        self.store, self.clock = MemoryStore(), Clock()
        self.board = Board(folder / "board")
        self.stop = threading.Event()
        ownership = Ownership(self.store, "shop", instance="here", clock=self.clock)
        self.run = SharedRun(pipeline_of(folder), ownership, self.board, self.stop)


def test_hosts_that_share_take_no_lease_of_the_pipeline(tmp_path: Path) -> None:
    alone = Alone(tmp_path)
    assert alone.run.wait(lambda: None)
    assert not alone.run.waited
    assert alone.store.list("") == []


def test_an_instance_that_does_not_share_is_waited_for(tmp_path: Path) -> None:
    alone = Alone(tmp_path)
    row = Lease(name="owner:shop", owner="there:1:00", properties={"pid": 1, "machine": "another"})
    row = alone.store.put(row)
    reasons: list[str | None] = []

    def meanwhile() -> None:
        reasons.append(alone.run.reason)
        if len(reasons) > 2:
            alone.store.put(replace(row, owner=""))

    assert alone.run.wait(meanwhile)
    assert len(reasons) == 3
    assert reasons[0] == ("another instance owns the pipeline, and does not share it: there:1:00")
    assert alone.run.reason is None


def test_a_stop_ends_the_wait(tmp_path: Path) -> None:
    alone = Alone(tmp_path)
    alone.store.put(Lease(name="owner:shop", owner="there:1:00"))
    assert not alone.run.wait(alone.stop.set)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({}, None),
        ({"leases": 3, "partition_count": 1, "unowned": 0}, None),
        ({"leases": 3, "partition_count": 0, "unowned": 1}, None),
        (
            {"leases": 3, "partition_count": 0, "unowned": 0},
            "other hosts hold all 3 partitions of a",
        ),
    ],
)
def test_a_host_that_has_no_partition_is_on_standby(
    tmp_path: Path, entry: dict[str, int], reason: str | None
) -> None:
    alone = Alone(tmp_path)
    alone.board.post("source", "a", entry)
    assert alone.run.reason == reason


class Begun:
    """What begins a backend on one host."""

    def __init__(self, pipeline: Pipeline, store: MemoryStore, host: str) -> None:
        self.positions = SharedPositions(store, "shop/a", host)
        (backend,) = pipeline.backends
        self.attempt: Callable[[], None] = shared_start(
            backend, self.positions, pipeline.sink.sink(), SHARING
        )


def test_one_host_begins_and_the_others_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, pipeline = MemoryStore(), pipeline_of(tmp_path)
    first, second = (Begun(pipeline, store, host) for host in "ab")
    begin, asked = MemoryFeed.begin, 0

    def slow(self: MemoryFeed, *given: Any) -> Any:
        nonlocal asked
        asked += 1
        with pytest.raises(Unavailable, match="another host makes the first start of a"):
            second.attempt()
        return begin(self, *given)

    monkeypatch.setattr(MemoryFeed, "begin", slow)
    first.attempt()
    second.attempt()
    assert asked == 1
    assert {row.owner for row in store.list("shop/a/")} == {""}
    assert len(store.list("shop/a/")) == 3


def test_a_host_that_begins_later_changes_no_row(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path)
    before = Positions.of(pipeline.positions, "shop", "a", pipeline.checkpoint, owner="another")
    before.begin({P0: Bookmark(place(7), {})})
    beginnings = Beginnings(pipeline, Board(tmp_path / "board"), "here")
    beginnings.start()
    try:
        until(lambda: beginnings.begun or beginnings.errors)
    finally:
        beginnings.close()
    assert beginnings.begun == {"a"}
    assert before.load() == {P0: Bookmark(place(7), {})}
