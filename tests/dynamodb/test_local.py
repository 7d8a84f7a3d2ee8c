"""The feed on DynamoDB Local. Values, tokens, and moto, too, are in `tests/stream`."""

import re
import time
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.feeds import HistoryLost
from penstock.feeds.dynamodb import DynamodbFeed, DynamodbSettings
from penstock.model.errors import Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId
from tests.dynamodb.local import DynamodbLocal, Table


@pytest.fixture
def table(dynamodb_local: DynamodbLocal) -> Table:
    return Table(dynamodb_local.url)


def feed_of(table: Table, **given: Any) -> DynamodbFeed:
    fields = {**table.given, "reads": 1000, "poll": 0.01, **given}
    return DynamodbFeed(DynamodbSettings.model_validate(fields))


def read(
    feed: DynamodbFeed, partition: PartitionId, bookmark: Bookmark, count: int
) -> list[dict[str, Any]]:
    following = feed.follow(partition, bookmark)
    pages: list[Page] = []
    deadline = time.monotonic() + 60
    while sum(page.count for page in pages) < count:
        assert time.monotonic() < deadline
        pages += following.read(0.1)
    return rows(feed, pages)


def rows(feed: DynamodbFeed, pages: Sequence[Page]) -> list[dict[str, Any]]:
    decoder = feed.decoder("json")
    return [row for page in pages for batch in decoder.decode(page) for row in batch.to_pylist()]


def only(feed: DynamodbFeed) -> PartitionId:
    [found] = feed.partitions()
    return found.partition


def test_a_stream_that_is_enabled_again_is_a_gap(table: Table) -> None:
    feed = feed_of(table, on_gap="continue")
    old = only(feed)
    table.fill(5)
    table.enable(False)
    following = feed.follow(old)
    pages: list[Page] = []
    deadline = time.monotonic() + 60
    while not following.drained:
        assert time.monotonic() < deadline
        pages += following.read(0.1)
    assert len(rows(feed, pages)) == 5
    table.enable(True)
    table.fill(5, start=50)
    listed = {each.partition: each.parents for each in feed.partitions()}
    [new] = set(listed) - {old}
    assert listed[new] == (old,)
    last = following.bookmark(pages[-1].last)._replace(ended=True)
    child = Bookmark(None, {"parents": {old: last.to_json()}})
    with pytest.raises(HistoryLost) as error:
        feed.follow(new, child)
    assert error.value.gap.cause == "stream_replaced"
    after = feed.follow(new, child, despite=[error.value.gap])
    assert [row["document_id"] for row in rows(feed, after.read(5.0))] == [
        f"r{n}" for n in range(50, 55)
    ]


def test_the_check_finds_no_error(table: Table) -> None:
    assert {each.level for each in feed_of(table).check()} == {"ok"}


def apply(table: Table, remedy: str) -> None:
    """What the commands of a remedy do, in a shell with the AWS command line."""
    for command in remedy.split(" && "):
        found = re.fullmatch(
            r"aws dynamodb update-table --table-name (\S+) --stream-specification (\S+)", command
        )
        assert found is not None
        given: dict[str, Any] = dict(each.split("=") for each in found[2].split(","))
        given["StreamEnabled"] = given["StreamEnabled"] == "true"
        table.client.update_table(TableName=found[1], StreamSpecification=given)


def test_the_remedies_of_the_check_mend_what_it_found(dynamodb_local: DynamodbLocal) -> None:
    table = Table(dynamodb_local.url, "KEYS_ONLY")
    feed = feed_of(table)
    [warning] = [each for each in feed.check() if each.level != "ok"]
    assert "KEYS_ONLY" in warning.message
    apply(table, warning.remedy)
    assert {each.level for each in feed.check()} == {"ok"}
    table.enable(False)
    [error] = [each for each in feed.check() if each.level != "ok"]
    assert "DISABLED" in error.message
    apply(table, error.remedy)
    assert {each.level for each in feed.check()} == {"ok"}


@pytest.mark.fault
def test_a_server_that_is_killed_goes_on_where_it_was() -> None:
    try:
        server = DynamodbLocal(keeps=True)
    except Unavailable as error:
        pytest.skip(str(error))
    with server:
        table = Table(server.url)
        feed = feed_of(table)
        partition = only(feed)
        table.fill(20)
        following = feed.follow(partition)
        pages = list(following.read(5.0))
        assert sum(page.count for page in pages) == 20
        server.kill()
        with pytest.raises(Unavailable):
            following.read(1.0)
        server.start()
        table.fill(20, start=20)
        rest = read(feed, partition, following.bookmark(pages[-1].last), 20)
        assert [row["document_id"] for row in rest] == [f"r{n}" for n in range(20, 40)]
