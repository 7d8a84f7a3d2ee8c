"""botocore's client for DynamoDB Streams, one for each process: a client that was used before a
fork mixes up the answers of parent and child. And what a process knows of one account in one
region: limits of AWS count for the account, and a shard, however many feeds there are.

Answers of GetRecords come as their bytes: botocore's walk over records costs more than all else.
"""

import math
import os
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, NamedTuple

import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError, NoCredentialsError
from botocore.loaders import Loader, create_loader
from botocore.parsers import ResponseParserFactory

from penstock.feeds.dynamodb import failures
from penstock.feeds.dynamodb.lineage import StreamShard
from penstock.feeds.dynamodb.settings import DynamodbSettings
from penstock.feeds.dynamodb.walk import KnownShard
from penstock.model.errors import Unavailable
from penstock.wire.dynamodb.decoder import Answer, read_answer

# Calls a second of one process, or its share of them. AWS allows an account 5 and 10.
LISTS, DESCRIBES = 4, 8
# Shards that are remembered. They roll every four hours; an older one is read as if it were new.
_SHARDS = 10_000
_SECOND = 1.0  # in which the service counts calls


class CallPace:
    """When a call of one operation may be made, in seconds of its caller's clock: `most` in any
    second; below one, one in several seconds."""

    def __init__(self, most: float) -> None:
        self._recent: deque[float] = deque(maxlen=max(1, int(most)))
        self._window = _SECOND / min(1.0, most)

    def reserve(self, now: float) -> float:
        """A call is made as soon as it may be; returns when that is."""
        is_full = len(self._recent) == self._recent.maxlen
        at = max(now, self._recent[0] + self._window) if is_full else now
        self._recent.append(at)
        return at


class ServerClock:
    """The server's time by the `Date` of its answers, which is cut to the second: a lower bound.
    Until there is an answer, the local clock's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ahead: float | None = None  # of the monotonic clock
        self._last = ""

    def now(self) -> float:
        """Seconds since 1970."""
        ahead = self._ahead
        return time.time() if ahead is None else self._clock() + ahead

    def heard(self, date: str) -> None:
        """An answer had this `Date`; one that is no date is passed over."""
        if date == self._last:
            return
        try:
            found = parsedate_to_datetime(date).timestamp() - self._clock()
        except (TypeError, ValueError):
            return
        self._last = date
        # The greatest is the closest, unless the clock was set back.
        if self._ahead is None or found > self._ahead or found < self._ahead - 2:
            self._ahead = found


class Account:
    """See above. `clock`: monotonic seconds. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        share: float = 1.0,
    ) -> None:
        self.server = ServerClock(clock)
        self.lists, self.describes = CallPace(share * LISTS), CallPace(share * DESCRIBES)
        # The ARNs of each table's streams that were found, by label.
        self.arns: defaultdict[str, dict[str, str]] = defaultdict(dict)
        # Whether the last look-up of streams or shards was refused: calls are too many.
        self.is_throttled = False
        self.clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._shards: OrderedDict[tuple[str, str], KnownShard] = OrderedDict()

    def wait_for(self, pace: CallPace) -> None:
        """Returns when the call may be made, which counts from now on."""
        with self._lock:
            now = self.clock()
            at = pace.reserve(now)
        if at > now:
            self._sleep(at - now)

    def shard(self, arn: str, shard: str) -> KnownShard:
        with self._lock:
            known = self._shards.setdefault((arn, shard), KnownShard())
            self._shards.move_to_end((arn, shard))
            while len(self._shards) > _SHARDS:
                self._shards.popitem(last=False)
        return known

    def heard(self, answer: Mapping[str, Any]) -> None:
        """Takes the time of an answer of botocore."""
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders") or {}
        self.server.heard(str(headers.get("date", "")))


_CONNECTIONS = 16
_TRIES = 3  # of a look-up that the service fails
_making = threading.Lock()  # sessions are not thread-safe


