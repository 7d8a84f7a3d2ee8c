"""What the scripted mongod says, held against a real one: these run on either.

With PENSTOCK_MONGODB_URL they run on that replica set or sharded cluster, else on the scripted
server. The user must be allowed to write; what a role does not allow is skipped with the reason.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pymongo.errors
import pytest

from penstock.feeds import HistoryLost
from penstock.feeds.mongodb.cluster import (
    asking,
    hello_of,
    id_namespace,
    is_sharded,
    oldest_in,
)
from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.errors import SettingsError
from penstock.model.position import Bookmark, Place
from penstock.wire.changestream.events import cursor_of
from tests.mongo import REAL, Shop, shop_on
from tests.mongodb.reading import Read, Reading
from tests.mongodb.server import ScriptedMongod


@pytest.fixture
def either(request: pytest.FixtureRequest) -> Iterator[Shop]:
    """A fresh database of the real server, or of the scripted one."""
    url = REAL or request.getfixturevalue("server").url
    with shop_on(url) as shop:
        yield shop


def begun(shop: Shop, reading: Read, *ids: str, **settings: Any) -> Reading:
    """A reading from now on, that has read documents with these ids."""
    there = reading(shop.feed(**settings))
    there.until(lambda: there.reader.is_connected)
    for each in ids:
        shop.db.users.insert_one({"_id": each})
    assert there.read(len(ids)) == list(ids)
    return there


def id_of(shop: Shop) -> str:
    cluster = str((shop.feed().begin()[PARTITION].mark or {}).get("cluster", ""))
    if not cluster or cluster.endswith("/"):
        with asking(shop.settings()) as client:
            pytest.skip(f"the role may not read {id_namespace(hello_of(client))}")
    return cluster


def test_a_start_before_the_oplog_opens_and_is_refused_by_the_first_read(
    either: Shop, request: pytest.FixtureRequest
) -> None:
    """286: src/mongo/db/pipeline/document_source_change_stream_check_resumability.cpp."""
    if not REAL:
        server: ScriptedMongod = request.getfixturevalue("server")
        server.history.advance(3600)
        server.history.insert(1)
        server.history.trim(1)
    feed = either.feed()
    bookmark = feed.begin(datetime(2001, 1, 1, tzinfo=UTC))[PARTITION]
    following = feed.follow(PARTITION, bookmark)
    with pytest.raises(HistoryLost) as lost:
        following.read(1.0)
    following.close()
    assert lost.value.gap.cause == "oplog_rolled_over"
    (finding,) = feed.check_bookmark(PARTITION, bookmark)
    assert finding.level == "error"


@pytest.mark.slow
def test_an_event_that_is_not_found_goes_on_at_its_time(either: Shop, reading: Read) -> None:
    """280: document_source_change_stream_ensure_resume_token_present.cpp. The key of the document
    is a part of the token."""
    there = begun(either, reading, "penstock-a", "penstock-b")
    row = there.rows[0]
    there.close()
    mark = json.loads(row["mark"])
    mark["token"]["_data"] = mark["token"]["_data"].replace(
        b"penstock-a".hex().upper(), b"penstock-c".hex().upper()
    )
    if mark == json.loads(row["mark"]):
        pytest.skip("this server's tokens have no documents' keys")
    bookmark = Bookmark(Place(row["cursor"], row["ordinal"]), mark)
    again = reading(either.feed(on_gap="continue"), bookmark)
    assert again.read(1)[0] == "penstock-b"
    assert again.causes == ["token_unknown"]
    assert again.rows[0]["event_id"] == there.rows[1]["event_id"]


@pytest.mark.slow
def test_an_idle_token_has_the_id_of_the_cluster(either: Shop, reading: Read) -> None:
    cluster = id_of(either)
    there = begun(either, reading, "a", collections=["users"])
    last = there.bookmark()

    def idle() -> bool:
        either.db.other.insert_one({})
        return there.bookmark() != last

    there.until(idle)
    idled = there.bookmark()
    there.close()
    assert idled.mark is not None
    assert idled.mark["cluster"] == cluster
    feed = either.feed()
    foreign = {**idled.mark, "cluster": cluster[:-24] + "0" * 24}
    with pytest.raises(HistoryLost) as lost:
        feed.follow(PARTITION, idled._replace(mark=foreign))
    assert lost.value.gap.cause == "other_cluster"
    feed.follow(PARTITION, idled).close()


@pytest.mark.slow
def test_a_change_that_the_oplog_lacks_is_another_history(
    either: Shop, reading: Read, request: pytest.FixtureRequest
) -> None:
    there = begun(either, reading, "a")
    if not REAL:
        request.getfixturevalue("server").history.advance(2)
    there.until(lambda: _is_a_second_later(either, there))
    bookmark = there.bookmark()
    with asking(either.settings()) as client:
        if is_sharded(hello_of(client)):
            pytest.skip("mongos reads no oplog")
        try:
            oldest = oldest_in(client)
        except SettingsError:
            pytest.skip("the role may not read local.oplog.rs")
    seconds = int(there.places[0].cursor[:8], 16)
    missing = seconds << 32 | 0xFFFFFF
    assert oldest < missing
    feed = either.feed()
    feed.follow(PARTITION, bookmark).close()
    with pytest.raises(HistoryLost) as lost:
        feed.follow(PARTITION, Bookmark(Place(cursor_of(missing), 0), bookmark.mark))
    assert lost.value.gap.cause == "other_cluster"


def _is_a_second_later(shop: Shop, there: Reading) -> bool:
    """Whether a change of a later second than the first one's was read."""
    shop.db.users.insert_one({})
    return there.places[-1].cursor[:8] > there.places[0].cursor[:8]


@pytest.mark.slow
def test_ten_unknown_errors_of_getmores_end_the_backend(
    either: Shop, reading: Read, request: pytest.FixtureRequest
) -> None:
    there = begun(either, reading, "a")
    if REAL:
        _fail_getmores(either)
    else:
        request.getfixturevalue("server").fail("getMore", 77_777, times=10)
    errors = [there.step() for _ in range(12)]
    (found,) = [each for each in errors if isinstance(each, SettingsError)]
    assert "10 times in a row" in found.message


def _fail_getmores(shop: Shop) -> None:
    if is_sharded(hello_of(shop.client)):
        pytest.skip("fail points of mongos are not those of its shards")
    try:
        shop.client.admin.command(
            {
                "configureFailPoint": "failCommand",
                "mode": {"times": 10},
                "data": {
                    "failCommands": ["getMore"],
                    "errorCode": 77_777,
                    "namespace": f"{shop.name}.$cmd.aggregate",
                },
            }
        )
    except pymongo.errors.PyMongoError as error:
        pytest.skip(f"fail points need --setParameter enableTestCommands=1: {error}")


def test_a_secondary_is_read(either: Shop, reading: Read) -> None:
    if not REAL or is_sharded(hello_of(either.client)) or not either.client.secondaries:
        pytest.skip("needs a real replica set with a secondary")
    joint = "&" if "?" in either.url else "/?"
    there = begun(either, reading, "a", connection=f"{either.url}{joint}readPreference=secondary")
    assert not there.errors
