"""The same promises on AWS itself, with a table that the tests may write to.

`PENSTOCK_AWS_TABLE` is its name: the key is `id` (S), the stream is enabled with both images, and
boto3 finds credentials and region. Each test has keys of its own and passes over others' records.
With `PENSTOCK_AWS_DISABLE=1` the stream is disabled and enabled again, too, which takes minutes.
`AWS_ENDPOINT_URL` leads to another server.
"""

import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest

import penstock
from penstock.feeds.dynamodb import DynamodbFeed, DynamodbSettings
from penstock.feeds.dynamodb.client import client_of
from penstock.model.errors import RecordsExpired
from penstock.stream import Stream

TABLE = os.environ.get("PENSTOCK_AWS_TABLE", "")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not TABLE, reason="PENSTOCK_AWS_TABLE names no table of AWS to write to"),
]
# Seconds for records to come, and for a stream to be disabled or enabled.
PATIENCE, CHANGES = 120.0, 15 * 60.0


class Table:
    """Writes items whose keys begin with a prefix of its own, and reads these back."""

    def __init__(self) -> None:
        self.client: Any = boto3.client("dynamodb")
        self.prefix = uuid.uuid4().hex[:8]

    def put(self, count: int, versions: int = 1) -> list[str]:
        """Items in turns; their keys and versions as text, in the order of writing. An item that is
        written as it is already is no change."""
        made = []
        for version in range(versions):
            for number in range(count):
                key = f"{self.prefix}-{number}"
                item = {"id": {"S": key}, "version": {"N": str(version)}}
                self.client.put_item(TableName=TABLE, Item=item)
                made.append(f"{key}/{version}")
        return made

    def take(self, stream: Stream, count: int) -> list[str]:
        """The next records of this table's keys."""
        found: list[str] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < count:
            assert time.monotonic() < deadline, found
            found += self._mine(next(stream))
        return found

    def rest(self, stream: Stream, seconds: float = 3.0) -> list[str]:
        """What comes within that time."""
        found: list[str] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found += self._mine(next(stream))
        return found

    def _mine(self, record: Any) -> list[str]:
        if record is None:
            time.sleep(0.05)
        if record is None or not record["key"]["id"].startswith(self.prefix):
            return []
        return [f"{record['key']['id']}/{record['new']['version']}"]

    def enable(self, on: bool) -> None:
        """Disables or enables the stream, and waits until that is so."""
        view = {"StreamViewType": "NEW_AND_OLD_IMAGES"} if on else {}
        self.client.update_table(TableName=TABLE, StreamSpecification={"StreamEnabled": on, **view})
        deadline = time.monotonic() + CHANGES
        while True:
            table = self.client.describe_table(TableName=TABLE)["Table"]
            enabled = table.get("StreamSpecification", {}).get("StreamEnabled", False)
            if table["TableStatus"] == "ACTIVE" and enabled == on:
                return
            assert time.monotonic() < deadline, table
            time.sleep(5.0)


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def opened() -> Iterator[Callable[..., Stream]]:
    made: list[Stream] = []

    def make(at: Any, **given: Any) -> Stream:
        made.append(penstock.stream("dynamodb", table=TABLE, at=at, **given))
        return made[-1]

    yield make
    for each in made:
        each.close()


def saved(stream: Stream) -> Any:
    return json.loads(json.dumps(stream.token))


def by_key(found: list[str]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for each in found:
        keys.setdefault(each.partition("/")[0], []).append(each)
    return keys


def test_the_check_finds_no_error() -> None:
    feed = DynamodbFeed(DynamodbSettings.model_validate({"table": TABLE}))
    assert [each for each in feed.check() if each.level == "error"] == []


def test_latest_gives_each_change_after_it_in_order_by_key(
    table: Table, opened: Callable[..., Stream]
) -> None:
    Table().put(3)
    stream = opened("latest")
    written = table.put(10, versions=3)
    found = table.take(stream, len(written))
    assert by_key(found) == by_key(written)
    assert table.rest(stream) == []


@pytest.mark.parametrize("start", ["trim_horizon", "time"])
def test_what_was_written_before_is_read_from_the_horizon_and_from_a_time(
    table: Table, opened: Callable[..., Stream], start: str
) -> None:
    began = datetime.now(UTC) - timedelta(seconds=90)
    written = table.put(10, versions=2)
    stream = opened(start if start == "trim_horizon" else began)
    assert by_key(table.take(stream, len(written))) == by_key(written)


def test_resume_after_every_token_gives_exactly_the_rest(
    table: Table, opened: Callable[..., Stream]
) -> None:
    stream = opened("latest")
    written = table.put(6, versions=2)
    tokens, found = [(saved(stream), 0)], list[str]()
    while len(found) < len(written):
        found += table.take(stream, 1)
        tokens.append((saved(stream), len(found)))
    for token, done in tokens:
        again = opened(token)
        assert sorted(table.take(again, len(found) - done)) == sorted(found[done:])
        again.close()
    assert table.rest(opened(tokens[-1][0])) == []


def test_calls_stay_below_the_services_limits(table: Table, opened: Callable[..., Stream]) -> None:
    """For 20 seconds: GetRecords 5 a second and shard, ListStreams 5, DescribeStream 10."""
    calls: Counter[str] = Counter()
    events = client_of(DynamodbSettings.model_validate({"table": TABLE}))._client.meta.events
    events.register(
        "before-call.dynamodb-streams", lambda model, **_: calls.update([model.name]), "count"
    )
    stream = opened("latest")
    shards = sum(not each.get("ended") for each in stream.token["partitions"].values())
    table.rest(stream, 20.0)
    events.unregister("before-call.dynamodb-streams", unique_id="count")
    print(f"{shards} open shards, calls in 20 s: {dict(calls)}")
    assert 0 < calls["GetRecords"] <= 5 * 20 * shards
    assert calls["ListStreams"] <= 5 * 20
    assert calls["DescribeStream"] <= 10 * 20


@pytest.mark.skipif(
    os.environ.get("PENSTOCK_AWS_DISABLE") != "1",
    reason="PENSTOCK_AWS_DISABLE=1 allows to disable the table's stream and enable it again",
)
def test_a_stream_that_is_disabled_and_enabled_again_is_a_gap(
    table: Table, opened: Callable[..., Stream]
) -> None:
    stream = opened("latest")
    before = table.put(3)
    token = saved(stream)
    table.enable(False)
    table.put(1, versions=2)  # in no stream
    table.enable(True)
    after = table.put(3, versions=3)[6:]
    goes_on = opened(token, on_gap="continue")
    found = table.take(goes_on, len(before))
    assert sorted(found) == sorted(before)
    while not goes_on.gaps:
        found += table.take(goes_on, 1)
    assert {gap.cause for gap in goes_on.gaps} == {"stream_replaced"}
    deadline = time.monotonic() + PATIENCE
    while not set(after) <= set(found):
        assert time.monotonic() < deadline, found
        found += table.rest(goes_on, 1.0)
    stops = opened(token)
    with pytest.raises(RecordsExpired):
        table.rest(stops, PATIENCE)
