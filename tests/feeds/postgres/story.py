"""One reader's story over all the servers that a test shows it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.feeds import Following, Gap, HistoryLost, Mark
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.model.errors import Unavailable
from penstock.model.position import Bookmark, PartitionId, Place
from tests.servers import Postgres

SLOT = PartitionId("s")
FAST = {"fsync": False, "full_page_writes": False}
TABLE = "CREATE TABLE t (id int PRIMARY KEY, a text); CREATE PUBLICATION p FOR TABLE t"


def server_of(version: int, **settings: Any) -> Postgres:
    """A server of that version, or the test is skipped."""
    try:
        return Postgres(version=version, settings={**FAST, **settings})
    except Unavailable as error:
        pytest.skip(str(error))


def feed_of(server: Postgres, **settings: Any) -> PostgresFeed:
    return PostgresFeed(
        PostgresSettings(connection=server.url, slot=SLOT, publication="p", silence=60, **settings)
    )


class Story:
    """One reader over all the servers that a test shows it: its place and mark are the stored ones
    of a pipeline, and every change that it got is in `rows`."""

    def __init__(self) -> None:
        self.after: Place | None = None
        self.mark: Mark = {}
        self.rows: list[dict[str, Any]] = []
        self.gaps: list[Gap] = []

    def read(
        self,
        server: Postgres | PostgresFeed,
        count: int,
        text: str = "",
        *,
        despite: Sequence[Gap] = (),
    ) -> list[str]:
        """Reads, stores and acknowledges `count` changes with this text in them, and what comes
        with them; the images of all."""
        feed = feed_of(server) if isinstance(server, Postgres) else server
        with self.following(feed, despite) as following:
            got: list[dict[str, Any]] = []
            deadline = time.monotonic() + 30
            while sum(text in row["after"] for row in got) < count:
                assert time.monotonic() < deadline, f"{len(got)}, but not {count}"
                for page in following.read(0.2):
                    for batch in feed.decoder("json").decode(page):
                        got += batch.to_pylist()
            self.rows += got
            if got:
                self.after = Place(got[-1]["cursor"], got[-1]["ordinal"])
                # Noted by the reading thread with its next read, and told up to what is stored.
                following.acknowledge(Bookmark(self.after, self.mark))
            self.store(following)
        return [row["after"] for row in got]

    @property
    def bookmark(self) -> Bookmark:
        return Bookmark(self.after, self.mark)

    def store(self, following: Following) -> None:
        following.read(0.1)
        found = following.bookmark(self.after)
        self.mark = self.mark if found is None or found.mark is None else found.mark
        following.acknowledge(Bookmark(self.after, self.mark))

    @contextmanager
    def following(self, feed: PostgresFeed, despite: Sequence[Gap] = ()) -> Iterator[Following]:
        following = patiently(
            lambda: feed.follow(SLOT, Bookmark(self.after, self.mark), despite=despite)
        )
        try:
            yield following
        finally:
            following.close()

    def lost(self, server: Postgres, **settings: Any) -> Gap:
        """The gap that following fails with."""
        with pytest.raises(HistoryLost) as caught:
            patiently(
                lambda: feed_of(server, **settings).follow(SLOT, Bookmark(self.after, self.mark))
            )
        assert caught.value.hint
        assert caught.value.gap.after == ("" if self.after is None else str(self.after))
        return caught.value.gap


def patiently(follow: Callable[[], Following]) -> Following:
    """Follows, once the server has noticed that the reader before is gone."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return follow()
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def insert(server: Postgres, first: int, last: int, text: str = "x") -> None:
    server.execute(
        "INSERT INTO t SELECT g, %s FROM generate_series(%s::int, %s::int) g",
        (text, first, last),
    )


def started(server: Postgres) -> Story:
    """A story with ten changes read."""
    story = Story()
    insert(server, 1, 10)
    story.read(server, 10)
    return story
