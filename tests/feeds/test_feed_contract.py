"""What every feed promises, proven on each: memory (also with marks that resuming needs), MongoDB,
DynamoDB, Cosmos DB in both modes, and PostgreSQL 15, 16 and 18."""

import json
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo.errors import OperationFailure

from penstock.feeds import At, Feed, Following, Gap, GapPolicy, HistoryLost, TakesSnapshots
from penstock.feeds.cosmos import CosmosFeed
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.feeds.mongodb import MongoFeed, losses
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.model.errors import PositionLost, SettingsError, Unavailable
from penstock.model.page import Page
from penstock.model.position import (
    Bookmark,
    Bookmarks,
    PartitionId,
    Place,
    bookmarks_from_json,
    bookmarks_to_json,
)
from penstock.ops.reports import PartitionReport
from penstock.reading.gaps import GapLog
from penstock.reading.reader import PartitionReader
from penstock.reading.silences import CLOCKED
from penstock.wire.hash_partitions import hashing
from tests.cosmos.reading import feed_of as cosmos_feed
from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer, settings_of
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.mongo import Shop, shop_on
from tests.reading.made import confirmed
from tests.servers import Postgres
from tests.waiting import Clock

Change = tuple[str, ...]

_WORKLOAD = """
CREATE TABLE one (id bigint PRIMARY KEY, text text);
CREATE TABLE two (id bigint PRIMARY KEY, number numeric);
ALTER TABLE two REPLICA IDENTITY FULL;
"""
_TRANSACTIONS = [
    "INSERT INTO one SELECT g, 'row ' || g FROM generate_series(1, 12) g",
    "INSERT INTO one VALUES (100, 'x'); UPDATE one SET text = 'y' WHERE id < 4;"
    " DELETE FROM one WHERE id = 12",
    "SELECT pg_logical_emit_message(false, 'note', 'between')",
    "INSERT INTO two VALUES (1, 1.5), (2, NULL);"
    " SELECT pg_logical_emit_message(true, 'note', 'inside'); UPDATE two SET number = 7",
    "CREATE TABLE empty (id int PRIMARY KEY)",
    "INSERT INTO one VALUES (500, 'z'); TRUNCATE one, two; INSERT INTO one VALUES (501, 'z')",
    "UPDATE one SET id = 502",
    "INSERT INTO one VALUES (600, 'x');"
    " SELECT pg_logical_emit_message(false, 'note', 'before commit')",
]
_CHANGES = 12 + 5 + 1 + 5 + 4 + 1 + 2


# Of each feed: where it began, before its changes were written.
_begun: dict[Feed, Bookmarks] = {}


@pytest.fixture(
    scope="module",
    params=[
        "memory",
        "memory-tokens",
        "mongodb",
        "dynamodb",
        "cosmos",
        "cosmos-every",
        "postgres-15",
        "postgres-16",
        "postgres-18",
    ],
)
def feed(request: pytest.FixtureRequest) -> Iterator[Feed]:
    """A feed with some thirty changes, nothing acknowledged; its pages are small."""
    kind, _, version = request.param.partition("-")
    if kind == "memory":
        how = {"changes": 30, "page": 7, "unit": 4}
        made = (
            StagedFeed(StagedSettings.model_validate({**how, version: True}))
            if version
            else MemoryFeed(MemoryFeedSettings(**how))
        )
        _begun[made] = made.begin()
        yield made
        return
    if kind == "dynamodb":
        with StreamsServer() as streams:
            yield _on_dynamodb(streams)
        return
    if kind == "cosmos":
        with CosmosServer() as cosmos:
            yield _on_cosmos(cosmos, every=bool(version))
        return
    if kind == "mongodb":
        with shop_on(request.getfixturevalue("mongo")) as shop:
            yield _on_mongodb(shop)
        return
    try:
        server = Postgres(version=int(version))
    except Unavailable as error:
        pytest.skip(str(error))
    with server, server.database() as database:
        feed = PostgresFeed(
            PostgresSettings(
                connection=database.url,
                slot="contract",
                publication="p",
                create_publication=True,
                page_rows=3,
            )
        )
        database.execute(_WORKLOAD)
        _begun[feed] = feed.begin()
        for transaction in _TRANSACTIONS:
            database.execute(transaction)
        yield feed


