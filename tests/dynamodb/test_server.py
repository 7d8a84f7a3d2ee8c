"""The scripted server speaks boto3's language and does what its script says."""

import json
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.dynamodb.endpoints import Table
from tests.dynamodb.server import StreamsServer
from tests.dynamodb.streams import Shard, Stream


@pytest.fixture
def server() -> Iterator[StreamsServer]:
    with StreamsServer() as found:
        yield found


@pytest.fixture
def client(server: StreamsServer) -> Any:
    return boto3.client(
        "dynamodbstreams",
        endpoint_url=server.url,
        region_name="eu-central-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(retries={"total_max_attempts": 1}),
    )


def iterator(client: Any, stream: Stream, shard: Shard, kind: str, **more: Any) -> str:
    answer = client.get_shard_iterator(
        StreamArn=stream.arn, ShardId=shard.id, ShardIteratorType=kind, **more
    )
    return str(answer["ShardIterator"])


def code(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


@pytest.mark.slow
def test_records_are_read_page_by_page_to_the_end_of_a_closed_shard(
    server: StreamsServer, client: Any
) -> None:
    stream = server.stream("users")
    shard = stream.shard()
    numbers = [stream.put(shard, n, new={"n": n}, at=server.now) for n in range(1500)]
    first = client.get_records(ShardIterator=iterator(client, stream, shard, "TRIM_HORIZON"))
    second = client.get_records(ShardIterator=first["NextShardIterator"])
    found = [*first["Records"], *second["Records"]]
    assert [each["dynamodb"]["SequenceNumber"] for each in found] == numbers
    assert found[7]["dynamodb"]["NewImage"] == {"id": {"N": "7"}, "n": {"N": "7"}}
    left, right = stream.split(shard)
    last = client.get_records(ShardIterator=second["NextShardIterator"])
    assert "NextShardIterator" not in last
    described = client.describe_stream(StreamArn=stream.arn)["StreamDescription"]["Shards"]
    assert [each.get("ParentShardId") for each in described] == [None, shard.id, shard.id]
    assert {left.id, right.id} == {each["ShardId"] for each in described[1:]}


@pytest.mark.slow
def test_an_answer_holds_a_megabyte_at_most(server: StreamsServer, client: Any) -> None:
    stream = server.stream("users")
    shard = stream.shard()
    for n in range(5):
        stream.put(shard, n, new={"text": "x" * 400_000}, at=server.now)
    first = client.get_records(ShardIterator=iterator(client, stream, shard, "TRIM_HORIZON"))
    assert len(first["Records"]) == 2


def test_iterators_expire_and_old_places_are_trimmed(server: StreamsServer, client: Any) -> None:
    stream = server.stream("users")
    shard = stream.shard()
    numbers = [stream.put(shard, n, at=server.now) for n in range(3)]
    old = iterator(client, stream, shard, "TRIM_HORIZON")
    server.advance(16 * 60)
    with pytest.raises(ClientError) as error:
        client.get_records(ShardIterator=old)
    assert code(error) == "ExpiredIteratorException"
    stream.trim(shard, 2)
    with pytest.raises(ClientError) as error:
        iterator(client, stream, shard, "AFTER_SEQUENCE_NUMBER", SequenceNumber=numbers[0])
    assert code(error) == "TrimmedDataAccessException"
    server.trims_at = "GetRecords"
    place = iterator(client, stream, shard, "AFTER_SEQUENCE_NUMBER", SequenceNumber=numbers[0])
    with pytest.raises(ClientError) as error:
        client.get_records(ShardIterator=place)
    assert code(error) == "TrimmedDataAccessException"


def shards(client: Any, stream: Stream, **more: Any) -> list[str]:
    answer = client.describe_stream(StreamArn=stream.arn, **more)["StreamDescription"]
    return [each["ShardId"] for each in answer["Shards"]]


def labels(client: Any, **more: Any) -> list[str]:
    return [each["StreamLabel"] for each in client.list_streams(**more)["Streams"]]


def test_listings_are_incomplete_late_or_empty_for_a_while(
    server: StreamsServer, client: Any
) -> None:
    stream = server.stream("users")
    stream.hidden = 1
    assert labels(client, TableName="users") == []
    assert labels(client, TableName="users") == [stream.label]
    parent = stream.shard()
    left, right = stream.split(parent)
    left.hidden = 2
    right.listed_from = server.now + 30
    assert shards(client, stream) == [parent.id]
    assert shards(client, stream) == [parent.id]
    assert shards(client, stream) == [parent.id, left.id]
    server.advance(31)
    stream.empty = 1
    assert shards(client, stream) == []
    assert shards(client, stream) == [parent.id, left.id, right.id]


def test_a_replaced_stream_leaves_the_listing_after_a_day_and_is_described_until_it_is_gone(
    server: StreamsServer, client: Any
) -> None:
    old = server.stream("users")
    shard = old.shard()
    old.put(shard, 1, at=server.now)
    new = server.stream("users")
    server.ages = True
    server.advance(23 * 3600)
    assert labels(client, TableName="users") == [old.label, new.label]
    server.advance(2 * 3600)
    assert labels(client, TableName="users") == [new.label]
    answer = client.describe_stream(StreamArn=old.arn)["StreamDescription"]
    assert answer["StreamStatus"] == "DISABLED"
    del server.streams[old.arn]
    with pytest.raises(ClientError) as error:
        client.describe_stream(StreamArn=old.arn)
    assert code(error) == "ResourceNotFoundException"


def test_what_is_older_than_a_day_is_trimmed_and_a_closed_shard_is_listed_for_longer(
    server: StreamsServer, client: Any
) -> None:
    stream = server.stream("users")
    parent = stream.shard()
    stream.put(parent, 1, at=server.now)
    stream.split(parent, 1)
    server.ages = True
    server.advance(24 * 3600 + 60)
    assert parent.id in shards(client, stream)
    with pytest.raises(ClientError) as error:
        iterator(client, stream, parent, "TRIM_HORIZON")
    assert code(error) == "ResourceNotFoundException"
    server.advance(5 * 3600)
    assert parent.id not in shards(client, stream)


def test_times_are_rounded_down_to_the_second_and_answers_are_dated_by_the_servers_clock(
    server: StreamsServer, client: Any
) -> None:
    stream = server.stream("users")
    shard = stream.shard()
    stream.put(shard, 1, at=1_700_000_000.9)
    server.advance(7200)
    answer = client.get_records(ShardIterator=iterator(client, stream, shard, "TRIM_HORIZON"))
    [record] = answer["Records"]
    assert record["dynamodb"]["ApproximateCreationDateTime"].timestamp() == 1_700_000_000
    date = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
    assert abs(date.timestamp() - server.now) < 30


def test_more_calls_than_the_limit_are_refused(server: StreamsServer, client: Any) -> None:
    server.stream("users")
    server.limits = {"ListStreams": 5}
    server.stopped_at = server.now
    for _ in range(5):
        assert labels(client)
    with pytest.raises(ClientError) as error:
        labels(client)
    assert code(error) == "LimitExceededException"
    server.advance(1)
    assert labels(client)


@pytest.fixture
def table(server: StreamsServer) -> Table:
    return Table(server.url)


def read(server: StreamsServer, table: Table) -> list[tuple[str, str]]:
    """The names and keys of all records of the table's stream, shard by shard."""
    stream = server.tables[table.name].stream
    assert stream is not None
    found = [json.loads(each) for shard in stream.shards.values() for each in shard.records]
    return [(each["eventName"], each["dynamodb"]["Keys"]["id"]["S"]) for each in found]


def test_each_write_is_a_record_unless_it_changes_nothing(
    server: StreamsServer, table: Table
) -> None:
    table.put("a", n={"N": "1.50"}, tags={"SS": ["y", "x"]})
    table.put("a", n={"N": "01.5"}, tags={"SS": ["x", "y"]})
    table.put("a", n={"N": "2"})
    table.delete("a")
    table.delete("a")
    table.fill(2)
    assert read(server, table) == [
        ("INSERT", "a"), ("MODIFY", "a"), ("REMOVE", "a"), ("INSERT", "r0"), ("INSERT", "r1"),
    ]  # fmt: skip


def test_a_stream_that_is_enabled_again_is_another_one(server: StreamsServer, table: Table) -> None:
    with pytest.raises(ClientError, match="ValidationException"):
        table.enable(True)
    old = table.client.describe_table(TableName=table.name)["Table"]["LatestStreamArn"]
    table.enable(False)
    table.put("lost")
    with pytest.raises(ClientError, match="ValidationException"):
        table.enable(False)
    described = table.client.describe_table(TableName=table.name)["Table"]
    assert ("StreamSpecification" in described, described["LatestStreamArn"]) == (False, old)
    table.enable(True)
    table.put("a")
    assert read(server, table) == [("INSERT", "a")]
    new = table.client.describe_table(TableName=table.name)["Table"]["LatestStreamArn"]
    assert [server.streams[each].status for each in (old, new)] == ["DISABLED", "ENABLED"]


def test_a_shard_rolls_into_one_child_by_the_servers_clock(
    server: StreamsServer, client: Any, table: Table
) -> None:
    server.rolls = 4 * 3600
    table.put("a")
    server.advance(5 * 3600)
    table.put("b")
    server.advance(4 * 3600)
    stream = server.tables[table.name].stream
    assert stream is not None
    described = client.describe_stream(StreamArn=stream.arn)["StreamDescription"]["Shards"]
    names = [each["ShardId"] for each in described]
    assert [each.get("ParentShardId") for each in described] == [None, *names[:2]]
    closed = ["EndingSequenceNumber" in each["SequenceNumberRange"] for each in described]
    assert closed == [True, True, False]
    assert [len(each.records) for each in stream.shards.values()] == [1, 1, 0]


def test_a_table_is_read_by_segments_and_pages(server: StreamsServer, table: Table) -> None:
    table.fill(60)
    pages = table.client.get_paginator("scan")
    found = [
        item["id"]["S"]
        for segment in range(3)
        for page in pages.paginate(TableName=table.name, Segment=segment, TotalSegments=3, Limit=7)
        for item in page["Items"]
    ]
    assert sorted(found) == sorted(f"r{n}" for n in range(60))
    table.client.delete_table(TableName=table.name)
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        table.client.describe_table(TableName=table.name)
