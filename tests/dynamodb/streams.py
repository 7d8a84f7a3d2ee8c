"""The streams, shards and records of the scripted server: what it holds, without HTTP."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

NAMES = {"INSERT": "INSERT", "UPDATE": "MODIFY", "DELETE": "REMOVE"}
PAGE_BYTES = 1 << 20
PAGE_RECORDS = 1000


class Refused(Exception):
    """An error answer: `code` as DynamoDB names it, and the HTTP status."""

    def __init__(self, code: str, message: str = "scripted", status: int = 400) -> None:
        super().__init__(message)
        self.code, self.message, self.status = code, message, status


def typed(value: Any) -> Any:
    """A plain Python value as DynamoDB writes it; a value that is typed already stays."""
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in _TAGS:
        return value
    if isinstance(value, bool):
        return {"BOOL": value}
    if value is None:
        return {"NULL": True}
    if isinstance(value, str):
        return {"S": value}
    if isinstance(value, int | float):
        return {"N": str(value)}
    if isinstance(value, list):
        return {"L": [typed(each) for each in value]}
    return {"M": {name: typed(each) for name, each in value.items()}}


_TAGS = {"S", "N", "B", "SS", "NS", "BS", "M", "L", "NULL", "BOOL"}


@dataclass
class Shard:
    """One shard: `records` are JSON texts; the first `trimmed` of them are gone."""

    id: str
    parent: str | None = None
    records: list[bytes] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    trimmed: int = 0
    closed: bool = False
    listed: bool = True
    """Whether DescribeStream names it."""
    gone: bool = False
    """Listed, and every other call answers ResourceNotFoundException, as after 24 hours."""
    pages: list[int] = field(default_factory=list)
    """Sizes of the next answers of GetRecords; then as large as they may be."""
    first: int = 0

    def describe(self) -> dict[str, Any]:
        """As DescribeStream lists it."""
        numbers = {"StartingSequenceNumber": sequence(self.first)}
        if self.closed:
            last = self.sequences[-1] if self.sequences else self.first
            numbers["EndingSequenceNumber"] = sequence(last)
        found: dict[str, Any] = {"ShardId": self.id, "SequenceNumberRange": numbers}
        return found | {"ParentShardId": self.parent} if self.parent else found

    def page(self, start: int, limit: int) -> tuple[list[bytes], int | None]:
        """The records from index `start`, and where the next page starts: None at the end of a
        closed shard."""
        most = min(limit, PAGE_RECORDS)
        if self.pages:
            most = min(most, self.pages.pop(0))
        size, end = 0, start
        while end < min(start + most, len(self.records)):
            size += len(self.records[end])
            if size > PAGE_BYTES and end > start:
                break
            end += 1
        over = self.closed and end >= len(self.records) and not self.pages
        return self.records[start:end], None if over else end


def sequence(number: int) -> str:
    """As DynamoDB writes it: at least 21 digits."""
    return f"{number:021d}"


@dataclass
class Stream:
    """One stream of a table. Sequence numbers are one counter, unless `repeats`."""

    table: str
    label: str
    view: str = "NEW_AND_OLD_IMAGES"
    status: str = "ENABLED"
    keys: tuple[str, ...] = ("id",)
    shards: dict[str, Shard] = field(default_factory=dict)
    next_sequence: int = 4_421_584_500_000_000_017_450_439_091
    repeats: bool = False
    """Every shard counts from the same number."""

    @property
    def arn(self) -> str:
        return f"arn:aws:dynamodb:eu-central-1:000000000000:table/{self.table}/stream/{self.label}"

    def shard(self, parent: Shard | None = None) -> Shard:
        """One more shard, without records."""
        number = len(self.shards)
        found = Shard(
            id=f"shardId-{1_414_576_573_621 + number:020d}-{number:08x}",
            parent=parent.id if parent else None,
            first=self.next_sequence,
        )
        self.shards[found.id] = found
        return found

    def split(self, shard: Shard, into: int = 2) -> list[Shard]:
        """Ends a shard; its children."""
        shard.closed = True
        return [self.shard(shard) for _ in range(into)]

    def put(
        self,
        shard: Shard,
        key: Any,
        operation: str = "INSERT",
        *,
        at: float,
        new: dict[str, Any] | None = None,
        old: dict[str, Any] | None = None,
        expired: bool = False,
    ) -> str:
        """One more record; its sequence number. `at` is seconds since 1970."""
        if shard.closed:
            raise ValueError(f"{shard.id} is closed")
        number = self.next_sequence
        if self.repeats:
            number = shard.first + len(shard.sequences)
        else:
            self.next_sequence += 7
        keys = key if isinstance(key, dict) else {self.keys[0]: key}
        found: dict[str, Any] = {
            "ApproximateCreationDateTime": at,
            "Keys": _item(keys),
            "SequenceNumber": sequence(number),
            "SizeBytes": 26,
            "StreamViewType": self.view,
        }
        if "NEW" in self.view and operation != "DELETE":
            found["NewImage"] = _item(keys | (new or {}))
        if "OLD" in self.view and operation != "INSERT":
            found["OldImage"] = _item(keys | (old or {}))
        record: dict[str, Any] = {
            "awsRegion": "eu-central-1",
            "dynamodb": found,
            "eventID": f"{shard.id[-8:]}{len(shard.records):024x}",
            "eventName": NAMES[operation],
            "eventSource": "aws:dynamodb",
            "eventVersion": "1.1",
        }
        if expired:
            record["userIdentity"] = {
                "PrincipalId": "dynamodb.amazonaws.com",
                "Type": "Service",
            }
        shard.records.append(json.dumps(record, ensure_ascii=False).encode())
        shard.sequences.append(number)
        shard.times.append(at)
        return sequence(number)

    def trim(self, shard: Shard, count: int) -> None:
        """The first `count` records of a shard are older than 24 hours now."""
        shard.trimmed = count

    def disable(self) -> None:
        """Ends all shards; the stream stays readable."""
        self.status = "DISABLED"
        for shard in self.shards.values():
            shard.closed = True


def _item(values: dict[str, Any]) -> dict[str, Any]:
    return {name: typed(value) for name, value in values.items()}
