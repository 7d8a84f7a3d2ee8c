"""The streams of one table, as far as they are there; a shard of one as a bookmark names it, and
what it can have lost after that, as gaps.

ListStreams is evidence of what there is, never of what there is not: a stream that is known and not
listed is described by its ARN, which differs from the others' in its label only.
"""

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from penstock.feeds import HistoryLost
from penstock.feeds.dynamodb.beginning import RETENTION, ShardBeginning, beginning_of, parents_of
from penstock.feeds.dynamodb.client import StreamsClient, account_of, client_of
from penstock.feeds.dynamodb.lineage import REPLACES, ShardTree, StreamShard, label_of, start_of
from penstock.feeds.dynamodb.preflight import how_to_enable
from penstock.feeds.dynamodb.settings import DynamodbSettings
from penstock.feeds.dynamodb.table import describe_table
from penstock.feeds.shared import lost
from penstock.model.errors import InvalidStream, PenstockError, Unavailable
from penstock.model.position import Bookmark, PartitionId, Place

DISABLED = ("DISABLED", "DISABLING")
_PAGE = 100  # shards of one answer of DescribeStream
# Seconds for which a stream must list no shards until that is believed of a disabled one.
_EMPTY = 2.0
_STREAM = "/stream/"


class TableStreams:
    """`status` is the newest stream's, by the last look-up; `history` its ARN; both "" before."""

    def __init__(self, settings: DynamodbSettings) -> None:
        self._settings = settings
        self._empty: dict[str, float] = {}  # since when a stream lists no shards
        self._trees: dict[str, ShardTree] = {}  # of the last listing, and children found since
        self.status = self.history = ""

    @property
    def _client(self) -> StreamsClient:
        return client_of(self._settings)

    @property
    def _arns(self) -> dict[str, str]:
        """The ARNs by label, also those that other feeds of this process have found: a ticket's
        feed makes no look-up. One that is not there any more is taken out."""
        return account_of(self._settings).arns[self._settings.table_name]

    def trees(self, known: Collection[str] = ()) -> list[tuple[str, ShardTree]]:
        """The tree of each stream that is there, the newest last, at least one; `known`: labels
        that ListStreams may leave out. Raises InvalidStream where none is there, or known."""
        listed = [(label, self._tree(label)) for label in sorted({*self._list(), *known})]
        if found := [(label, tree) for label, tree in listed if tree is not None]:
            self._trees = dict(found)
            return found
        text = f"the table {self._settings.table_name} has no stream, or there is no such table"
        if known:
            raise Unavailable(
                f"{text}, and changes of it were read", "dynamodb", hint=self._how_to_go_on
            )
        raise InvalidStream(text, "dynamodb", hint=how_to_enable(self._settings.table_name))

    def children(self, of: Collection[PartitionId]) -> Mapping[str, ShardTree] | None:
        """The trees with the children that these shards have now; None: make a whole listing."""
        size = sum(len(tree.shards) for tree in self._trees.values())
        if not self._client.has_filters or len(of) > size / _PAGE:
            return None
        for label, _, shard in (name.rpartition("/") for name in of):
            if start_of(label) in of:
                return None
            arn, tree = self._arns.get(label), self._trees.get(label)
            described = self._client.describe(arn, shard) if arn and tree else None
            if tree is None or described is None:
                return None
            # A service that knows no filter gives all shards.
            self._trees[label] = ShardTree([*tree.shards.values(), *described.shards])
        return self._trees

    @property
    def _how_to_go_on(self) -> str:
        enable = how_to_enable(self._settings.table_name)
        return f"a deleted table's stream is read for a day by its ARN, as `stream`; else {enable}"

    def _tree(self, label: str) -> ShardTree | None:
        arn = self._arns.get(label) or self._derived(label)
        described = None if arn is None else self._client.describe(arn)
        if arn is None or described is None:
            self._arns.pop(label, None)
            return None
        self._arns[label] = arn
        self.status, self.history = described.status, arn
        if described.shards:
            self._empty.pop(label, None)
        else:
            now = time.monotonic()
            since = self._empty.setdefault(label, now)
            if described.status not in DISABLED or now - since < _EMPTY:
                raise Unavailable(f"the stream {arn} lists no shards now", "dynamodb")
        return ShardTree(described.shards)

    def arn(self, label: str) -> str | None:
        """The ARN of a stream; None if it is not there, by DescribeStream."""
        if label not in self._arns and label not in self._list():
            derived = self._derived(label)
            if derived is not None and self._client.describe(derived) is not None:
                self._arns[label] = derived
        return self._arns.get(label)

    def _list(self) -> Collection[str]:
        one = self._settings.stream
        arns = [one] if one else self._client.streams(self._settings.table_name)
        listed = {arn.rpartition(_STREAM)[2]: arn for arn in arns}
        self._arns.update(listed)
        return listed

    def know(self, arn: str) -> None:
        """A stream of the table, from a token."""
        self._arns.setdefault(arn.rpartition(_STREAM)[2], arn)

    def _derived(self, label: str) -> str | None:
        """The ARN of another stream of the table, from one that was listed, or that the table
        names. Raises Unavailable if there is none."""
        if self._settings.stream:
            return None
        known = list(self._arns.values())  # other threads change it
        if not known:
            with suppress(PenstockError):  # the table may be deleted, or not ours to describe
                known = [describe_table(self._settings).stream]
        if not any(known):
            table = self._settings.table_name
            raise Unavailable(
                f"no stream of {table} is listed now",
                "dynamodb.stream-missing",
                hint=self._how_to_go_on,
            )
        return known[0].rpartition(_STREAM)[0] + _STREAM + label


