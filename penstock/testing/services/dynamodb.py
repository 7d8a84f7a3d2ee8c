"""DynamoDB: a scratch table with a stream."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any
from uuid import uuid4

import botocore.session

from penstock.feeds import Feed, GapPolicy
from penstock.model.errors import Unavailable
from penstock.stream.opening import feed_of
from penstock.testing.claims import hold
from penstock.testing.losses import LostHistory
from penstock.testing.services import Loss, SourceService

_VIEW = {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_CHANGES = 240.0  # seconds in which a table becomes as it was asked to be


class DynamodbService(SourceService):
    """See above. The URL names a region; the login is boto3's own."""

    kind = "DynamoDB"
    drivers = ("boto3", "botocore")
    makes = "the table {}"
    stays = "shards split by load and time alone"
    needs = "CreateTable, UpdateTable, DeleteTable and what a feed and a snapshot need"

    def __init__(self, url: str, given: Mapping[str, str]) -> None:
        super().__init__(url, given)
        self.secrets += [os.environ[name] for name in _SECRETS if os.environ.get(name)]
        self._region = url.partition("://")[2].strip("/") or None
        self._endpoint = given.get("endpoint")
        self.collection = ("", self.name)
        is_local = self._endpoint or any(name.startswith("AWS_ENDPOINT_URL") for name in os.environ)
        self.price = "" if is_local else (
            "It writes some 1,000 items to an on-demand table and reads its stream: this costs less"
            " than 0.05 USD."
        )  # fmt: skip
        self._lost: Loss | None = None

    @cached_property
    def _client(self) -> Any:
        session = botocore.session.Session()
        return session.create_client(
            "dynamodb", region_name=self._region, endpoint_url=self._endpoint
        )

    def make(self) -> None:
        self._client.create_table(
            TableName=self.name,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification=_VIEW,
        )
        self._wait(is_on=True)

    def _wait(self, *, is_on: bool) -> None:
        until = time.monotonic() + _CHANGES
        while True:
            found = self._client.describe_table(TableName=self.name)["Table"]
            enabled = found.get("StreamSpecification", {}).get("StreamEnabled", False)
            if found["TableStatus"] == "ACTIVE" and enabled == is_on:
                return
            if time.monotonic() > until:
                raise Unavailable(
                    f"the table {self.name} is still {found['TableStatus']}", "testing"
                )
            time.sleep(0.5)

    def version(self) -> str:
        answer = self._client.describe_table(TableName=self.name)
        server = answer["ResponseMetadata"]["HTTPHeaders"].get("server", "")
        return f"API {self._client.meta.service_model.api_version}, {server}".rstrip(", ")

    def remove(self) -> None:
        until = time.monotonic() + _CHANGES
        while True:
            try:
                self._client.delete_table(TableName=self.name)
            except self._client.exceptions.ResourceNotFoundException:
                return
            except self._client.exceptions.ResourceInUseException:  # is being made, or changed
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)
            else:
                return

    def reader(self, policy: GapPolicy = "fail") -> Feed:
        given = {"region": self._region, "endpoint": self._endpoint}
        return feed_of("dynamodb", {
            "name": "prove", "table": self.name, "poll": 0.2, "on_gap": policy,
            **{name: value for name, value in given.items() if value},
        })  # fmt: skip

    def _put(self, id: str, text: str = "x") -> None:
        item = {"id": {"S": id}, "text": {"S": text}}
        self._client.put_item(TableName=self.name, Item=item)

    def insert(self, ids: Sequence[str]) -> None:
        for each in ids:
            self._put(each)

    def workload(self) -> Sequence[tuple[str, str]]:
        first = [f"a{n:02}" for n in range(12)]
        self.insert(first)
        for each in first[:3]:
            self._put(each, "y")
        self._put("b", "long " * 2000)
        self._put("b", "long " * 2000)  # an item that is as it was is no change
        for each in ("a11", "b"):
            self._client.delete_item(TableName=self.name, Key={"id": {"S": each}})
        self._put("a11", "again")
        return [
            *((each, "INSERT") for each in first),
            *((each, "UPDATE") for each in first[:3]),
            ("b", "INSERT"), ("a11", "DELETE"), ("b", "DELETE"), ("a11", "INSERT"),
        ]  # fmt: skip

    @contextmanager
    def lost(self) -> Iterator[LostHistory]:
        """The stream is disabled and enabled again, once for all claims."""
        self._lost = self._lost or self._replace()
        yield self._lost

    def _replace(self) -> Loss:
        old, bookmark = self.read_some(self.reader())
        self._client.update_table(TableName=self.name, StreamSpecification={"StreamEnabled": False})
        self._wait(is_on=False)
        self.insert([uuid4().hex])
        self._client.update_table(TableName=self.name, StreamSpecification=_VIEW)
        self._wait(is_on=True)
        known = {old: bookmark._replace(ended=True)}
        until, feed = time.monotonic() + self.patience, self.reader()
        while True:
            for each in feed.partitions(known):
                if old in each.parents and each.first is not None:
                    causes = ["stream_replaced"]
                    return Loss(self.reader, each.partition, each.first, causes, self.insert)
            hold(time.monotonic() < until, f"no shard of a later stream comes after {old}")
            time.sleep(1.0)


build = DynamodbService