class _RawParsers(ResponseParserFactory):  # type: ignore[misc]
    """Makes parsers that pass on the body of answers of one shape as it is."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        self._shape = shape

    def create_parser(self, protocol_name: str) -> Any:
        parser = super().create_parser(protocol_name)
        stock = parser.parse

        def parse(response: dict[str, Any], shape: Any) -> Any:
            if response["status_code"] >= 300 or getattr(shape, "name", "") != self._shape:
                return stock(response, shape)
            metadata = {"HTTPStatusCode": response["status_code"],
                        "HTTPHeaders": response["headers"]}  # fmt: skip
            return {"Body": response["body"], "ResponseMetadata": metadata}

        parser.parse = parse
        return parser


class DescribedStream(NamedTuple):
    """What DescribeStream says, of all its pages: the shards as they came."""

    status: str
    view: str
    shards: list[StreamShard]


class StreamsClient:
    """The four calls, with errors as ours unless a method says otherwise. Thread-safe. botocore
    repeats none of them: a repeated call would not be paced. Only a look-up that the service
    failed, and a connection that it has closed, are tried again here."""

    def __init__(self, settings: DynamodbSettings, account: Account) -> None:
        self.account = account
        self._settings = settings
        self._subject = f"DynamoDB Streams of {settings.table_name}"
        with _making, failures.translating(self._subject):
            self._client = connect(settings, "dynamodbstreams", attempts=1)
        model = self._client.meta.service_model.operation_model
        # botocore before 1.44.0 has no iterator at a time; older ones have no filter of shards.
        self.has_times = "Timestamp" in model("GetShardIterator").input_shape.members
        self.has_filters = "ShardFilter" in model("DescribeStream").input_shape.members

    def streams(self, table: str) -> list[str]:
        """The ARNs of a table's streams, the newest last; none if the service finds none."""
        found: set[str] = set()
        more: dict[str, str] = {}
        while True:
            answer = self._found("list_streams", TableName=table, **more) or {}
            # LocalStack lists the streams of other tables as well.
            found |= {each["StreamArn"] for each in answer.get("Streams", ())
                      if each.get("TableName", table) == table}  # fmt: skip
            if not answer.get("LastEvaluatedStreamArn"):
                return sorted(found, key=lambda arn: arn.rpartition("/stream/")[2])
            more = {"ExclusiveStartStreamArn": answer["LastEvaluatedStreamArn"]}

    def describe(self, arn: str, parent: str = "") -> DescribedStream | None:
        """DescribeStream, with all shards or the children of one; None if the stream is gone."""
        shards: list[StreamShard] = []
        more: dict[str, str] = {}
        which: dict[str, Any] = {"StreamArn": arn}
        if parent:
            which["ShardFilter"] = {"Type": "CHILD_SHARDS", "ShardId": parent}
        while True:
            answer = self._found("describe_stream", **which, **more)
            if answer is None:
                return None
            found = answer["StreamDescription"]
            shards += [StreamShard.of(each) for each in found.get("Shards", ())]
            last = found.get("LastEvaluatedShardId")
            if not last or more.get("ExclusiveStartShardId") == last:
                return DescribedStream(found["StreamStatus"], found["StreamViewType"], shards)
            more = {"ExclusiveStartShardId": last}

    def _found(self, operation: str, **given: Any) -> Any:
        """An answer of ListStreams or DescribeStream, as soon as the account's limits allow it;
        None where the service does not find what is asked for."""
        account, tries = self.account, 0
        pace = account.lists if operation == "list_streams" else account.describes
        with failures.translating(self._subject):
            while True:
                account.wait_for(pace)
                tries += 1
                try:
                    answer = self._call(operation, **given)
                except ClientError as error:
                    kind, _ = failures.verdict_of(error)
                    account.is_throttled = issubclass(kind, failures.Throttled)
                    if failures.code_of(error) == failures.NOT_FOUND:
                        return None
                    is_passing = issubclass(kind, Unavailable) and not account.is_throttled
                    if tries == _TRIES or not is_passing:
                        raise
                else:
                    account.is_throttled = False
                    return answer

    def _call(self, operation: str, **given: Any) -> Any:
        method = getattr(self._client, operation)
        try:
            try:
                answer = method(**given)
            except ConnectionClosedError:
                answer = method(**given)
        except NoCredentialsError:
            # A client that was made without credentials does not look for them again.
            with _making:
                self._client = connect(self._settings, "dynamodbstreams", attempts=1)
            raise
        except ClientError as error:
            self.account.heard(error.response)
            raise
        self.account.heard(answer)
        return answer

    def now(self) -> float:
        """The service's time, seconds since 1970; a second early rather than late."""
        return self.account.server.now()

    def iterator(
        self, arn: str, shard: str, kind: str, *, sequence: str = "", since: float = 0.0
    ) -> str:
        """A shard iterator; raises ClientError. Times are in whole seconds, as those of records."""
        more: dict[str, Any] = {}
        if sequence:
            more["SequenceNumber"] = sequence
        if kind == "AT_TIMESTAMP":
            more["Timestamp"] = datetime.fromtimestamp(math.floor(since), UTC)
        with failures.translating(self._subject, refusals=False):
            answer = self._call(
                "get_shard_iterator", StreamArn=arn, ShardId=shard, ShardIteratorType=kind, **more
            )
        return str(answer["ShardIterator"])

    def latest(self, arn: str, shard: str) -> str:
        with failures.translating(self._subject):
            return self.iterator(arn, shard, "LATEST")

    def records(self, iterator: str) -> tuple[Answer, bytes]:
        """One page, and its bytes; raises ClientError and Malformed."""
        with failures.translating(self._subject, refusals=False):
            body: bytes = self._call("get_records", ShardIterator=iterator)["Body"]
        return read_answer(body), body


