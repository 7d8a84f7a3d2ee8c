"""The tables of the scripted server: boto3 writes to them, and each write is a record of their
stream. "Model" names botocore's service model (dynamodb, 2012-08-10), for the rest see `streams`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any

from tests.dynamodb.service import StreamsService
from tests.dynamodb.streams import Refused, Shard, Stream

Item = dict[str, Any]
# Guide: "up to 38 digits of precision"; "leading and trailing zeroes are trimmed".
_NUMBERS = Context(prec=38)


@dataclass
class Table:
    """`items` by their key's text. `since`: when its open shard began."""

    definition: dict[str, Any]
    items: dict[str, Item] = field(default_factory=dict)
    stream: Stream | None = None
    since: float = 0.0

    @property
    def keys(self) -> list[str]:
        return [each["AttributeName"] for each in self.definition["KeySchema"]]

    def key(self, item: Item) -> Item:
        return {name: item[name] for name in self.keys}

    @property
    def shard(self) -> Shard:
        """The one that is written to."""
        assert self.stream is not None
        return next(each for each in self.stream.shards.values() if not each.closed)

    def describe(self) -> dict[str, Any]:
        is_on = self.stream is not None and self.stream.status == "ENABLED"
        view = self.stream.view if self.stream else ""
        return {
            **self.definition, "TableStatus": "ACTIVE",
            "ItemCount": len(self.items), "TableSizeBytes": 100 * len(self.items),
            **({"LatestStreamArn": self.stream.arn} if self.stream else {}),
            **({"StreamSpecification": {"StreamEnabled": True, "StreamViewType": view}}
               if is_on else {}),
        }  # fmt: skip


class TablesService(StreamsService):
    """A service of streams, and of the tables that they are of."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, Table] = {}
        self._deleted = set[str]()
        self.rolls = 0.0
        """Seconds after which the open shard of each table ends and has one child, whether it was
        written to or not: Local did so every four hours. 0: never."""

    def _operation(self, name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        own = {
            "CreateTable": self._create,
            "UpdateTable": self._update,
            "DeleteTable": self._delete,
            "PutItem": lambda request: self._put(self._table(request), request["Item"]),
            "DeleteItem": lambda request: self._remove(self._table(request), request["Key"]),
            "BatchWriteItem": self._write_batch,
        }
        return own.get(name) or super()._operation(name)

    def _pass_time(self) -> None:
        for table in self.tables.values():
            if table.stream is None or table.stream.status != "ENABLED" or not self.rolls:
                continue
            while table.since + self.rolls <= self.now:
                table.since += self.rolls
                table.stream.split(table.shard, 1)
        super()._pass_time()

    def _table(self, request: dict[str, Any]) -> Table:
        name = request["TableName"]
        if name not in self.tables:
            raise Refused("ResourceNotFoundException", f"Table: {name} not found")
        return self.tables[name]

    def _create(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["TableName"]
        if name in self.tables:  # model: the errors of CreateTable
            raise Refused("ResourceInUseException", f"Table already exists: {name}")
        kept = ("TableName", "KeySchema", "AttributeDefinitions")
        self.tables[name] = table = Table({each: request[each] for each in kept})
        self._specify(table, request.get("StreamSpecification", {"StreamEnabled": False}))
        return {"TableDescription": table.describe()}

    def _update(self, request: dict[str, Any]) -> dict[str, Any]:
        """Model: "You receive a ValidationException if you try to enable a stream on a table that
        already has a stream, or if you try to disable a stream on a table that doesn't have"."""
        table, wanted = self._table(request), request["StreamSpecification"]
        is_on = table.stream is not None and table.stream.status == "ENABLED"
        if is_on == wanted["StreamEnabled"]:
            raise Refused("ValidationException", "the stream is so already")
        self._specify(table, wanted)
        return {"TableDescription": table.describe()}

    def _specify(self, table: Table, wanted: dict[str, Any]) -> None:
        if wanted["StreamEnabled"]:
            name = table.definition["TableName"]
            table.stream = self.stream(name, view=wanted["StreamViewType"])
            table.stream.shard()
            table.since = self.now
        elif table.stream is not None:
            table.stream.disable()

    def _delete(self, request: dict[str, Any]) -> dict[str, Any]:
        """Model: the stream "goes into the DISABLED state, and is deleted after 24 hours"."""
        table = self._table(request)
        if table.stream is not None:
            table.stream.disable()
        del self.tables[request["TableName"]]
        self._deleted.add(request["TableName"])
        return {"TableDescription": table.describe()}

    def _put(self, table: Table, item: Item) -> dict[str, Any]:
        """Guide: a write that does not change any data in an item is no record."""
        item = {name: _stored(value) for name, value in item.items()}
        key = json.dumps(table.key(item))
        old = table.items.get(key)
        table.items[key] = item
        if old != item:
            self._record(table, item, "UPDATE" if old else "INSERT", new=item, old=old)
        return {}

    def _remove(self, table: Table, key: Item) -> dict[str, Any]:
        """Model: "DeleteItem is an idempotent operation"."""
        key = {name: _stored(key[name]) for name in table.keys}
        old = table.items.pop(json.dumps(key), None)
        if old is not None:
            self._record(table, key, "DELETE", old=old)
        return {}

    def _record(self, table: Table, item: Item, operation: str, **images: Any) -> None:
        if table.stream is not None and table.stream.status == "ENABLED":
            key = table.key(item)
            table.stream.put(table.shard, key, operation, at=self.now, **images)

    def _write_batch(self, request: dict[str, Any]) -> dict[str, Any]:
        for name, writes in request["RequestItems"].items():
            table = self._table({"TableName": name})
            for write in writes:
                if "PutRequest" in write:
                    self._put(table, write["PutRequest"]["Item"])
                else:
                    self._remove(table, write["DeleteRequest"]["Key"])
        return {"UnprocessedItems": {}}

    def _describe_table(self, request: dict[str, Any]) -> dict[str, Any]:
        """Of a stream that a script made without its table, what the stream says."""
        name = request["TableName"]
        if name in self.tables or name in self._deleted:
            return {"Table": self._table(request).describe()}
        return super()._describe_table(request)

    def _items_of(self, table: str) -> dict[str, Item]:
        found = self.tables.get(table)
        return found.items if found else super()._items_of(table)

    def _key_of(self, table: str, item: Item) -> Item:
        found = self.tables.get(table)
        return found.key(item) if found else super()._key_of(table, item)


def _stored(value: Item) -> Item:
    """As the service keeps it: numbers without needless zeros; sets have no order."""
    ((kind, given),) = value.items()
    match kind:
        case "N":
            return {"N": _number(given)}
        case "NS":
            return {"NS": [_number(each) for each in sorted(given, key=Decimal)]}
        case "SS" | "BS":
            return {kind: sorted(given)}
        case "L":
            return {"L": [_stored(each) for each in given]}
        case "M":
            return {"M": {name: _stored(each) for name, each in given.items()}}
        case _:
            return value


def _number(text: str) -> str:
    number = _NUMBERS.create_decimal(text).normalize(_NUMBERS)
    return format(number, "f") if number else "0"