# For people; documented in docs/reference/operations.md.
CAUSES: Mapping[str, str] = {
    "stream_gone": "the stream of {partition} is not there any more",
    "stream_replaced": "the stream of {table} was disabled and enabled again: what was written in"
    " between is lost",
    "trimmed": "records of {partition} after {after} are older than the stream keeps them",
    "shard_gone": "the shard {partition} is not there any more",
}
_HINT = "on_gap: continue goes on with what there is; load the table anew to repair the other side"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedShard:
    """One shard, to be read after a bookmark."""

    settings: DynamodbSettings
    streams: TableStreams
    client: StreamsClient
    partition: PartitionId
    bookmark: Bookmark

    @property
    def id(self) -> str:
        """As the service names it."""
        return self.partition.rpartition("/")[2]

    @property
    def label(self) -> str:
        return label_of(self.partition)

    def lost(self, cause: str, after: Place | None) -> HistoryLost:
        """The error for a gap after a place; None is the shard's beginning."""
        settings = self.settings
        detail = CAUSES[cause].format(
            partition=self.partition, table=settings.table_name, after=after or "its beginning"
        )
        return lost(cause, after, detail, policy=settings.on_gap, hint=_HINT)

    def cause(self, beginning: ShardBeginning) -> str:
        """The cause of what is lost for sure, before anything is read; "" for nothing."""
        if self.streams.arn(self.label) is None:
            return "stream_gone"
        if self.bookmark.place is None and self._is_after_another_stream:
            return "stream_replaced"
        return "trimmed" if beginning.is_overdue(self.client.now()) else ""

    @property
    def _is_after_another_stream(self) -> bool:
        mark = self.bookmark.mark or {}
        parents = map(PartitionId, mark.get("parents", {}))
        return REPLACES in mark or any(label_of(parent) != self.label for parent in parents)

    def found(self, cause: str, after: Place | None) -> HistoryLost | None:
        """What reading found after a place; None if there was nothing to read. Raises Unavailable
        for a shard that is open: it cannot be gone."""
        arn = self.streams.arn(self.label)
        described = None if arn is None else self.client.describe(arn)
        if described is None:
            return self.lost("stream_gone", after)
        listed = ShardTree(described.shards).shards.get(self.id)
        if listed is not None and listed.is_open and cause == "shard_gone":
            raise Unavailable(
                f"{self.partition} is listed as open, and reading does not find it", "dynamodb"
            )
        bookmark = self.bookmark._replace(place=after)
        if listed is not None and _has_nothing_after(bookmark, listed, self.client.now()):
            known = self.client.account.shard(arn or "", self.id)
            if after is not None or known.refusals > 1:  # one answer may be wrong
                return None
        return self.lost(cause, after)


def _has_nothing_after(bookmark: Bookmark, shard: StreamShard, now: float) -> bool:
    """Whether a listed shard that cannot be read any more had nothing after the bookmark: all was
    read; or it was closed a day ago, and to be read from the horizon or from a later time."""
    if shard.last is None:
        return False
    if bookmark.place is not None:
        return int(bookmark.place.cursor) >= shard.last
    beginning = beginning_of(bookmark)
    if beginning.since is not None:
        return beginning.since >= now - RETENTION
    return _is_the_horizon(bookmark) and not beginning.is_overdue(now)


def _is_the_horizon(bookmark: Bookmark) -> bool:
    """Whether nothing was read before it: neither of the shard nor of its ancestors."""
    parents = parents_of(bookmark)
    if not parents:
        return bookmark.place is None and (bookmark.mark or {}).get("from") == "trim_horizon"
    return all(map(_is_the_horizon, parents))
