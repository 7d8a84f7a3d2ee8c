"""Where a backend goes on whose settings choose other changes than when its position was saved."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place
from penstock.service.beginning import resume
from penstock.service.ownership import positions_of
from penstock.sinks import Record
from tests.cosmos.server import CosmosServer
from tests.service.pipelines import pipeline_of

STREAM = PartitionId("change-stream")
SAVED = Bookmark(
    Place("00000001/00000001", 0),
    {"token": {"_data": "82AA"}, "filter": {"collections": ["users"]},
     "place": "00000001/00000001:0"},
)  # fmt: skip
STORED = Bookmark(Place("00000005/00000002", 3), {"token": {"_data": "82BB"}})


class SinkWith:
    """A sink that says where it is."""

    def __init__(self, bookmark: Bookmark | None) -> None:
        self._record = Record(bookmark=bookmark, begun=True)

    def records(self, _: str, partitions: Sequence[PartitionId]) -> Mapping[PartitionId, Record]:
        return dict.fromkeys(partitions, self._record)

    def last(self, _: str) -> None:
        return None


def resumed(
    folder: Path, source: dict[str, Any], saved: Bookmarks, stored: Bookmark | None, times: int = 1
) -> Bookmarks:
    """What is stored after so many starts."""
    pipeline = pipeline_of(source, sink={"type": "memory"}, folder=folder)
    backend, sink = pipeline.backends[0], cast("Any", SinkWith(stored))
    for _ in range(times):
        positions = positions_of(pipeline, backend.name, "")
        positions.begin(saved)
        resume(backend, positions, sink)
    return positions_of(pipeline, backend.name, "").load()


def collections(folder: Path, names: str, stored: Bookmark | None, times: int = 1) -> Bookmark:
    server = {"type": "mongodb", "connection": "mongodb://nowhere/shop"}
    return resumed(folder, server | {"collections": names}, {STREAM: SAVED}, stored, times)[STREAM]


def test_the_same_collections_go_on_after_the_saved_position(tmp_path: Path) -> None:
    assert collections(tmp_path, "users", STORED) == SAVED


def test_other_collections_are_read_from_there_and_placed_after_what_is_stored(
    tmp_path: Path,
) -> None:
    found = collections(tmp_path, "users, orders", STORED, times=2)
    assert found.place == STORED.place
    assert found.mark == {
        "token": {"_data": "82AA"},
        "filter": {"collections": ["orders", "users"]},
        "database": "shop/",
        "replay": [
            {"filter": {"collections": ["users"]}, "until": {"_data": "82BB"}, "time": 5 << 32 | 2}
        ],
        "place": "00000005/00000002:3",
    }


def test_a_sink_that_does_not_say_is_given_everything_after_the_saved_position(
    tmp_path: Path,
) -> None:
    found = collections(tmp_path, "orders", None)
    assert found.place == SAVED.place
    now = {"filter": {"collections": ["orders"]}, "database": "shop/"}
    assert found.mark == {**(SAVED.mark or {}), **now}


PLACES = [Place(f"{number:020}/a", 0) for number in range(3)]


def cosmos_mark(etag: str, low: str = "", rid: str = "") -> dict[str, Any]:
    return {"rid": rid, "range": [low, "FF"], "etag": etag}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stored", "is_moved"),
    [
        (Bookmark(PLACES[2], cosmos_mark("20") | {"within": True}), True),
        (Bookmark(PLACES[1], cosmos_mark("20")), False),
        (Bookmark(PLACES[0], cosmos_mark("20")), False),
        (Bookmark(PLACES[2], cosmos_mark("20", low="7F")), False),
        (Bookmark(PLACES[2], cosmos_mark("20", rid="another")), False),
        (Bookmark(PLACES[2], {}), False),
        (None, False),
    ],
    ids=["further", "the same", "behind", "another range", "another container", "no mark", "none"],
)
def test_a_key_range_goes_on_after_what_the_sink_has_of_it(
    tmp_path: Path, stored: Bookmark | None, is_moved: bool
) -> None:
    """It may have been split since: its children would give what came after the saved position as
    theirs."""
    saved = Bookmark(PLACES[1], cosmos_mark("10"))
    with CosmosServer() as server:
        server.container("shop", "orders")
        source = {"type": "cosmos", "endpoint": server.url, "key": server.key, "database": "shop",
                  "container": "orders"}  # fmt: skip
        found = resumed(tmp_path, source, {PartitionId("0-FF"): saved}, stored)
    assert found == {"0-FF": stored if is_moved else saved}