def _on_dynamodb(server: StreamsServer) -> Feed:
    """Pages of a few records."""
    stream = server.stream("users")
    shard = stream.shard()
    feed = DynamodbFeed(settings_of(server, reads=1000, poll=0.01))
    _begun[feed] = feed.begin()
    server.page_of_records = 7
    for n in range(_CHANGES):
        kind = ("INSERT", "UPDATE", "DELETE")[n % 3]
        stream.put(shard, f"k{n % 5}", kind, new={"n": n}, old={"n": n - 1}, at=server.now)
    return feed


def _on_cosmos(server: CosmosServer, *, every: bool) -> Feed:
    """Transactions of several items, which no page cuts; of all versions some change one twice."""
    container = server.container("shop", "orders")
    mode = "all_versions_and_deletes" if every else "latest_version"
    feed = cosmos_feed(server, mode=mode, page_items=4)
    _begun[feed] = feed.begin()
    for n in range(_CHANGES // 3):
        items = [{"id": f"k{3 * n + i}", "pk": f"p{n}"} for i in range(3)]
        if every and n % 2:
            items[2] = {**items[0], "n": n}
        container.transaction([("upsert", each) for each in items])
    return feed


def _on_mongodb(shop: Shop) -> Feed:
    """A feed with as many changes as the others have."""
    one, two = shop.db["one"], shop.db["two"]
    made = shop.feed(page_rows=3)
    _begun[made] = made.begin()
    one.insert_many([{"_id": number, "text": f"row {number}"} for number in range(1, 13)])
    one.insert_one({"_id": 100, "text": "x"})
    one.update_many({"_id": {"$lt": 4}}, {"$set": {"text": "y"}})
    one.delete_one({"_id": 12})
    with shop.client.start_session() as session, session.start_transaction():
        two.insert_many([{"_id": number} for number in (1, 2)], session=session)
        one.update_many({"_id": {"$lt": 4}}, {"$unset": {"text": 1}}, session=session)
    one.replace_one({"_id": 5}, {"text": "replaced"})
    one.rename("three")
    shop.db["three"].drop()
    two.delete_many({})
    two.insert_many([{"_id": number} for number in (7, 8, 9)])
    return made


def _start(feed: Feed) -> Bookmark:
    """Where it begins that forgets nothing: at the source, or in the bookmark of `begin`."""
    if not isinstance(feed, MongoFeed | CosmosFeed):
        return Bookmark()
    begun = next(begun for each, begun in _begun.items() if repr(each) == repr(feed))
    return begun[_only(feed)]


def _only(feed: Feed) -> PartitionId:
    return next(iter(feed.partitions())).partition


@contextmanager
def following(feed: Feed, after: Bookmark | None) -> Iterator[Following]:
    """A following, once the reader before is gone."""
    deadline = time.monotonic() + 60
    while True:
        try:
            found = feed.follow(_only(feed), after or _start(feed))
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            break
    try:
        yield found
    finally:
        found.close()


def read(feed: Feed, after: Bookmark | None, count: int) -> list[Page]:
    """Pages until there are `count` changes."""
    with following(feed, after) as found:
        return take(found, count)


def take(found: Following, count: int) -> list[Page]:
    pages: list[Page] = []
    deadline = time.monotonic() + 60
    while sum(page.count for page in pages) < count:
        assert time.monotonic() < deadline, pages
        pages += found.read(0.2)
    return pages


def changes(feed: Feed, pages: list[Page]) -> list[Change]:
    """Every change as text, without the time it was captured at."""
    decoder = feed.decoder("json")
    return [
        tuple(str(value) for name, value in row.items() if name != "captured_at")
        for page in pages
        for batch in decoder.decode(page)
        for row in batch.to_pylist()
    ]


def places(feed: Feed, pages: list[Page]) -> list[Place]:
    """Every change's place."""
    return [place for place, _, _ in bookmarks(feed, pages) if place is not None]


def bookmarks(feed: Feed, pages: list[Page]) -> list[Bookmark]:
    """What each change says of itself: its place, and its mark if that is needed."""
    decoder = feed.decoder("json")
    return [
        Bookmark(Place(row["cursor"], row["ordinal"]), json.loads(row["mark"] or "{}"))
        for page in pages
        for batch in decoder.decode(page)
        for row in batch.to_pylist()
    ]


@pytest.fixture(scope="module")
def everything(feed: Feed) -> list[Page]:
    """All pages, read once."""
    return read(feed, None, _CHANGES)


def test_every_change_is_in_a_page_and_decodes(feed: Feed, everything: list[Page]) -> None:
    found = changes(feed, everything)
    assert len(found) == sum(page.count for page in everything) == _CHANGES


def test_places_strictly_increase(feed: Feed, everything: list[Page]) -> None:
    found = places(feed, everything)
    assert found == sorted(set(found))


def test_event_ids_are_unique(feed: Feed, everything: list[Page]) -> None:
    ids = [change[4] for change in changes(feed, everything)]
    assert len(set(ids)) == len(ids)


def test_a_page_says_its_first_and_last_place_and_its_count(
    feed: Feed, everything: list[Page]
) -> None:
    for page in everything:
        found = places(feed, [page])
        assert (found[0], found[-1], len(found)) == (page.first, page.last, page.count)
        assert page.partition == _only(feed)


def test_resuming_after_every_place_gives_exactly_the_rest(
    feed: Feed, everything: list[Page]
) -> None:
    expected, marks = changes(feed, everything), bookmarks(feed, everything)
    for number, bookmark in enumerate(marks[:-1], start=1):
        rest = read(feed, bookmark, len(marks) - number)
        assert changes(feed, rest) == expected[number:], f"after {bookmark.place}"


def test_following_again_without_a_place_replays_what_was_not_acknowledged(
    feed: Feed, everything: list[Page]
) -> None:
    assert changes(feed, read(feed, None, _CHANGES)) == changes(feed, everything)


def test_the_same_page_decodes_the_same_twice_and_by_a_pickled_decoder(
    feed: Feed, everything: list[Page]
) -> None:
    copy = pickle.loads(pickle.dumps(feed.decoder("msgpack")))
    for page in everything:
        first, second = feed.decoder("msgpack").decode(page), copy.decode(page)
        assert [batch.to_pylist() for batch in first] == [batch.to_pylist() for batch in second]


def test_a_page_pickles(everything: list[Page]) -> None:
    assert pickle.loads(pickle.dumps(everything)) == everything


def test_a_feed_pickles_and_the_copy_reads_the_same(feed: Feed, everything: list[Page]) -> None:
    copy: Feed = pickle.loads(pickle.dumps(feed))
    assert copy.backend == feed.backend
    assert changes(copy, read(copy, None, _CHANGES)) == changes(feed, everything)


def test_after_the_last_place_a_read_finds_nothing_in_time(
    feed: Feed, everything: list[Page]
) -> None:
    with following(feed, bookmarks(feed, everything)[-1]) as found:
        assert list(found.read(0.1)) == []
        began = time.monotonic()
        assert list(found.read(0.2)) == []
        assert time.monotonic() - began < 30


def test_keep_alive_takes_nothing(feed: Feed, everything: list[Page]) -> None:
    with following(feed, None) as found:
        for _ in range(5):
            found.keep_alive()
        assert changes(feed, take(found, _CHANGES)) == changes(feed, everything)


def test_the_status_is_plain_and_says_whether_it_is_connected(
    feed: Feed, everything: list[Page]
) -> None:
    with following(feed, None) as found:
        found.read(0.2)
        status = found.status()
        assert status["connected"] is True
        PartitionReport(**{key: value for key, value in status.items() if key not in CLOCKED})
        plain = (str, int, float, bool, type(None))
        # Its own terms are apart from those that every source has.
        shown = {**status, **status.get("details", {}), "details": None}
        assert all(isinstance(value, plain) for value in shown.values())
    assert found.status()["connected"] is False


def test_the_preflight_check_finds_no_error(feed: Feed) -> None:
    findings = feed.check()
    assert findings
    assert [finding for finding in findings if finding.level == "error"] == []


def test_it_begins_at_a_bookmark_for_each_partition_that_is_plain_json(feed: Feed) -> None:
    begun = _begun[feed]
    roots = {each.partition for each in feed.partitions() if not each.parents}
    assert {name for name, each in begun.items() if not each.ended} == roots
    assert bookmarks_from_json(json.loads(json.dumps(bookmarks_to_json(begun)))) == begun


def test_what_is_written_after_begin_is_delivered(feed: Feed, everything: list[Page]) -> None:
    """However late it is followed."""
    begun = _begun[feed][_only(feed)]
    assert changes(feed, read(feed, begun, _CHANGES)) == changes(feed, everything)


@pytest.mark.parametrize("closed", [False, True])
def test_after_a_bookmark_of_its_own_it_gives_exactly_the_rest(
    feed: Feed, everything: list[Page], closed: bool
) -> None:
    """As a token in JSON, from another process: the feed is a pickled copy. A closed following has
    the bookmarks of all that it read."""
    expected, marks = changes(feed, everything), places(feed, everything)
    for number in (1, len(marks) // 2, len(marks) - 1):
        with following(feed, _begun[feed][_only(feed)]) as found:
            pages = take(found, _CHANGES)
            bookmark = None if closed else found.bookmark(marks[number - 1])
        if closed:
            assert found.bookmark(pages[-1].last) is not None
            bookmark = found.bookmark(marks[number - 1])
        assert bookmark is not None
        assert bookmark.place == marks[number - 1]
        token = Bookmark.from_json(json.loads(json.dumps(bookmark.to_json())))
        copy: Feed = pickle.loads(pickle.dumps(feed))
        assert changes(feed, read(copy, token, _CHANGES - number)) == expected[number:]


def test_a_token_is_where_it_begins(feed: Feed, everything: list[Page]) -> None:
    token = {_only(feed): Bookmark(everything[0].last, {})}
    assert feed.begin(token) == token


@pytest.mark.parametrize("at", ["now", "beginning", datetime(2026, 1, 1, tzinfo=UTC)])
def test_it_begins_where_it_is_asked_to_or_refuses(feed: Feed, at: At) -> None:
    copy: Feed = pickle.loads(pickle.dumps(feed))
    try:
        begun = copy.begin(at)
    except SettingsError as error:
        assert error.hint
        assert at != "now", "every feed can begin now"
    else:
        assert set(begun) == set(_begun[feed])


def test_a_listing_names_every_partition_once_and_says_what_it_is(feed: Feed) -> None:
    listing = feed.partitions(_begun[feed])
    names = [each.partition for each in listing]
    assert len(names) == len(set(names)) == len(listing) > 0
    assert listing.complete is True
    assert isinstance(listing.history, str)
    assert list(feed.partitions()) != [], "nothing need be known"


def test_the_status_of_a_feed_is_plain_and_does_no_io(feed: Feed) -> None:
    copy: Feed = pickle.loads(pickle.dumps(feed))
    status = copy.status()
    assert json.loads(json.dumps(status)) == status
    assert status.get("state", "") == ""


def test_hash_partitions_change_no_other_column_of_a_page(
    feed: Feed, everything: list[Page]
) -> None:
    decoder = hashing(feed.decoder("json"), 4)
    plain = feed.decoder("json")
    for page in everything:
        (expected,), (found,) = plain.decode(page), decoder.decode(page)
        assert found.drop_columns(["route"]) == expected.drop_columns(["route"])


def test_a_feed_says_its_policy_for_gaps(feed: Feed) -> None:
    assert feed.on_gap == "fail"


def test_a_feed_without_snapshots_refuses_to_resnapshot(feed: Any) -> None:
    given = feed.settings.model_dump(exclude_unset=True) | {"on_gap": "resnapshot"}
    if isinstance(feed, TakesSnapshots):
        assert type(feed.settings).model_validate(given).on_gap == "resnapshot"
        return
    with pytest.raises(ValueError, match=r"snapshots|on_gap is no more"):
        type(feed.settings).model_validate(given)


def test_beginning_twice_is_beginning_once(feed: Feed, everything: list[Page]) -> None:
    feed.begin()
    feed.begin()
    assert changes(feed, read(feed, None, _CHANGES)) == changes(feed, everything)


class WrongOnce:
    """A feed whose source says once that what comes after a bookmark is lost, when it is followed
    or by the first read."""

    def __init__(self, feed: Feed, policy: GapPolicy, found: str) -> None:
        self._feed, self._found, self.on_gap = feed, found, policy
        self.is_wrong = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    def follow(self, partition: PartitionId, bookmark: Bookmark, **more: Any) -> Following:
        gap = Gap(cause="wrong", after=str(bookmark.place or ""), policy=self.on_gap)
        wrong, self.is_wrong = self.is_wrong, False
        if wrong and self._found == "follow":
            raise HistoryLost(gap)
        following = self._feed.follow(partition, bookmark, **more)
        if wrong:

            def read(timeout: float) -> Sequence[Page]:
                raise HistoryLost(gap)

            following.read = read  # type: ignore[method-assign]
        return following


@pytest.mark.parametrize("policy", ["fail", "continue", "resnapshot"])
@pytest.mark.parametrize("found", ["follow", "read"])
@pytest.mark.parametrize("has_place", [False, True])
def test_one_answer_that_history_is_lost_loses_and_ends_nothing(
    feed: Feed, everything: list[Page], policy: GapPolicy, found: str, has_place: bool
) -> None:
    expected, marks = changes(feed, everything), bookmarks(feed, everything)
    done = len(marks) // 2 if has_place else 0
    after = marks[done - 1] if has_place else _start(feed)
    gaps, clock, pages = GapLog(), Clock(), list[Page]()
    wrong: Any = WrongOnce(feed, policy, found)
    reader = PartitionReader(wrong, _only(feed), after, gaps, is_stored=False, clock=clock)
    deadline = time.monotonic() + 60
    while sum(page.count for page in pages) < _CHANGES - done:
        assert time.monotonic() < deadline
        step = confirmed(reader, clock, 0.2)
        assert step.error is None or isinstance(step.error, Unavailable), step.error
        pages += step.pages
    reader.disconnect()
    assert not wrong.is_wrong
    assert changes(feed, pages) == expected[done:]
    assert (gaps.rows(), reader.drained) == ({}, False)


class RefusingFor:
    """A feed whose source refuses a position until a moment of the clock, each time after a reply
    without changes, and takes 31 seconds for each. Following finds nothing lost."""

    def __init__(self, feed: Feed, policy: GapPolicy, clock: Clock, seconds: float) -> None:
        self._feed, self.on_gap = feed, policy
        self._clock, self._until = clock, clock.now + seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    def judged(self, error: PositionLost, bookmark: Bookmark) -> HistoryLost | None:
        """The feed's own, which asks the source."""
        with suppress(Unavailable):
            return self._feed.judged(error, bookmark)
        return None

    def follow(self, partition: PartitionId, bookmark: Bookmark, **more: Any) -> Following:
        following = self._feed.follow(partition, bookmark, **more)
        replies, read = iter([False, True]), following.read

        def slowly(timeout: float) -> Sequence[Page]:
            self._clock.now += 31.0
            if self._clock.now >= self._until:
                return read(timeout)
            if next(replies):
                # ChangeStreamHistoryLost, which MongoDB's oplog has to confirm.
                raise PositionLost("refused") from OperationFailure("refused", 286)
            return ()

        following.read = slowly  # type: ignore[method-assign]
        return following


@pytest.mark.parametrize("policy", ["fail", "continue", "resnapshot"])
def test_a_refusal_for_a_while_is_no_gap_where_nothing_is_lost(
    feed: Feed, everything: list[Page], policy: GapPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, marks = changes(feed, everything), bookmarks(feed, everything)
    done = len(marks) // 2
    if isinstance(feed, MongoFeed):
        monkeypatch.setattr(losses, "reach", lambda settings: (1, ""))  # the stand-in has no oplog
    gaps, clock, pages = GapLog(), Clock(), list[Page]()
    refusing: Any = RefusingFor(feed, policy, clock, 400.0)
    reader = PartitionReader(
        refusing, _only(feed), marks[done - 1], gaps, is_stored=False, clock=clock
    )
    deadline, refused = time.monotonic() + 60, 0
    while sum(page.count for page in pages) < _CHANGES - done:
        assert time.monotonic() < deadline
        step = confirmed(reader, clock, 0.2)
        assert step.error is None or isinstance(step.error, Unavailable), step.error
        refused += step.error is not None and step.error.message == "refused"
        pages += step.pages
    reader.disconnect()
    assert refused > 3
    assert changes(feed, pages) == expected[done:]
    assert gaps.rows() == {}


def test_zz_after_an_acknowledgement_in_the_middle_the_rest_is_still_there(
    feed: Feed, everything: list[Page]
) -> None:
    """Last in this file, because a source may forget what was acknowledged."""
    expected, marks = changes(feed, everything), bookmarks(feed, everything)
    middle = marks[len(marks) // 2]
    with following(feed, None) as found:
        take(found, _CHANGES)
        found.acknowledge(Bookmark(middle.place))
        found.acknowledge(Bookmark(marks[0].place))  # never back
        found.read(0.0)
    rest = read(feed, middle, len(marks) // 2 - 1)
    assert changes(feed, rest) == expected[len(marks) // 2 + 1 :]
    again = changes(feed, read(feed, None, len(marks) // 2 - 1))
    # From the acknowledged place, or from the start of its transaction; never from after it.
    start = expected.index(again[0])
    # The others go by bookmarks alone.
    remembers = not isinstance(feed, (MongoFeed, DynamodbFeed, CosmosFeed))
    assert int(remembers) <= start <= len(marks) // 2 + 1
    assert again == expected[start : start + len(again)]
