"""DynamoDB Streams as a feed: a partition is a shard, named `LABEL/SHARD` after its stream.

A stream that was disabled and enabled again is another one, with another label. Its first shards
are children of the old stream's last ones, so that the old stream is drained first; what was
written in between is a gap.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from penstock.change import Images, OnError
from penstock.errors import (
    InvalidPosition,
    InvalidStream,
    Malformed,
    PenstockError,
    SettingsError,
    Unavailable,
)
from penstock.feeds import At, Gap, GapPolicy, HistoryLost, Lineage, Listing, RecordReader
from penstock.feeds.dynamodb.beginning import RETENTION, ShardBeginning, beginning_of
from penstock.feeds.dynamodb.client import DescribedStream, StreamsClient, client_of
from penstock.feeds.dynamodb.collection import DynamodbTable
from penstock.feeds.dynamodb.following import DynamodbFollowing
from penstock.feeds.dynamodb.lineage import ShardTree
from penstock.feeds.dynamodb.losses import gap_of, loss
from penstock.feeds.dynamodb.native import native_reader
from penstock.feeds.dynamodb.preflight import check, finding, how_to_enable
from penstock.feeds.dynamodb.settings import DynamodbSettings
from penstock.finding import Finding
from penstock.page import Decoder
from penstock.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.wire.dynamodb.decoder import DynamodbDecoder
from penstock.wire.dynamodb.records import sequence_number

# Seconds that the service's clocks may differ among each other, when "now" becomes a time.
_SKEW = 60.0
_DISABLED = ("DISABLED", "DISABLING")


class DynamodbFeed:
    """The implementation of `feeds.Feed`. It is its settings."""

    def __init__(self, settings: DynamodbSettings) -> None:
        self.settings = settings
        self._arns: dict[str, str] = {}  # by label
        self._status = ""

    def __repr__(self) -> str:
        return f"DynamodbFeed({self.settings.stream or self.settings.table})"

    def __reduce__(self) -> tuple[Any, ...]:
        return DynamodbFeed, (self.settings,)

    @property
    def backend(self) -> str:
        """See `feeds.Feed`."""
        return self.settings.name

    @property
    def on_gap(self) -> GapPolicy:
        """See `feeds.Feed`."""
        return self.settings.on_gap

    @property
    def polled(self) -> bool:
        """See `feeds.Polled`."""
        return self.settings.polled

    @property
    def _client(self) -> StreamsClient:
        return client_of(self.settings)

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> Listing:
        """See `feeds.Feed`: the shards of the table's streams, parents first. A child inherits
        where its parents began, if nothing was read of them."""
        found: list[Lineage] = []
        last: tuple[PartitionId, ...] = ()
        for label, tree in self._trees():
            for shard in tree.ordered:
                parents = (_name(label, shard.parent),) if shard.parent else last
                marks = {name: known[name].to_json() for name in parents if name in known}
                first = Bookmark(mark={"parents": marks}) if marks else None
                name = _name(label, shard.id)
                found.append(Lineage(partition=name, parents=parents, first=first))
            last = tuple(_name(label, shard.id) for shard in tree.leaves)
        return Listing(lineages=found, history=self._arns[label])

    def begin(self, at: At = None) -> Bookmarks:
        """See `feeds.Feed`: of the newest stream. "Now" is a LATEST iterator of each open shard,
        with the time beside it for when that has expired; all other shards are done."""
        at = self.settings.at if at is None else at
        if isinstance(at, Mapping):
            _check(at)
            return at
        *older, (label, tree) = self._trees()
        now = self._client.now()  # by the answers of these look-ups
        done = {_name(old, each): _ended_at(now)
                for old, past in older for each in past.shards}  # fmt: skip
        if isinstance(at, datetime) and at.timestamp() > now:
            at = "now"
        if at == "now":
            return done | self._latest(label, tree, now)
        # Records' times are rounded down to the second.
        since = float(int(at.timestamp())) if isinstance(at, datetime) else 0.0
        beginning = ShardBeginning(since=since if since > now - RETENTION else None, asked=now)
        return done | {
            _name(label, each.id): Bookmark(None, beginning.to_mark()) for each in tree.roots
        }

    def _latest(self, label: str, tree: ShardTree, now: float) -> dict[PartitionId, Bookmark]:
        found = {}
        for shard in tree.ordered:
            if not shard.is_open:
                found[_name(label, shard.id)] = _ended_at(now)
                continue
            iterator = self._client.latest(self._arns[label], shard.id)
            mark = ShardBeginning(since=_pinned(now), asked=now, iterator=iterator).to_mark()
            found[_name(label, shard.id)] = Bookmark(None, mark)
        return found

    def _trees(self) -> list[tuple[str, ShardTree]]:
        """Of each stream of the table that is still there, the newest last, at least one."""
        found: list[tuple[str, ShardTree]] = []
        described: DescribedStream | None = None
        for label, arn in self._streams().items():
            described = self._client.describe(arn)
            if described is not None:
                found.append((label, ShardTree(described.shards)))
        if not found or described is None:
            raise self._no_stream()
        self._status = described.status
        label, newest = found[-1]
        if not newest.shards and described.status not in _DISABLED:
            raise Unavailable(f"the stream {label} of {self._table} lists no shards now")
        return found

    def _streams(self) -> dict[str, str]:
        arns = [self.settings.stream] if self.settings.stream else self._client.streams(self._table)
        self._arns = {arn.rpartition("/stream/")[2]: arn for arn in arns}
        return self._arns

    @property
    def _table(self) -> str:
        return self.settings.table_name

    def _no_stream(self) -> InvalidStream:
        return InvalidStream(
            f"the table {self._table} has no stream, or there is no such table",
            hint=how_to_enable(self._table),
        )

    def follow(
        self,
        partition: PartitionId,
        bookmark: Bookmark = START,
        *,
        despite: Sequence[Gap] = (),
    ) -> DynamodbFollowing:
        """See `feeds.Feed`. Makes no call, but for a gap: reading finds what else is lost."""
        label, _, shard = partition.rpartition("/")
        beginning = beginning_of(bookmark)
        passed, client = {each.cause for each in despite}, self._client
        cause = self._cause(partition, bookmark, beginning)
        if cause and cause not in passed:
            raise loss(self._gap_of(partition, bookmark.place, cause))
        if passed:
            beginning = ShardBeginning(asked=client.now())
        arn = self._arn(label) or ""
        following = DynamodbFollowing(
            client,
            partition,
            arn=arn,
            shard=shard,
            table=self._table,
            beginning=beginning,
            known=client.account.shard(arn, shard, self.settings.reads, self.settings.poll),
            lost=lambda after, cause: self._found_lost(partition, after, cause),
        )
        if passed & {"shard_gone", "stream_gone"}:
            following.end()
        elif passed:
            following.look_ahead()
        return following

    def _arn(self, label: str) -> str | None:
        if label not in self._arns:
            self._streams()
        return self._arns.get(label)

    def _cause(self, partition: PartitionId, bookmark: Bookmark, beginning: ShardBeginning) -> str:
        """Of what is lost for sure, before anything is read; "" for nothing."""
        label = partition.rpartition("/")[0]
        parents = (bookmark.mark or {}).get("parents", {}) if bookmark.place is None else {}
        if self._arn(label) is None:
            return "stream_gone"
        if any(parent.rpartition("/")[0] != label for parent in parents):
            return "stream_replaced"
        return "trimmed" if beginning.is_overdue(self._client.now()) else ""

    def _gap_of(self, partition: PartitionId, place: Place | None, cause: str) -> Gap:
        return gap_of(cause, partition, place, table=self._table, policy=self.on_gap)

    def _found_lost(
        self, partition: PartitionId, after: Place | None, cause: str
    ) -> HistoryLost | None:
        """What reading found; None if all of the shard was read before."""
        arn = self._arns.get(partition.rpartition("/")[0])
        if arn is None:  # a look-up meanwhile did not have the stream any more
            cause = "stream_gone"
        described = None if arn is None else self._client.describe(arn)
        shards = ShardTree(described.shards).shards if described is not None else {}
        shard = shards.get(partition.rpartition("/")[2])
        last = None if shard is None else shard.last
        if last is not None and after is not None and int(after.cursor) >= last:
            return None
        return loss(self._gap_of(partition, after, cause))

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Feed`: whether the newest stream is disabled, by the last listing, or that
        was refused because calls are too many."""
        state, text = "", ""
        if self._status in _DISABLED:
            state = "disabled"
            text = f"the stream of {self._table} is disabled: what is written is not in it"
        elif self._client.account.is_throttled:
            state = "throttled"
            text = "calls of ListStreams or DescribeStream were refused: others make them, too"
        return {"state": state, "message": text, "at_risk": ""}

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        """See `feeds.Feed`."""
        return DynamodbDecoder(self.backend, self.settings.tenant, images, on_error)

    def record_reader(self, on_error: OnError = "stop") -> RecordReader:
        """See `feeds.GivesRecords`."""
        return native_reader(on_error)

    def collection(self, name: str) -> DynamodbTable:
        """See `feeds.ReadsCollections`: the one table."""
        if name != self.settings.table_name:
            raise SettingsError(
                f"this backend does not follow a table {name!r}",
                hint=f"its table is {self.settings.table_name}",
            )
        return DynamodbTable(self.settings)

    def check(self) -> Sequence[Finding]:
        """See `feeds.Feed`."""
        return check(self.settings, lambda: self._client)

    def check_bookmark(self, partition: PartitionId, bookmark: Bookmark) -> Sequence[Finding]:
        """See `feeds.ChecksBookmarks`: reads after it once."""
        if bookmark.ended:
            return []
        try:
            self.follow(partition, bookmark).look_ahead()
        except PenstockError as error:
            level, message, remedy = "error", error.message, error.hint
        else:
            level, message, remedy = "ok", f"{partition} has the changes after it", ""
        return [finding(level, "saved position", message, remedy)]


def _check(token: Bookmarks) -> None:
    """Raises InvalidPosition for a token with bookmarks that cannot be read from."""
    try:
        for bookmark in token.values():
            beginning_of(bookmark)
            if bookmark.place is not None:
                sequence_number(bookmark.place)
    except Malformed as error:
        raise InvalidPosition(
            f"the token is damaged: {error.message}",
            hint="take another one, a time or trim_horizon",
        ) from error


def _ended_at(now: float) -> Bookmark:
    """Of a closed shard when "now" was asked for: a child that is listed later begins then."""
    return Bookmark(None, ShardBeginning(since=_pinned(now), asked=now).to_mark(), ended=True)


def _pinned(now: float) -> float:
    """ "Now" as a time of records, which are cut to the second, by clocks that may differ."""
    return math.floor(now) - _SKEW


def _name(label: str, shard: str) -> PartitionId:
    return PartitionId(f"{label}/{shard}")
