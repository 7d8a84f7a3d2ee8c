"""DynamoDB: moto's server, which keeps all in memory, and a shop of one table of customers' orders,
whose items have every type."""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import boto3
from boto3.dynamodb.types import Binary

from penstock.demo.servers import EmbeddedServer, answers, beside_python
from penstock.demo.sources import DemoSource, plain
from penstock.demo.verdict import TableRows
from penstock.demo.workload import Key, Writer, Written

TABLE = "orders"
_CUSTOMERS = 50
_EXACT = 2**53  # beyond it, a number of JSON is not exact everywhere

# Of the stand-in, which takes any.
_LOGIN = {
    "AWS_ACCESS_KEY_ID": "demo",
    "AWS_SECRET_ACCESS_KEY": "demo",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class Moto(EmbeddedServer):
    def __init__(self) -> None:
        self.bin = beside_python("moto_server", extra="demo-dynamodb")
        super().__init__("moto", None)

    def _command(self, *, again: bool) -> Sequence[str]:
        return [str(self.bin), "-H", self.host, "-p", str(self.port)]

    def _ready(self) -> bool:
        return answers(f"{self.url}/moto-api/")


class DynamoWriter(Writer):
    """Writes into `table`, a resource of boto3, which is made at run time and has no type. The
    stream marks no transactions, so there are none here."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self._table = table

    def first(self) -> None:
        self._place()

    def turn(self, number: int) -> None:
        actions = {self._place: 13, self._replace: 5, self._pay: 15, self._cancel: 5}
        self.chosen(actions, self._place)()

    def _place(self) -> None:
        count = self.random.choice((1, 1, 1, 15))
        customers = [self.random.randint(1, _CUSTOMERS) for _ in range(count)]
        keys = [(f"customer-{each}", self.next_number()) for each in customers]
        with self._table.batch_writer() as batch:
            for key in keys:
                batch.put_item(Item=_item(self, key))
        self.committed([Written("INSERT", TABLE, key) for key in keys])

    def _replace(self) -> None:
        key = self.some(TABLE)
        self._table.put_item(Item=_item(self, key))
        self.committed([Written("UPDATE", TABLE, key)])

    def _pay(self) -> None:
        """A number is added to, and an attribute is set."""
        key = self.some(TABLE)
        self._table.update_item(
            Key=_key(key),
            UpdateExpression="SET paid = :t ADD steps :n",
            ExpressionAttributeValues={":t": self.random.random() < 0.5, ":n": 1},
        )
        self.committed([Written("UPDATE", TABLE, key)])

    def _cancel(self) -> None:
        key = self.some(TABLE)
        self._table.delete_item(Key=_key(key))
        self.committed([Written("DELETE", TABLE, key)])


def _key(key: Key) -> dict[str, Any]:
    return {"customer": key[0], "number": key[1]}


def _item(shop: Writer, key: Key) -> dict[str, Any]:
    number = shop.random.getrandbits(62)
    return {
        **_key(key),
        "name": f"Ünïque {number} O'Neill 🛒",
        "total": Decimal(number | 1).scaleb(-2),  # never whole, whose zeros a server may keep
        "gift": number % 2 == 0,
        "nothing": None,
        "photo": number.to_bytes(16, "big"),
        "tags": {"new", f"tag {number % 7}"},
        "sizes": {1, Decimal("2.5"), number % 100 + 3},
        "lines": [{"sku": f"sku-{line}", "price": Decimal(line) / 4} for line in range(1, 4)],
        "address": {"street": "Müllerstraße 1", "floor": None},
    }


class DynamoDemo(DemoSource):
    title = "moto's DynamoDB"
    notice = (
        "The database is moto's server, a stand-in for DynamoDB: it speaks DynamoDB's protocol,"
        " keeps everything in memory, and is not DynamoDB."
    )
    keys: Mapping[str, tuple[str, ...]] = {TABLE: ("customer", "number")}
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

    def writer(self, rate: float) -> Writer:
        return DynamoWriter(self._resource().Table(TABLE))

    def tables(self) -> Mapping[str, TableRows]:
        pages = self._resource().meta.client.get_paginator("scan").paginate(TableName=TABLE)
        items = [item for page in pages for item in page["Items"]]
        forms: dict[type, Callable[[Any], Any]] = {Decimal: _number, Binary: bytes}
        rows: TableRows = {
            (item["customer"], int(item["number"])): plain(item, forms) for item in items
        }
        return {TABLE: rows}

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


def _number(value: Decimal) -> int | float | Decimal:
    """A number where JSON's are exact; else it stays what it is, and its digits are compared."""
    whole, near = int(value), float(value)
    if value == whole and abs(whole) < _EXACT:
        return whole
    return near if Decimal(repr(near)) == value and value != whole else value


DEMO = DynamoDemo
