"""The streams, shards and records of the scripted server: what it holds, without HTTP.

"Model" names the documentation of the service model in botocore 1.44.5 (dynamodbstreams,
2012-08-10), "guide" the DynamoDB developer guide, and "Local" what DynamoDB Local 2.6 does, as
was seen before its licence took it out of the tests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

NAMES = {"INSERT": "INSERT", "UPDATE": "MODIFY", "DELETE": "REMOVE"}
PAGE_BYTES = 1 << 20
PAGE_RECORDS = 1000
# Seconds that records are kept, and an ended stream is readable (model: TrimmedDataAccessException;
# guide: "Disabling a stream"); how long after that Local lists a shard that it does not read.
RETENTION, LISTED = 24 * 3600.0, 5 * 3600.0


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
    """One shard: `records` are JSON texts; the first `trimmed` of them are gone. `clock`: the
    server's, in seconds since 1970."""

    id: str
    parent: str | None = None
    clock: Callable[[], float] = time.time
    records: list[bytes] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    trimmed: int = 0
    closed_at: float | None = None
    listed: bool = True
    """Whether DescribeStream names it."""
    listed_from: float = 0.0
    """Since when: children that begin together are listed at different times (guide: listings are
    eventually consistent)."""
    hidden: int = 0
    """How many answers of DescribeStream leave it out."""
    gone: bool = False
    """Listed, and every other call answers ResourceNotFoundException, as on Local between 24 and 29
    hours after it was closed."""
    pages: list[int] = field(default_factory=list)
    """Sizes of the next answers of GetRecords, 0 for an empty one; then as large as they may be.
    Model: "it might take multiple calls to get to a portion of the shard that contains stream
    records"."""
    first: int = 0
    last: int | None = None
    """The EndingSequenceNumber, where it is not the last record's."""

    @property
    def closed(self) -> bool:
        """Whether it takes no more records."""
        return self.closed_at is not None

    @closed.setter
    def closed(self, value: bool) -> None:
        self.closed_at = self.clock() if value else None

    @property
    def is_listed(self) -> bool:
        """Whether an answer of DescribeStream has it; counts the answers that leave it out."""
        if self.hidden:
            self.hidden -= 1
            return False
        return self.listed and self.clock() >= self.listed_from

    def age(self) -> None:
        """Loses what is older than a stream keeps it."""
        kept = self.clock() - RETENTION
        old = next((n for n, at in enumerate(self.times) if at >= kept), len(self.times))
        self.trimmed = max(self.trimmed, old)
        if self.closed_at is not None:
            self.gone = self.gone or self.closed_at < kept
            self.listed = self.listed and self.closed_at >= kept - LISTED

    def describe(self) -> dict[str, Any]:
        """As DescribeStream lists it."""
        numbers = {"StartingSequenceNumber": sequence(self.first)}
        if self.closed:
            last = self.sequences[-1] if self.sequences else self.first
            last = last if self.last is None else self.last
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
    """One stream of a table. Sequence numbers are one counter. `clock`: the
    server's, in seconds since 1970."""

    table: str
    label: str
    view: str = "NEW_AND_OLD_IMAGES"
    status: str = "ENABLED"
    shards: dict[str, Shard] = field(default_factory=dict)
    next_sequence: int = 4_421_584_500_000_000_017_450_439_091
    clock: Callable[[], float] = time.time
    listed: bool = True
    """Whether ListStreams names it."""
    hidden: int = 0
    """How many answers of ListStreams leave it out."""
    empty: int = 0
    """How many answers of DescribeStream list no shard of it."""
    disabled_at: float | None = None

    @property
    def is_listed(self) -> bool:
        """Whether an answer of ListStreams has it; counts the answers that leave it out."""
        if self.hidden:
            self.hidden -= 1
            return False
        return self.listed

    def age(self) -> None:
        """Loses what is older than a stream keeps it, and then its place in ListStreams."""
        for shard in self.shards.values():
            shard.age()
        if self.disabled_at is not None:
            self.listed = self.listed and self.disabled_at >= self.clock() - RETENTION

    @property
    def arn(self) -> str:
        return f"arn:aws:dynamodb:eu-central-1:000000000000:table/{self.table}/stream/{self.label}"

    def shard(self, parent: Shard | None = None) -> Shard:
        """One more shard, without records."""
        number = len(self.shards)
        found = Shard(
            id=f"shardId-{1_414_576_573_621 + number:020d}-{number:08x}",
            parent=parent.id if parent else None,
            clock=self.clock,
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
        """One more record; its sequence number. `at` is seconds since 1970, rounded down to the
        second (model: ApproximateCreationDateTime)."""
        at = int(at)
        if shard.closed:
            raise ValueError(f"{shard.id} is closed")
        number = self.next_sequence
        self.next_sequence += 7
        keys = key if isinstance(key, dict) else {"id": key}
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
        """Ends all shards; the stream stays readable for a day (guide: "Disabling a stream")."""
        self.status, self.disabled_at = "DISABLED", self.clock()
        for shard in self.shards.values():
            shard.closed_at = shard.closed_at or self.clock()


def _item(values: dict[str, Any]) -> dict[str, Any]:
    return {name: typed(value) for name, value in values.items()}
