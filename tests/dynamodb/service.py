"""What the scripted server answers: the four operations of DynamoDB Streams, and what its script
may do to them. See `streams` for the sources.
"""

import base64
import json
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from tests.dynamodb.streams import Refused, Shard, Stream

LIFETIME = 15 * 60  # model: "A shard iterator expires 15 minutes after it is returned"


@dataclass
class _Failure:
    """What the next `times` calls of `operation` (of `shard`, if any) answer."""

    operation: str
    error: Refused
    times: int
    shard: str = ""


class StreamsService:
    """Thread-safe: the script is changed under `lock` by those who care about the moment."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.streams: dict[str, Stream] = {}
        self.counts: Counter[str] = Counter()
        """Calls of each operation."""
        self.reads: dict[str, list[float]] = {}
        """Shard id -> when GetRecords was called for it, in monotonic seconds."""
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.at_timestamp = True
        """Whether GetShardIterator knows AT_TIMESTAMP."""
        self.trims_at = "GetShardIterator"
        """Which call refuses a trimmed place: `GetRecords` is what an iterator of before gets."""
        self.page_of_shards = 100
        self.page_of_records = 1000
        self.page_of_streams = 100
        self.ages = False
        """Whether time trims records, closed shards and disabled streams; else only the script."""
        self.filters = True
        """Whether DescribeStream knows `ShardFilter` (model); Local ignores it."""
        self.limits: dict[str, int] = {}
        """Most calls of an operation a second, of GetRecords a shard; more are refused. Model:
        ListStreams 5, DescribeStream 10; guide: GetRecords 5 a shard."""
        self.shuffles: random.Random | None = None
        self.repeats_shards = False
        """Whether pages of DescribeStream overlap by one shard."""
        self.before: Callable[[str, dict[str, Any]], None] = lambda operation, request: None
        """Called before each answer, with `lock` held: a script that reacts."""
        # Of the table, for Scan; and what DescribeTable says of their number.
        self.items: dict[str, dict[str, Any]] = {}
        self.item_count = 0
        self._failures: list[_Failure] = []
        self.stopped_at: float | None = None
        """The time of day at which the server's clock stands still, but for `advance`."""
        self._recent: dict[tuple[str, str], deque[float]] = {}
        self._ahead = 0.0
        self._labels = 0

    # The script.

    @property
    def now(self) -> float:
        """The server's time, in seconds since 1970."""
        return (self.stopped_at or time.time()) + self._ahead

    def advance(self, seconds: float) -> None:
        """Moves the server's time on."""
        self._ahead += seconds

    def stream(self, table: str, **given: Any) -> Stream:
        """A new stream of a table, without shards. The table's old one is disabled."""
        with self.lock:
            for each in self.streams.values():
                if each.table == table and each.status == "ENABLED":
                    each.disable()
            self._labels += 1
            label = f"2026-11-23T01:00:{self._labels:02d}.000"
            found = Stream(table=table, label=label, clock=lambda: self.now, **given)
            self.streams[found.arn] = found
            return found

    def fail(
        self, operation: str, code: str, *, times: int = 1, status: int = 400, shard: str = ""
    ) -> None:
        """The next `times` calls (that concern the shard) are refused."""
        with self.lock:
            self._failures.append(_Failure(operation, Refused(code, status=status), times, shard))

    # The service.

    def answer(self, operation: str, request: dict[str, Any]) -> bytes:
        """The body of an answer; raises Refused."""
        with self.lock:
            self.counts[operation] += 1
            self.calls.append((operation, request))
            self.before(operation, request)
            place = _opened(request["ShardIterator"]) if "ShardIterator" in request else {}
            shard = str(request.get("ShardId") or place.get("shard", ""))
            if operation == "GetRecords":
                self.reads.setdefault(shard, []).append(time.monotonic())
            for failure in self._failures:
                if failure.operation == operation and failure.shard in ("", shard):
                    failure.times -= 1
                    if not failure.times:
                        self._failures.remove(failure)
                    raise failure.error
            self._limit(operation, shard if operation == "GetRecords" else "")
            self._pass_time()
            if operation == "GetRecords":
                return self._records(request, place)
            return json.dumps(self._operation(operation)(request)).encode()

    def _operation(self, name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return {
            "ListStreams": self._list,
            "DescribeStream": self._describe,
            "GetShardIterator": self._iterator,
            "DescribeTable": self._describe_table,
            "Scan": self._scan,
        }[name]

    def _pass_time(self) -> None:
        """What time does to streams, before an answer."""
        if self.ages:
            for stream in self.streams.values():
                stream.age()

    def _describe_table(self, request: dict[str, Any]) -> dict[str, Any]:
        """botocore's service model (dynamodb, 2012-08-10), as far as penstock reads it."""
        name = request["TableName"]
        found = max((each for each in self.streams.values() if each.table == name),
                    key=lambda each: each.label, default=None)  # fmt: skip
        if found is None:
            raise Refused("ResourceNotFoundException", f"Table: {name} not found")
        enabled = {"StreamEnabled": True, "StreamViewType": found.view}
        table = {
            "TableName": name,
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
            "ItemCount": self.item_count, "TableSizeBytes": 0, "LatestStreamArn": found.arn,
            **({"StreamSpecification": enabled} if found.status == "ENABLED" else {}),
        }  # fmt: skip
        return {"Table": table}

    def _scan(self, request: dict[str, Any]) -> dict[str, Any]:
        """Items of a segment, by a hash of the key: `LastEvaluatedKey` where there may be more."""
        name, segments = request["TableName"], request.get("TotalSegments", 1)
        last, most = request.get("ExclusiveStartKey"), request.get("Limit", 1000)
        items = sorted(self._items_of(name).items())
        if last is not None:
            items = items[1 + [self._key_of(name, item) for _, item in items].index(last) :]
        found = [
            item
            for key, item in items
            if crc32(key.encode()) % segments == request.get("Segment", 0)
        ]
        page = found[:most]
        more = {"LastEvaluatedKey": self._key_of(name, page[-1])} if len(page) == most else {}
        used = {"TableName": name, "CapacityUnits": 1.0}
        items_of_page = {} if request.get("Select") == "COUNT" else {"Items": page}
        return {**items_of_page, "Count": len(page), "ConsumedCapacity": used, **more}

    def _items_of(self, table: str) -> dict[str, dict[str, Any]]:
        return {key: {"id": {"S": key}, **item} for key, item in self.items.items()}

    def _key_of(self, table: str, item: dict[str, Any]) -> dict[str, Any]:
        return {"id": item["id"]}

    def _limit(self, operation: str, shard: str) -> None:
        most = self.limits.get(operation)
        if most is None:
            return
        recent = self._recent.setdefault((operation, shard), deque(maxlen=most))
        if len(recent) == most and self.now - recent[0] < 1:
            raise Refused("LimitExceededException", "Too many operations for a given subscriber.")
        recent.append(self.now)

    def _list(self, request: dict[str, Any]) -> dict[str, Any]:
        table, after = request.get("TableName"), request.get("ExclusiveStartStreamArn", "")
        found = [
            {"StreamArn": each.arn, "TableName": each.table, "StreamLabel": each.label}
            for each in sorted(self.streams.values(), key=lambda each: each.arn)
            if table in (None, each.table) and each.arn > after and each.is_listed
        ]
        page = found[: self.page_of_streams]
        more = {"LastEvaluatedStreamArn": page[-1]["StreamArn"]} if len(page) < len(found) else {}
        return {"Streams": page, **more}

    def _stream(self, arn: str) -> Stream:
        if arn not in self.streams:
            raise Refused("ResourceNotFoundException", f"Stream {arn} not found")
        return self.streams[arn]

    def _describe(self, request: dict[str, Any]) -> dict[str, Any]:
        stream = self._stream(request["StreamArn"])
        after, wanted = request.get("ExclusiveStartShardId"), request.get("ShardFilter")
        shards = list(stream.shards.values())
        if wanted and self.filters:  # model: CHILD_SHARDS of ShardId
            shards = [each for each in shards if each.parent == wanted["ShardId"]]
        if after is not None:
            ids = [each.id for each in shards]
            start = ids.index(after) + 1
            shards = shards[max(0, start - self.repeats_shards) :]
        shards = [each for each in shards if each.is_listed]
        limit = min(request.get("Limit", 100), self.page_of_shards)
        page, rest = shards[:limit], shards[limit:]
        last = page[-1].id if rest else None
        if stream.empty:
            stream.empty -= 1
            page, last = [], None
        if self.shuffles is not None:
            self.shuffles.shuffle(page)
        described = {
            "StreamArn": stream.arn,
            "StreamLabel": stream.label,
            "StreamStatus": stream.status,
            "StreamViewType": stream.view,
            "TableName": stream.table,
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "Shards": [each.describe() for each in page],
        }
        return {"StreamDescription": described | ({"LastEvaluatedShardId": last} if last else {})}

    def _shard(self, stream: Stream, name: str) -> Shard:
        found = stream.shards.get(name)
        if found is None or found.gone:
            raise Refused("ResourceNotFoundException", f"Shard {name} not found")
        return found

    def _iterator(self, request: dict[str, Any]) -> dict[str, Any]:
        stream = self._stream(request["StreamArn"])
        shard = self._shard(stream, request["ShardId"])
        index = self._index(shard, request)
        if index < shard.trimmed and self.trims_at == "GetShardIterator":
            raise Refused("TrimmedDataAccessException", "trimmed")
        return {"ShardIterator": self._sealed(stream, shard, index)}

    def _index(self, shard: Shard, request: dict[str, Any]) -> int:
        kind = request["ShardIteratorType"]
        if kind == "TRIM_HORIZON":
            return shard.trimmed
        if kind == "LATEST":
            return len(shard.records)
        if kind == "AT_TIMESTAMP":
            if not self.at_timestamp:
                raise Refused("ValidationException", "AT_TIMESTAMP is not one of the values")
            if request["Timestamp"] > self.now:
                raise Refused("ValidationException", "the timestamp is in the future")
            later = (n for n, at in enumerate(shard.times) if at >= request["Timestamp"])
            return max(shard.trimmed, next(later, len(shard.records)))
        number = int(request["SequenceNumber"])
        if number < shard.first:
            raise Refused("ValidationException", "the sequence number is before the shard")
        after = kind == "AFTER_SEQUENCE_NUMBER"
        found = (n for n, each in enumerate(shard.sequences) if each >= number + after)
        return next(found, len(shard.records))

    def _sealed(self, stream: Stream, shard: Shard, index: int) -> str:
        place = {"arn": stream.arn, "shard": shard.id, "index": index, "made": self.now}
        return base64.b64encode(json.dumps(place).encode()).decode()

    def _records(self, request: dict[str, Any], place: dict[str, Any]) -> bytes:
        if self.now - place["made"] > LIFETIME:
            raise Refused("ExpiredIteratorException", "Iterator expired")
        stream = self._stream(place["arn"])
        shard = self._shard(stream, place["shard"])
        index = place["index"]
        if index < shard.trimmed:
            raise Refused("TrimmedDataAccessException", "trimmed")
        records, then = shard.page(index, request.get("Limit", self.page_of_records))
        body = b'{"Records": [' + b", ".join(records) + b"]"
        if then is not None:
            following = json.dumps(self._sealed(stream, shard, then))
            body = b'{"NextShardIterator": ' + following.encode() + b", " + body[1:]
        return body + b"}"


def _opened(iterator: str) -> dict[str, Any]:
    place: dict[str, Any] = json.loads(base64.b64decode(iterator))
    return place
