"""The bench's DynamoDB Streams server and its bare boto3 loop."""

import pytest

from bench.dynamodb import DynamoDB
from penstock.feeds.dynamodb import DynamodbFeed, DynamodbSettings

pytestmark = pytest.mark.live


def test_the_bare_loop_reads_what_was_written() -> None:
    with DynamoDB(100) as source:
        source.write(100)
        assert source.read(100) > 0
        feed = DynamodbFeed(DynamodbSettings.model_validate(source.backend))
        counts = [
            sum(page.count for page in feed.follow(each.partition).read(1.0))
            for each in feed.partitions()
        ]
    assert sum(counts) == 100
    assert len(counts) == 8