def client_of(settings: DynamodbSettings) -> StreamsClient:
    """This process's client for a login; where to start does not matter to it."""
    return _client_of(os.getpid(), settings.model_copy(update={"start": "latest"}))


# A session token that was replaced is not asked for again: its client is let go.
@lru_cache(maxsize=64)
def _client_of(_: int, settings: DynamodbSettings) -> StreamsClient:
    return StreamsClient(settings, account_of(settings))


def account_of(settings: DynamodbSettings) -> Account:
    """What this process knows of the account that a login is of. No I/O."""
    key = settings.access_key.get_secret_value() if settings.access_key is not None else None
    login = settings.endpoint, settings.region, settings.profile, key
    return _account_of(os.getpid(), settings.look_ups, *login)


@lru_cache(maxsize=64)
def _account_of(_: int, share: float, *login: str | None) -> Account:
    return Account(share=share)


@lru_cache
def _loader(path: str | None) -> Loader:
    """Of the descriptions of services: reading them is most of what a session costs."""
    return create_loader(path)


def connect(
    settings: DynamodbSettings, service: str, attempts: int = 4, raw: str = "GetRecordsOutput"
) -> Any:
    """A client of botocore with the login of the settings, which makes a failed call so many times.
    Answers of the shape `raw` have their bytes as `Body`. Raises botocore's errors."""
    session = botocore.session.Session(profile=settings.profile)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    session.register_component("response_parser_factory", _RawParsers(raw))
    keys = {
        name: secret.get_secret_value()
        for name, secret in (
            ("aws_access_key_id", settings.access_key),
            ("aws_secret_access_key", settings.secret_key),
            ("aws_session_token", settings.session_token),
        )
        if secret is not None
    }
    config = Config(
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.timeout,
        max_pool_connections=_CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": attempts},
    )
    return session.create_client(
        service,
        region_name=settings.region,
        endpoint_url=settings.endpoint,
        config=config,
        **keys,
    )
