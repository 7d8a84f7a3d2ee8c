"""A table whose stream is disabled, enabled and altered. Values are in `tests/stream`."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from penstock.feeds import HistoryLost
from penstock.feeds.dynamodb import DynamodbFeed, DynamodbSettings
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId
from tests.dynamodb.endpoints import WHOLE, Table, table_on


@pytest.fixture(params=WHOLE)
def table_of(request: pytest.FixtureRequest) -> Iterator[Callable[..., Table]]:
    """`table_of(view)`."""
    with ExitStack() as stack:
        server = stack.enter_context(request.param())
        yield lambda *view: stack.enter_context(table_on(server, *view))


@pytest.fixture
def table(table_of: Callable[..., Table]) -> Table:
    return table_of()


def feed_of(table: Table, **given: Any) -> DynamodbFeed:
    fields = {**table.given, "reads": 1000, "poll": 0.01, **given}
    return DynamodbFeed(DynamodbSettings.model_validate(fields))


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


def test_the_remedies_of_the_check_mend_what_it_found(table_of: Callable[..., Table]) -> None:
    table = table_of("KEYS_ONLY")
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
