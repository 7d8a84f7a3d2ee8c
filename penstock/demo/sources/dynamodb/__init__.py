"""DynamoDB: its embedded stand-in, and a shop whose items have every type."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from decimal import Decimal
from typing import Any

import boto3
from boto3.dynamodb.types import Binary

from penstock.demo.ledger import Key, Ledger
from penstock.demo.moto import Moto
from penstock.demo.sources import DemoSource
from penstock.demo.sources.dynamodb.shop import KEYS, TABLE, DynamoWriter
from penstock.demo.verdict import TableRows
from penstock.demo.workload import Writer

# Beyond it, a number of JSON is not exact everywhere.
_EXACT = 2**53

# Of the stand-in, which takes any.
_LOGIN = {
    "AWS_ACCESS_KEY_ID": "demo",
    "AWS_SECRET_ACCESS_KEY": "demo",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class DynamoDemo(DemoSource):
    """DynamoDB's stand-in."""

    title = "moto's DynamoDB"
    notice = (
        "The database is moto's server, a stand-in for DynamoDB: it speaks DynamoDB's protocol,"
        " keeps everything in memory, and is not DynamoDB."
    )
    keys = KEYS
    backend: Mapping[str, Any] = {
        "type": "dynamodb",
        "table": TABLE,
        "endpoint": "${DYNAMODB_ENDPOINT}",
        "start": "trim_horizon",
    }
    # With the shard, so that each is delivered exactly once.
    subject = "cdc.{source_partition}.{collection}.{operation}"

    _server: Moto

    def __init__(self) -> None:
        self._server = Moto()

    def set_up(self) -> None:
        """The table and its stream."""
        self._resource().create_table(
            TableName=TABLE,
            KeySchema=[
                {"AttributeName": "customer", "KeyType": "HASH"},
                {"AttributeName": "number", "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[
                {"AttributeName": "customer", "AttributeType": "S"},
                {"AttributeName": "number", "AttributeType": "N"},
            ],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )

    @property
    def environment(self) -> Mapping[str, str]:
        return {"DYNAMODB_ENDPOINT": self._server.url, **_LOGIN}

    def writer(self, ledger: Ledger, rate: float) -> Callable[[], AbstractContextManager[Writer]]:
        return DynamoWriter(self._resource().Table(TABLE), ledger).connected

    def tables(self) -> Mapping[str, TableRows]:
        table = self._resource().Table(TABLE)
        rows: dict[Key, dict[str, Any]] = {}
        more: dict[str, Any] = {}
        while True:
            page = table.scan(**more)
            for item in page["Items"]:
                rows[item["customer"], int(item["number"])] = _plain(item)
            if "LastEvaluatedKey" not in page:
                return {TABLE: rows}
            more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def hints(self) -> Sequence[str]:
        return (f"aws dynamodb scan --table-name {TABLE} --endpoint-url {self._server.url}",)

    def _resource(self) -> Any:
        return boto3.resource(
            "dynamodb",
            endpoint_url=self._server.url,
            region_name=_LOGIN["AWS_DEFAULT_REGION"],
            aws_access_key_id=_LOGIN["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=_LOGIN["AWS_SECRET_ACCESS_KEY"],
        )


def _plain(value: Any) -> Any:
    """The values that Python has another type for, as the message format writes them."""
    match value:
        case Decimal():
            return _number(value)
        case Binary():
            return bytes(value)
        case set():
            return [_plain(each) for each in sorted(value)]
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value


def _number(value: Decimal) -> int | float | Decimal:
    """A number where JSON's are exact; else it stays what it is, and its digits are compared."""
    whole, near = int(value), float(value)
    if value == whole and abs(whole) < _EXACT:
        return whole
    return near if Decimal(repr(near)) == value and value != whole else value


DEMO = DynamoDemo
