"""The feed of the example: what a feed promises, and its way through a pipeline with the sink."""

import pickle
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from examples.lines_feed import LinesFeed, LinesFeedSettings
from penstock.feeds import HistoryLost
from penstock.model.errors import Malformed, SettingsError, Unavailable
from penstock.model.page import Page
from penstock.model.position import START, Bookmark, PartitionId, Place
from tests.docs.pages import DOCS, blocks
from tests.pipeline.running import Run, eventually

A = PartitionId("a")


@pytest.fixture
def feed(tmp_path: Path) -> LinesFeed:
    """Two files; `a` has thirty lines and one that is being written."""
    lines = [f'{{"n": {n}}}\n' for n in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(lines) + '{"n": 3')
    (tmp_path / "b.jsonl").write_text('{"n": 0}\n')
    return LinesFeed(LinesFeedSettings(folder=tmp_path))


def read(feed: LinesFeed, bookmark: Bookmark = START) -> list[Page]:
    following = feed.follow(A, bookmark)
    pages = [*following.read(0.0), *following.read(0.0)]
    following.close()
    return pages


def rows(feed: LinesFeed, pages: Sequence[Page]) -> list[dict[str, Any]]:
    decoder = feed.decoder("json")
    return [row for page in pages for batch in decoder.decode(page) for row in batch.to_pylist()]


def test_resuming_after_every_place_gives_exactly_the_rest(feed: LinesFeed) -> None:
    found = rows(feed, read(feed))
    assert [row["after"] for row in found] == [f'{{"n":{n}}}' for n in range(30)]
    places = [Place(row["cursor"], row["ordinal"]) for row in found]
    assert places == sorted(set(places))
    for number, place in enumerate(places, start=1):
        rest = rows(pickle.loads(pickle.dumps(feed)), read(feed, Bookmark(place, {})))
        assert [row["event_id"] for row in rest] == [row["event_id"] for row in found[number:]]


def test_now_is_the_moment_of_the_call(feed: LinesFeed) -> None:
    (feed.file(A)).write_text('{"n": 1}\n')
    bookmark = feed.begin("now")[A]
    with feed.file(A).open("a") as file:
        file.write('{"n": 2}\n')
    assert [row["after"] for row in rows(feed, read(feed, bookmark))] == ['{"n":2}']


def test_every_file_is_a_partition_and_ids_are_unique(feed: LinesFeed) -> None:
    assert [each.partition for each in feed.partitions()] == ["a", "b"]
    other = feed.follow(PartitionId("b"), START)
    ids = [row["event_id"] for row in rows(feed, [*read(feed), *other.read(0.0)])]
    assert len(ids) == len(set(ids)) == 31


def test_a_file_that_was_cut_is_lost_history(feed: LinesFeed) -> None:
    last = read(feed)[-1].last
    feed.file(A).write_text("")
    with pytest.raises(HistoryLost) as caught:
        feed.follow(A, Bookmark(last, {}))
    assert (caught.value.gap.cause, caught.value.gap.after) == ("file_cut", str(last))


def test_what_is_not_there_is_unavailable_or_a_settings_error(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        LinesFeed(LinesFeedSettings(folder=tmp_path)).follow(A, START)
    with pytest.raises(SettingsError):
        LinesFeed(LinesFeedSettings(folder=tmp_path / "none")).partitions()


def test_a_line_that_is_not_json_is_an_error_row_or_stops(feed: LinesFeed) -> None:
    feed.file(A).write_text('{"n": 1}\nnonsense\n{"n": 2}\n')
    [page] = read(feed)
    [batch] = feed.decoder("json", "dead-letter").decode(page)
    assert batch.column("operation").to_pylist() == ["INSERT", "ERROR", "INSERT"]
    with pytest.raises(Malformed):
        feed.decoder("json").decode(page)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both examples as an installed package, with the entry points of the pages."""
    info = tmp_path / "site" / "examples-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Name: examples\nVersion: 1.0\n")
    points = []
    for name in ("write-a-feed.md", "write-a-sink.md"):
        toml, *_ = blocks((DOCS / "how-to" / name).read_text(), "toml")
        points.append(
            toml.replace('[project.entry-points."', "[").replace('"]', "]").replace('"', "")
        )
    (info / "entry_points.txt").write_text("\n".join(points))
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{root}")


@pytest.mark.thorough  # any feed is read so, and the contract suite holds this one
@pytest.mark.fault
@pytest.mark.usefixtures("installed")
def test_a_pipeline_of_both_stores_every_line_once_over_a_kill(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out.db"
    source.mkdir()
    (source / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(1000)))
    pipeline = {
        "name": "lines",
        "backends": [{"type": "lines", "folder": str(source)}],
        "sink": {"type": "sqlite-changes", "file": str(target)},
    }

    def stored() -> int:
        with sqlite3.connect(target) as connection, suppress(sqlite3.OperationalError):
            return int(connection.execute("SELECT count(*) FROM change").fetchone()[0])
        return -1  # the table is not there yet, or locked

    first = Run(tmp_path, pipeline)
    try:
        eventually(lambda: target.exists() and stored() == 1000, run=first)
        with (source / "a.jsonl").open("a") as file:
            file.write('{"n": 1000}\n')
        first.kill()
        (source / "late.jsonl").write_text('{"n": 0}\n')
        second = Run(tmp_path, pipeline)
        try:
            eventually(lambda: stored() == 1002, run=second)
        finally:
            assert second.stop() == 0
    finally:
        if first.process.poll() is None:
            first.stop()
    assert stored() == 1002
