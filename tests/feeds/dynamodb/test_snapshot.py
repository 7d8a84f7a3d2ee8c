"""A table's items by segments of a Scan: on a scripted server, named after the service model."""

import pickle
from typing import Any

import orjson
import pytest

from penstock.feeds import SnapshotWait, TakesSnapshots
from penstock.feeds.dynamodb import DynamodbFeed, table
from penstock.feeds.dynamodb.table import DynamodbSnapshot, ReadPace, page_of, read_scan
from penstock.model.errors import Malformed, SettingsError, Unavailable
from tests.dynamodb.server import StreamsServer, settings_of


@pytest.fixture
def server(server: StreamsServer) -> StreamsServer:
    server.stream("users").shard()
    server.items = {f"k{n:03}": {"n": {"N": str(n)}, "raw": {"B": "AP8="}} for n in range(100)}
    return server


def feed_of(server: StreamsServer, **given: Any) -> DynamodbFeed:
    return DynamodbFeed(settings_of(server, **given))


def taken(feed: DynamodbFeed, **known: Any) -> DynamodbSnapshot:
    return feed.snapshot("", "users", known.get("known", feed.begin()), SnapshotWait(patience=1.0))


def scanned(feed: DynamodbFeed, found: DynamodbSnapshot, rows: int = 7) -> list[dict[str, Any]]:
    with pickle.loads(pickle.dumps(found.source)).opened(lambda: False) as read:
        return [
            row
            for part in found.plan(10, 2**20)
            for page in read(orjson.loads(orjson.dumps(part)), rows, 2**20)
            for batch in feed.decoder("json").decode(page)
            for row in batch.to_pylist()
        ]


@pytest.mark.slow
def test_all_segments_are_the_table(server: StreamsServer) -> None:
    server.item_count = 95  # of some hours ago
    feed = feed_of(server)
    assert isinstance(feed, TakesSnapshots)
    with taken(feed) as found:
        assert not found.is_exact
        assert len(found.plan(10, 2**20)) == 10
        rows = scanned(feed, found)
    assert {orjson.loads(row["key"])["id"] for row in rows} == server.items.keys()
    assert len(rows) == 100
    one = next(row for row in rows if row["key"] == '{"id":"k007"}')
    assert orjson.loads(one["after"]) == {"id": "k007", "n": 7, "raw": "AP8="}
    scans = [given for operation, given in server.calls if operation == "Scan"]
    assert all(given["ConsistentRead"] for given in scans)  # else items lack older changes
    assert max(given["Limit"] for given in scans) == 7


@pytest.mark.slow
def test_an_empty_table_has_one_segment(server: StreamsServer) -> None:
    server.items = {}
    feed = feed_of(server)
    with taken(feed) as found:
        assert found.plan(10, 2**20) == [{"segment": 0, "of": 1}]
        assert scanned(feed, found) == []


@pytest.mark.slow
def test_reads_that_are_refused_are_made_again(
    server: StreamsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "delays", lambda **_: iter([0.01] * 10))
    server.fail("Scan", "ProvisionedThroughputExceededException", times=9)
    feed = feed_of(server)
    with taken(feed) as found:
        assert len(scanned(feed, found)) == 100


def test_reads_that_are_refused_for_long_end_it(
    server: StreamsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_PATIENCE", 0.0)
    server.fail("Scan", "ProvisionedThroughputExceededException", times=99)
    feed = feed_of(server)
    with taken(feed) as found, pytest.raises(Unavailable, match="ProvisionedThroughput"):
        scanned(feed, found)


def test_one_that_is_stopped_ends(server: StreamsServer) -> None:
    with (
        taken(feed_of(server)) as found,
        found.source.opened(lambda: True) as read,
        pytest.raises(Unavailable, match="stopped before all ranges were read"),
    ):
        list(read({"segment": 0, "of": 1}, 10, 100))


def test_capacity_is_paid_for_before_the_next_read() -> None:
    pace = ReadPace(100)
    assert pace.due == 0
    pace.used(256, 0.0)  # 1 MB, read consistently
    assert pace.due == pytest.approx(2.56)
    pace.used(100, 12.56)  # what was not used is not saved up
    assert pace.due == pytest.approx(13.56)
    pace.used(100, 13.0)
    assert pace.due == pytest.approx(14.56)


@pytest.mark.parametrize(
    ("view", "said"),
    [("KEYS_ONLY", "the view type KEYS_ONLY"), ("OLD_IMAGE", "the view type OLD_IMAGE")],
)
def test_changes_without_items_are_refused(view: str, said: str) -> None:
    with StreamsServer() as server:
        server.stream("users", view=view).shard()
        with pytest.raises(SettingsError, match=said), taken(feed_of(server)):
            pass


@pytest.mark.slow
def test_what_cannot_be_taken_is_refused(server: StreamsServer) -> None:
    feed = feed_of(server)
    with pytest.raises(Unavailable, match="no position is saved"), taken(feed, known={}):
        pass
    known = feed.begin()
    server.fail("DescribeTable", "AccessDeniedException")
    with pytest.raises(SettingsError, match="AccessDenied") as refused, taken(feed, known=known):
        pass
    assert "docs/how-to/dynamodb.md" in refused.value.hint
    (stream,) = server.streams.values()
    other = feed_of(server, table="", stream=stream.arn)
    known = other.begin()
    server.stream("users").shard()
    with pytest.raises(SettingsError, match="another stream"), taken(other, known=known):
        pass


def test_a_start_with_a_snapshot_begins_now(server: StreamsServer) -> None:
    feed = feed_of(server, start="snapshot")
    (stream,) = server.streams.values()
    assert any("iterator" in (one.mark or {}) for one in feed.begin().values())
    (schema,) = feed.schemas()
    assert (schema.name, schema.is_of_documents) == (("users",), True)
    assert [column["name"] for column in schema.columns if column["key"]] == ["id"]
    assert stream.arn


def test_what_is_no_answer_is_an_error() -> None:
    with pytest.raises(Malformed, match="an answer of Scan"):
        read_scan(b'{"Items":7}')
    answer = read_scan(b'{"Items":[{"id":{"S":"a"}},{"other":{"S":"a"}}]}')
    assert page_of(answer.items[:1], "t", ["id"], 0).count == 1
    with pytest.raises(Malformed, match="has no key"):
        page_of(answer.items, "t", ["id"], 0)


def test_binary_keys_go_back_as_they_came() -> None:
    assert table._sendable({"a": {"B": "AP8="}, "b": {"N": "1"}}) == {
        "a": {"B": b"\0\xff"}, "b": {"N": "1"},
    }  # fmt: skip
