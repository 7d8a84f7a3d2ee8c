"""DynamoDB Streams as a feed: a partition is a shard, named `LABEL/SHARD` after its stream.

A stream that was disabled and enabled again is another one, with another label. Its first shards
are children of the old stream's last ones, so that the old stream is drained first; what was
written in between is a gap.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from penstock import feeds
from penstock.feeds.dynamodb.beginning import RETENTION, ShardBeginning, beginning_of
from penstock.feeds.dynamodb.client import StreamsClient, account_of, client_of
from penstock.feeds.dynamodb.following import DynamodbFollowing
from penstock.feeds.dynamodb.lineage import ShardTree, label_of, lineages, partition_of, start_of
from penstock.feeds.dynamodb.native import native_reader
from penstock.feeds.dynamodb.preflight import findings
from penstock.feeds.dynamodb.settings import DynamodbSettings
from penstock.feeds.dynamodb.streams import DISABLED, ServedShard, TableStreams
from penstock.feeds.dynamodb.table import DynamodbSnapshot, DynamodbTable, describe_table
from penstock.feeds.shared import PolledFeed, checked
from penstock.model.change import Images, OnError
from penstock.model.errors import InvalidStream, SettingsError
from penstock.model.finding import Finding
from penstock.model.page import Decoder, Page
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.model.table_schema import TableSchema
from penstock.wire.document_lines import document_lines
from penstock.wire.dynamodb.decoder import DynamodbDecoder, sequence_number

# Seconds that the service's clocks may differ among each other, when "now" becomes a time.
_SKEW = 60.0
# Open shards up to which a position at "now" has their iterators: a hundred of them are 40 KB.
_EXACT = 24


class DynamodbFeed(PolledFeed[DynamodbSettings]):
    """The implementation of `feeds.Feed`. It is its settings."""

    has_common_order = False
    detail_series = ("next_read_in", "tip_reached")
    oldest = "trim_horizon"

    def __init__(self, settings: DynamodbSettings) -> None:
        super().__init__(settings)
        self._streams = TableStreams(settings)

    def __repr__(self) -> str:
        return f"DynamodbFeed({self.settings.stream or self.settings.table})"

    @property
    def _client(self) -> StreamsClient:
        return client_of(self.settings)

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> feeds.Listing:
        """See `feeds.Feed`: the shards of the table's streams, parents first."""
        trees = dict(self._streams.trees({label_of(name) for name in known}))
        return feeds.Listing(lineages=lineages(trees, known), history=self._streams.history)

    def children(self, known: Bookmarks, of: Sequence[PartitionId]) -> feeds.Listing | None:
        trees = self._streams.children(of)
        if trees is None:
            return None
        return feeds.Listing(
            lineages=lineages(trees, known), complete=False, history=self._streams.history
        )

    @property
    def history(self) -> str:
        """See `feeds.Feed`: the newest stream's ARN."""
        return self._streams.history

    def verify(self, history: str) -> None:
        table = history.partition(":table/")[2].partition("/stream/")[0]
        name, stream = self.settings.table_name, self.settings.stream
        if table != name or (stream and history != stream):
            raise InvalidStream(
                f"the token is of the stream {history}, which is not {stream or name}",
                "dynamodb",
                hint=f"take a token of {name}, a time or trim_horizon; or follow the table {table}",
            )
        self._streams.know(history)

    def begin(self, at: feeds.At = None) -> Bookmarks:
        """See `feeds.Feed`: of the newest stream. "Now" is a LATEST iterator of each open shard,
        with the time beside it for when that has expired; all other shards are done."""
        at = self.asked(at)
        if isinstance(at, Mapping):
            return at
        *older, (label, tree) = self._streams.trees()
        now = self._client.now()  # by the answers of these look-ups
        # Ancestors of known shards are done: they need no bookmarks of their own.
        done = {partition_of(old, each.id): _ended_at(now)
                for old, past in older for each in past.leaves}  # fmt: skip
        if isinstance(at, datetime) and at.timestamp() > now:
            at = "now"
        if at == "now":
            return done | {start_of(label): _ended_at(now)} | self._latest(label, tree, now)
        # Records' times are rounded down to the second.
        since = float(int(at.timestamp())) if isinstance(at, datetime) else 0.0
        beginning = ShardBeginning(since=since if since > now - RETENTION else None, asked=now)
        first = Bookmark(None, beginning.to_mark())
        # A shard whose parent is not listed is read after a second listing without it, seconds
        # later: else it could be read before its parent, of which nothing would come then.
        roots = [each.id for each in tree.ordered if each.parent is None]
        return (
            done
            | {start_of(label): first._replace(ended=True)}
            | {partition_of(label, each): first for each in roots}
        )

    def _latest(self, label: str, tree: ShardTree, now: float) -> dict[PartitionId, Bookmark]:
        found = {}
        is_small = len(tree.open_leaves) <= _EXACT
        leaves = {each.id for each in tree.leaves}
        for shard in tree.ordered:
            if not shard.is_open:
                if shard.id in leaves:
                    found[partition_of(label, shard.id)] = _ended_at(now)
                continue
            arn = self._streams.arn(label) or ""
            iterator = self._client.latest(arn, shard.id)
            beginning = ShardBeginning(
                since=_pinned(now), asked=round(now, 6), iterator=iterator if is_small else ""
            )
            if not is_small:
                self._client.account.shard(arn, shard.id).begin(beginning, iterator)
            found[partition_of(label, shard.id)] = Bookmark(None, beginning.to_mark())
        return found

    def end(self, known: Bookmarks) -> feeds.LogEnd:
        """See `feeds.Feed`: by the service's clock, which is taken to be a second early."""
        self.partitions(known)
        return feeds.LogEnd(time=self._client.now() + 1.0)

    def span(self, after: feeds.At | Place, until: datetime | Place | None) -> feeds.Span:
        """See `feeds.Feed`: records are kept for a day."""
        found = super().span(after, until)
        if isinstance(after, datetime) and after.timestamp() <= self._client.now() - RETENTION:
            raise SettingsError(
                f"{after.isoformat()} is before what {self.settings.table_name} has",
                "dynamodb.changes-gone",
                hint="begin at earliest, or less than a day ago",
            )
        return found

    def follow(
        self,
        partition: PartitionId,
        bookmark: Bookmark = START,
        *,
        despite: Sequence[feeds.Gap] = (),
    ) -> DynamodbFollowing:
        """See `feeds.Feed`. Makes no call, but for a gap: reading finds what else is lost."""
        beginning, passed = beginning_of(bookmark), {each.cause for each in despite}
        shard = ServedShard(
            settings=self.settings,
            streams=self._streams,
            client=self._client,
            partition=partition,
            bookmark=bookmark,
        )
        cause = shard.cause(beginning)
        if cause and cause not in passed:
            raise shard.lost(cause, bookmark.place)
        if passed:
            beginning = ShardBeginning(asked=self._client.now())
        following = DynamodbFollowing(shard, beginning)
        if passed & {"shard_gone", "stream_gone"}:
            following.end()
        elif passed:
            following.look_ahead()
        return following

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Feed`: the newest stream is disabled, or the last listing was refused."""
        state, text = "", ""
        if self._streams.status in DISABLED:
            state = "disabled"
            table = self.settings.table_name
            text = f"the stream of {table} is disabled: what is written is not in it"
        elif account_of(self.settings).is_throttled:
            state = "throttled"
            text = "calls of ListStreams or DescribeStream were refused: others make them, too"
        return {"state": state, "message": text, "at_risk": ""}

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        backend, tenant = self.backend, self.settings.tenant
        return document_lines(lambda form: DynamodbDecoder(backend, tenant, form, on_error), images)

    def record_reader(self, on_error: OnError = "stop") -> feeds.RecordReader:
        return native_reader(on_error)

    def schemas(self) -> Sequence[TableSchema]:
        return [describe_table(self.settings).schema]

    def snapshot(
        self,
        schema: str,
        table: str,
        known: Bookmarks | None,
        wait: feeds.SnapshotWait,
        selection: feeds.RowSelection = feeds.WHOLE_TABLE,
    ) -> DynamodbSnapshot:
        return DynamodbSnapshot(self.settings, known)

    def sample(self, schema: str, table: str, rows: int) -> Iterator[Page]:
        """See `feeds.SamplesRows`: the first answers of a Scan."""
        with (
            DynamodbSnapshot(self.settings, None) as taken,
            taken.source.opened(lambda: False) as pages,
        ):
            for page in pages({"segment": 0, "of": 1}, rows, sys.maxsize):
                yield page
                rows -= page.count
                if rows <= 0:
                    return

    def collection(self, name: str) -> DynamodbTable:
        if name != self.settings.table_name:
            raise SettingsError(
                f"this backend does not follow a table {name!r}",
                "dynamodb.table-not-followed",
                hint=f"its table is {self.settings.table_name}",
            )
        return DynamodbTable(self.settings)

    def check(self) -> Sequence[Finding]:
        return checked(findings(self.settings))

    def answers_after(self, partition: PartitionId, bookmark: Bookmark) -> bool:
        try:
            return self.follow(partition, bookmark).look_ahead()
        except feeds.HistoryLost:  # one answer may be wrong
            return self.follow(partition, bookmark).look_ahead()

    def check_mark(self, partition: PartitionId, bookmark: Bookmark) -> None:
        beginning_of(bookmark)
        if bookmark.place is not None:
            sequence_number(bookmark.place)


def _ended_at(now: float) -> Bookmark:
    """The bookmark of a shard that is closed at "now": a child that is listed later begins then."""
    return Bookmark(None, ShardBeginning(since=_pinned(now), asked=now).to_mark(), ended=True)


def _pinned(now: float) -> float:
    """ "Now" as a time of records, which are cut to the second, by clocks that may differ."""
    return math.floor(now) - _SKEW
