"""What every feed promises while its source is written to, idle, and away: one story of each."""

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from penstock.feeds import Feed, Following
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.model.errors import SettingsError, Unavailable
from penstock.model.position import Bookmark, Bookmarks
from tests.cosmos.reading import feed_of as cosmos_feed
from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer, settings_of
from tests.feeds.postgres.story import FAST, patiently
from tests.mongodb.history import History
from tests.mongodb.reading import feed_of as mongodb_feed
from tests.mongodb.server import ScriptedMongod
from tests.servers import Postgres


@dataclass(frozen=True)
class Story:
    """A source of one partition: `put` writes a document with this id; `pass_by` lets its log go
    on without a change of ours; `stop` and `start` take it away and bring it back."""

    feed: Feed
    put: Callable[[str], object]
    pass_by: Callable[[], object]
    stop: Callable[[], object]
    start: Callable[[], object]

    @contextmanager
    def following(self, begun: Bookmarks, after: Bookmark | None = None) -> Iterator[Following]:
        """Of the one partition that is not ended, from where it began or `after` that."""
        ((name, first),) = ((name, each) for name, each in begun.items() if not each.ended)
        with closing(patiently(lambda: self.feed.follow(name, after or first))) as found:
            yield found

    def read(self, following: Following, count: int) -> tuple[list[str], Bookmark]:
        """The ids of so many changes, and the bookmark after them."""
        found, last, decoder = list[str](), None, self.feed.decoder("json")
        deadline = time.monotonic() + 60
        while len(found) < count:
            assert time.monotonic() < deadline, found
            for page in following.read(0.2):
                last = page.last
                for batch in decoder.decode(page):
                    found += batch.column("document_id").to_pylist()
        bookmark = following.bookmark(last)
        assert bookmark is not None
        return found, bookmark


@pytest.fixture(params=["mongodb", "dynamodb", "cosmos", "cosmos-every", "postgres"])
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    kind: str = request.param
    if kind == "mongodb":
        history = History()
        with ScriptedMongod(history) as mongod:
            feed = mongodb_feed(mongod)
            yield Story(feed, history.insert, history.noop, mongod.__exit__, mongod.__enter__)
    elif kind == "dynamodb":
        with StreamsServer() as server:
            stream = server.stream("users")
            shard = stream.shard()
            yield Story(
                DynamodbFeed(settings_of(server, reads=1000, poll=0.001)),
                lambda key: stream.put(shard, key, at=server.now),
                lambda: server.advance(600),
                lambda: (server.__exit__(), server.cut()),
                server.__enter__,
            )
    elif kind.startswith("cosmos"):
        with CosmosServer() as cosmos:
            container = cosmos.container("shop", "orders", "/id")
            mode = "all_versions_and_deletes" if "every" in kind else "latest_version"

            def pass_by() -> None:  # LSNs can grow without an item
                container.ranges[0].lsn += 7

            yield Story(
                cosmos_feed(cosmos, mode=mode),
                lambda key: container.put({"id": key}),
                pass_by,
                cosmos.__exit__,
                cosmos.__enter__,
            )
    else:
        with Postgres(settings=FAST) as postgres:
            postgres.execute("CREATE TABLE t (id text PRIMARY KEY); CREATE TABLE other (id int)")
            postgres.execute("CREATE PUBLICATION p FOR TABLE t")
            yield Story(
                PostgresFeed(
                    PostgresSettings(
                        connection=postgres.url, slot="s", publication="p", silence=1.0
                    )
                ),
                lambda key: postgres.execute("INSERT INTO t VALUES (%s)", (key,)),
                lambda: postgres.execute("INSERT INTO other VALUES (1)"),
                lambda: postgres.stop("immediate"),
                postgres.start,
            )


def test_now_is_when_it_is_asked_for(story: Story) -> None:
    story.put("before")
    begun = story.feed.begin("now")
    story.put("after")
    copy = pickle.loads(pickle.dumps(begun))
    with story.following(copy) as following:
        assert story.read(following, 1)[0] == ["after"]


def test_a_time_in_the_future_is_refused_or_is_now(story: Story) -> None:
    story.put("before")
    try:
        begun = story.feed.begin(datetime(2100, 1, 1, tzinfo=UTC))
    except SettingsError as error:
        assert error.hint
    else:
        story.put("after")
        with story.following(begun) as following:
            assert story.read(following, 1)[0] == ["after"]


@pytest.mark.parametrize("has_read", [True, False])
def test_an_idle_source_advances_and_not_past_what_is_not_stored(
    story: Story, has_read: bool
) -> None:
    begun = story.feed.begin("now")
    with story.following(begun) as following:
        stored = following.bookmark(None)
        if has_read:
            story.put("one")
            _, stored = story.read(following, 1)
        assert stored is not None
        story.pass_by()
        newest, deadline = stored, time.monotonic() + 60
        while newest == stored:
            assert time.monotonic() < deadline
            assert not following.read(0.1)
            newest = following.bookmark(stored.place) or stored
        assert newest.place == stored.place
        unstored = following.bookmark(None)
    story.put("two")
    with story.following(begun, newest) as following:
        assert story.read(following, 1)[0] == ["two"]
    if has_read:
        with story.following(begun, unstored) as following:
            assert story.read(following, 2)[0] == ["one", "two"]


def test_a_source_that_is_away_is_unavailable_and_read_on_when_it_is_back(story: Story) -> None:
    begun = story.feed.begin("now")
    story.put("one")
    with story.following(begun) as following:
        _, stored = story.read(following, 1)
        story.stop()
        deadline = time.monotonic() + 60
        with pytest.raises(Unavailable) as caught:
            while time.monotonic() < deadline:
                following.read(0.1)
        assert caught.value.message
    story.start()
    story.put("two")
    with story.following(begun, stored) as following:
        assert story.read(following, 1)[0] == ["two"]
