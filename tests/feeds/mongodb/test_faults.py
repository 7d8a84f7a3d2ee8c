"""What a server and a network do to a change stream: nothing is lost, and nothing comes twice."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pymongo
import pytest

from penstock.feeds import Following, Gap, HistoryLost
from penstock.feeds.mongodb import MongoFeed
from penstock.feeds.mongodb.failures import LOST, RESUMABLE
from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.errors import PositionLost, SettingsError, Unavailable
from penstock.model.position import Bookmark, Place
from tests.chaos.proxy import Proxy, Weather
from tests.mongo import REAL, Shop, eventually, follow, mongodb, pages, rows, shop_on
from tests.servers import Secantus

on_stand_in = pytest.mark.skipif(bool(REAL), reason="needs a server of its own, with fail points")
on_a_real_one = pytest.mark.skipif(
    not REAL, reason="needs a real replica set or sharded cluster: PENSTOCK_MONGODB_URL"
)


class Reader:
    """Follows again after each `Unavailable`, as the reservoir does."""

    def __init__(self, feed: MongoFeed) -> None:
        self.feed = feed
        self.bookmark = feed.begin()[PARTITION]
        self.failures = 0
        self.rows: list[dict[str, Any]] = []
        self._following: Following | None = None

    def read(self, count: int, *, seconds: float = 90) -> list[str]:
        """The document ids, once there are `count` changes."""
        deadline = time.monotonic() + seconds
        while len(self.rows) < count:
            assert time.monotonic() < deadline, f"{len(self.rows)} of {count}"
            try:
                self._turn()
            except Unavailable:
                self.failures += 1
                self.close()
                time.sleep(0.05)
        return [row["document_id"] for row in self.rows]

    def until_it_fails(self, *, seconds: float = 90) -> None:
        """Reads until the server cannot be read."""
        deadline = time.monotonic() + seconds
        with pytest.raises(Unavailable):
            while time.monotonic() < deadline:
                self._turn()
        self.close()

    def _turn(self) -> None:
        if self._following is None:
            self._following = self.feed.follow(PARTITION, self.bookmark)
        found = list(self._following.read(0.2))
        self.rows += rows(self.feed, found)
        if found:
            self.bookmark = self._following.bookmark(found[-1].last) or self.bookmark

    def close(self) -> None:
        if self._following is not None:
            self._following.close()
            self._following = None


@pytest.fixture
def reader_of(shop: Shop) -> Iterator[Callable[..., Reader]]:
    readers: list[Reader] = []

    def make(**settings: Any) -> Reader:
        readers.append(Reader(shop.feed(**settings)))
        return readers[-1]

    yield make
    for each in readers:
        each.close()


@contextmanager
def fail_point(shop: Shop, name: str, data: dict[str, Any], times: int) -> Iterator[None]:
    admin = shop.client.admin
    admin.command({"configureFailPoint": name, "mode": {"times": times}, "data": data})
    try:
        yield
    finally:
        admin.command({"configureFailPoint": name, "mode": "off"})


@on_stand_in
@pytest.mark.parametrize("code", sorted(RESUMABLE))
def test_a_resumable_code_of_a_getmore_loses_nothing(
    shop: Shop, reader_of: Callable[..., Reader], code: int
) -> None:
    reader = reader_of()
    shop.db.users.insert_one({"_id": 1})
    reader.read(1)
    data = {"errorCode": code, "closeConnection": False}
    with fail_point(shop, "failGetMoreAfterCursorCheckout", data, 2):
        shop.db.users.insert_one({"_id": 2})
        assert reader.read(2) == ["1", "2"]
    eventually(lambda: reader.failures >= 1)


@on_stand_in
@pytest.mark.parametrize("code", sorted(RESUMABLE))
def test_a_resumable_code_of_an_aggregate_is_tried_again(
    shop: Shop, reader_of: Callable[..., Reader], code: int
) -> None:
    reader = reader_of()
    data = {"errorCode": code, "failCommands": ["aggregate"]}
    with fail_point(shop, "failCommand", data, 2):
        shop.db.users.insert_one({"_id": 1})
        assert reader.read(1) == ["1"]
    assert reader.failures == 2


@on_stand_in
@pytest.mark.parametrize("code", sorted(set(LOST) - {9}))
def test_lost_history_is_found_by_following_again(shop: Shop, code: int) -> None:
    feed = shop.feed()
    bookmark = feed.begin()[PARTITION]
    data = {"errorCode": code, "closeConnection": False}
    with (
        follow(feed, bookmark) as following,
        fail_point(shop, "failGetMoreAfterCursorCheckout", data, 1),
        pytest.raises(PositionLost),
    ):
        following.read(0.2)
    with (
        fail_point(shop, "failCommand", {"errorCode": code, "failCommands": ["aggregate"]}, 1),
        pytest.raises(HistoryLost) as lost,
    ):
        feed.follow(PARTITION, bookmark)
    assert lost.value.gap.cause == LOST[code]
    assert lost.value.hint


@on_stand_in
def test_ten_unknown_errors_end_this_backend_only(shop: Shop) -> None:
    failing, fine = Reader(shop.feed(name="a")), Reader(shop.feed(name="b"))
    data = {"errorCode": 77_777, "failCommands": ["aggregate"]}
    with fail_point(shop, "failCommand", data, 10), pytest.raises(SettingsError) as caught:
        failing.read(1)
    assert failing.failures == 9
    assert "10 times in a row" in caught.value.message
    shop.db.users.insert_one({"_id": 1})
    assert fine.read(1) == ["1"]
    fine.close()


@on_stand_in
def test_a_killed_server_loses_nothing_that_it_acknowledged() -> None:
    server = Secantus()  # with --sync-on-commit
    with server, shop_on(server.url) as shop:
        reader = Reader(shop.feed(connect_timeout=2))
        acknowledged: list[str] = []
        for round_ in range(3):
            for number in range(20):
                shop.db.users.insert_one({"_id": f"{round_}-{number}"})
                acknowledged.append(f"{round_}-{number}")
            reader.read(len(acknowledged) - 10)  # some of them are not read yet
            server.kill()
            with pytest.raises(Unavailable):
                reader.feed.follow(PARTITION, reader.bookmark)
            server.start()
        assert reader.read(len(acknowledged)) == acknowledged
        reader.close()


@on_stand_in
def test_a_network_that_is_cut_loses_nothing(shop: Shop) -> None:
    host, port = shop.url.removeprefix("mongodb://").split(":")
    proxy = Proxy(host, int(port))
    url = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
    reader = Reader(shop.feed(connection=url, connect_timeout=1, silence=2))
    try:
        expected = []
        for round_, weather in enumerate(
            (Weather(refused=True), Weather(lost="all"), Weather(lost="answers"), Weather(cut=40))
        ):
            shop.db.users.insert_one({"_id": f"{round_}a"})
            expected.append(f"{round_}a")
            assert reader.read(len(expected)) == expected
            proxy.weather = weather
            proxy.reset()
            shop.db.users.insert_one({"_id": f"{round_}b"})
            expected.append(f"{round_}b")
            reader.until_it_fails()
            assert len(reader.rows) < len(expected)
            proxy.weather = Weather()
            proxy.reset()
            assert reader.read(len(expected)) == expected
    finally:
        reader.close()
        proxy.close()


@on_stand_in
def test_a_silent_server_counts_as_hung() -> None:
    with mongodb() as url, shop_on(url) as shop:
        host, port = url.removeprefix("mongodb://").split(":")
        proxy = Proxy(host, int(port))
        through = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
        feed = shop.feed(connection=through, silence=2)
        try:
            with follow(feed, feed.begin()[PARTITION]) as following:
                following.read(0.1)
                proxy.weather = Weather(stalled=True)
                with pytest.raises(Unavailable):
                    following.read(0.1)
                proxy.weather = Weather()
        finally:
            proxy.close()


@on_stand_in
def test_an_oplog_that_rolled_over_is_lost_history_and_goes_on_when_told_so() -> None:
    with mongodb(**{"oplog-max-entries": 50}) as url, shop_on(url) as shop:
        feed = shop.feed(on_gap="continue")
        shop.db.users.insert_one({"_id": "first"})
        begun = feed.begin()[PARTITION]
        shop.db.users.insert_one({"_id": "read"})
        with follow(feed, begun) as following:
            (page,) = pages(following, 1)
            bookmark = following.bookmark(page.last)
        assert bookmark is not None

        def lost() -> Gap | None:
            shop.db.users.insert_many([{} for _ in range(100)])
            try:
                feed.follow(PARTITION, bookmark).close()
            except HistoryLost as error:
                return error.gap
            return None

        (fine,) = feed.check_bookmark(PARTITION, bookmark)
        assert fine.level == "ok"
        gap = eventually(lost)
        (finding,) = feed.check_bookmark(PARTITION, bookmark)
        assert finding.level == "error"
        assert "replSetResizeOplog" in finding.remedy
        assert gap.cause == "oplog_rolled_over"
        assert gap.after == str(page.last)
        assert gap.policy == "continue"
        following = feed.follow(PARTITION, bookmark, despite=[gap])
        assert following.begins > page.last.cursor
        shop.db.users.insert_one({"_id": "after"})
        found: list[dict[str, Any]] = []
        while "after" not in [row["document_id"] for row in found]:  # all that the oplog has left
            found += rows(feed, pages(following, 1))
        newest = following.bookmark(Place(found[-1]["cursor"], found[-1]["ordinal"]))
        following.close()
        assert found[0]["cursor"] > page.last.cursor
        shop.db.users.insert_one({"_id": "next"})
        assert newest is not None
        with follow(feed, newest) as following:
            assert rows(feed, pages(following, 1))[0]["document_id"] == "next"


def test_a_token_that_is_none_is_lost_history(shop: Shop) -> None:
    feed = shop.feed()
    bookmark = Bookmark(mark={"token": {"_data": "00FF00FF00FF00FF"}})
    with pytest.raises(HistoryLost) as lost:
        feed.follow(PARTITION, bookmark)
    assert lost.value.gap.cause in ("token_invalid", "token_unknown")


def test_a_position_that_the_server_has_not_reached_is_waited_for(shop: Shop) -> None:
    feed = shop.feed(on_gap="continue")
    bookmark = Bookmark(Place("F0000000/00000001", 3), feed.begin()[PARTITION].mark)
    with pytest.raises(Unavailable, match="before the saved position"):
        feed.follow(PARTITION, bookmark)


def test_a_collection_that_joins_and_leaves_the_list_drops_and_doubles_nothing(shop: Shop) -> None:
    """In one transaction, so that all have one cluster time: the counter shifts, the token not."""
    for name in ("users", "orders"):
        shop.db.create_collection(name)
    wide, narrow = shop.feed(), shop.feed(collections=["users"])
    begun = narrow.begin()[PARTITION]
    with shop.client.start_session() as session, session.start_transaction():
        for number in range(4):
            shop.db.users.insert_one({"_id": f"u{number}"}, session=session)
            shop.db.orders.insert_one({"_id": f"o{number}"}, session=session)
    with follow(narrow, begun) as following:
        users = rows(narrow, pages(following, 4))
    assert [row["document_id"] for row in users] == ["u0", "u1", "u2", "u3"]
    second = Bookmark(Place(users[1]["cursor"], users[1]["ordinal"]), json.loads(users[1]["mark"]))
    with follow(wide, second) as following:
        joined = rows(wide, pages(following, 5))
    assert [row["document_id"] for row in joined] == ["o1", "u2", "o2", "u3", "o3"]
    again = {row["document_id"]: row["event_id"] for row in users}
    assert all(again.get(row["document_id"], row["event_id"]) == row["event_id"] for row in joined)
    places = [(row["cursor"], row["ordinal"]) for row in (*users[:2], *joined)]
    assert places == sorted(set(places))
    third = Bookmark(
        Place(joined[0]["cursor"], joined[0]["ordinal"]), json.loads(joined[0]["mark"])
    )
    with follow(narrow, third) as following:
        left = rows(narrow, pages(following, 2))
    assert [row["document_id"] for row in left] == ["u2", "u3"]


def test_collections_are_dropped_and_renamed_under_load(shop: Shop) -> None:
    """What a stream says about collections is what happened, in order."""
    feed = shop.feed()
    reader = Reader(feed)
    expected = []
    for number in range(15):
        name = f"c{number % 3}"
        shop.db[name].insert_many([{"_id": f"{number}-{each}"} for each in range(10)])
        expected += [("INSERT", name)] * 10
        if number % 3 == 2:
            shop.db[name].rename("old", dropTarget=True)
            expected.append(("RENAME", name))
        elif number % 3 == 1:
            shop.db[name].drop()
            expected.append(("DROP", name))
    reader.read(len(expected))
    told = [(row["operation"], row["collection"]) for row in reader.rows]
    reader.close()
    # A rename onto another collection may be told as a drop of that one, too.
    assert [each for each in told if each != ("DROP", "old")] == expected


@on_stand_in
def test_a_primary_that_steps_down_is_followed_again(
    shop: Shop, reader_of: Callable[..., Reader]
) -> None:
    reader = reader_of()
    shop.db.users.insert_one({"_id": 1})
    reader.read(1)
    admin = pymongo.MongoClient(shop.url).admin
    data = {"errorCode": 10107, "closeConnection": True}
    admin.command(
        {"configureFailPoint": "failGetMoreAfterCursorCheckout", "mode": {"times": 3}, "data": data}
    )
    shop.db.users.insert_one({"_id": 2})
    assert reader.read(2) == ["1", "2"]
    admin.client.close()


@on_a_real_one
def test_an_election_loses_and_repeats_nothing(
    shop: Shop, reader_of: Callable[..., Reader]
) -> None:
    if _is_sharded(shop):
        pytest.skip("mongos hides elections: give the URL of a replica set")
    reader = reader_of()
    shop.db.users.insert_one({"_id": 1})
    reader.read(1)
    with suppress(pymongo.errors.AutoReconnect):  # the old primary closes its connections
        shop.client.admin.command({"replSetStepDown": 10, "force": True})
    eventually(lambda: _inserted(shop, 2))
    assert reader.read(2) == ["1", "2"]


@on_a_real_one
def test_a_resized_oplog_is_no_gap(shop: Shop, reader_of: Callable[..., Reader]) -> None:
    if _is_sharded(shop):
        pytest.skip("a shard's oplog is resized at the shard: give the URL of a replica set")
    reader = reader_of()
    shop.db.users.insert_one({"_id": 1})
    reader.read(1)
    reader.close()
    shop.client.admin.command({"replSetResizeOplog": 1, "size": 990.0})
    shop.db.users.insert_one({"_id": 2})
    assert reader.read(2) == ["1", "2"]


@on_a_real_one
def test_a_sharded_collection_has_compound_keys_and_one_change_of_each(
    shop: Shop, reader_of: Callable[..., Reader]
) -> None:
    if not _is_sharded(shop):
        pytest.skip("needs mongos: give the URL of a sharded cluster")
    shop.client.admin.command({"enableSharding": shop.name})
    shop.client.admin.command(
        {"shardCollection": f"{shop.name}.users", "key": {"country": "hashed"}}
    )
    reader = reader_of()
    shop.db.users.insert_many([{"_id": number, "country": f"c{number}"} for number in range(50)])
    found = reader.read(50)
    keys = [json.loads(each) for each in found]
    assert sorted(key["_id"] for key in keys) == list(range(50))
    assert all(key["country"] == f"c{key['_id']}" for key in keys)


def _is_sharded(shop: Shop) -> bool:
    return shop.client.admin.command("hello").get("msg") == "isdbgrid"


def _inserted(shop: Shop, number: int) -> bool:
    try:
        shop.db.users.replace_one({"_id": number}, {}, upsert=True)
    except pymongo.errors.PyMongoError:
        return False
    return True
