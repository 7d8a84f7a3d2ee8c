"""Reads one stream of DynamoDB with one reader, and prints the CPU that each record took.

    python bench/iterators.py READER ENDPOINT ARN RECORDS

Runs by itself: Bloop has an environment of its own, with an old boto3. Only what the reader needs
is imported. Counts user and system time of this process from the first call to the last record.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

GIVEN = {"endpoint_url": "", "region_name": "eu-central-1",
         "aws_access_key_id": "a", "aws_secret_access_key": "b"}  # fmt: skip


def ours(endpoint: str, arn: str, model: Any = None) -> Iterator[Any]:
    import penstock

    return penstock.stream(
        "dynamodb", stream=arn, model=model, at="trim_horizon", endpoint=endpoint, reads=1000,
        poll=0.001, region="eu-central-1", access_key="a", secret_key="b",
    )  # fmt: skip


def ours_with_a_model(endpoint: str, arn: str) -> Iterator[Any]:
    @dataclass
    class User:
        id: str
        text: str = ""
        number: Any = None
        flag: bool = False

    return ours(endpoint, arn, User)


def _bloop_session(endpoint: str) -> Any:
    import boto3
    from bloop.session import SessionWrapper

    given = GIVEN | {"endpoint_url": endpoint}
    names = ("dynamodb", "dynamodbstreams")
    return SessionWrapper(**{name: boto3.client(name, **given) for name in names})


def bloop_coordinator(endpoint: str, arn: str) -> Iterator[Any]:
    from bloop.stream.coordinator import Coordinator

    found = Coordinator(session=_bloop_session(endpoint), stream_arn=arn)
    found.move_to("trim_horizon")
    return found  # type: ignore[no-any-return]


def bloop(endpoint: str, arn: str) -> Iterator[Any]:
    from bloop import BaseModel, Boolean, Column, Engine, Number, String
    from bloop.stream.stream import Stream

    class User(BaseModel):  # type: ignore[misc]
        class Meta:
            stream = {"include": {"new", "old"}, "arn": arn}  # noqa: RUF012 - as Bloop wants it

        id = Column(String, hash_key=True)
        text = Column(String)
        number = Column(Number)
        flag = Column(Boolean)

    session = _bloop_session(endpoint)
    engine = Engine(dynamodb=session.dynamodb_client, dynamodbstreams=session.stream_client)
    found = Stream(model=User, engine=engine)
    found.move_to("trim_horizon")
    return found  # type: ignore[no-any-return]


def boto3_loop(endpoint: str, arn: str) -> Iterator[Any]:
    """GetRecords in a loop over each shard as it is listed: no order, no place, no types."""
    import boto3

    client = boto3.client("dynamodbstreams", **(GIVEN | {"endpoint_url": endpoint}))
    for shard in client.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]:
        iterator = client.get_shard_iterator(
            StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while iterator:
            answer = client.get_records(ShardIterator=iterator)
            yield from answer["Records"]
            iterator = answer["Records"] and answer.get("NextShardIterator")


READERS: dict[str, Callable[[str, str], Iterator[Any]]] = {
    "penstock": ours,
    "penstock, a model": ours_with_a_model,
    "boto3": boto3_loop,
    "bloop": bloop,
    "bloop's coordinator": bloop_coordinator,
}


def main(reader: str, endpoint: str, arn: str, records: int) -> None:
    stream = READERS[reader](endpoint, arn)
    found, last = 0, None
    began = time.process_time()
    while found < records:
        record = next(stream)
        found, last = found + (record is not None), record or last
    spent = time.process_time() - began
    if not last:
        raise SystemExit("no record was read")
    print(json.dumps({"microseconds": spent / found * 1e6}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
