"""The streams of one table, as far as they are there, and what DescribeStream says of each.

ListStreams is evidence of what there is, never of what there is not: a stream that is known and not
listed is described by its ARN, which differs from the others' in its label only.
"""

import time
from collections.abc import Collection, Mapping
from contextlib import suppress

from penstock.feeds.dynamodb.client import StreamsClient, account_of, client_of
from penstock.feeds.dynamodb.items import describe_table
from penstock.feeds.dynamodb.lineage import ShardTree, start_of
from penstock.feeds.dynamodb.preflight import how_to_enable
from penstock.feeds.dynamodb.settings import DynamodbSettings
from penstock.model.errors import InvalidStream, PenstockError, Unavailable
from penstock.model.position import PartitionId

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
        that may be left out of ListStreams. Raises InvalidStream if nothing is known and nothing is
        there."""
        found = []
        for label in sorted({*self._list(), *known}):
            tree = self._tree(label)
            if tree is not None:
                found.append((label, tree))
        if found:
            self._trees = dict(found)
            return found
        text = f"the table {self._settings.table_name} has no stream, or there is no such table"
        if known:
            raise Unavailable(f"{text}, and changes of it were read", hint=self._how_to_go_on)
        raise InvalidStream(text, hint=how_to_enable(self._settings.table_name))

    def children(self, of: Collection[PartitionId]) -> Mapping[str, ShardTree] | None:
        """The trees with the children that these shards have now; None where a whole listing takes
        no more calls, or it is not known."""
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
                raise Unavailable(f"the stream {arn} lists no shards now")
        return ShardTree(described.shards)

    def arn(self, label: str) -> str | None:
        """The ARN of a stream; None if it is not there, by DescribeStream."""
        if label not in self._arns and label not in self._list():
            derived = self._derived(label)
            if derived is not None and self._client.describe(derived) is not None:
                self._arns[label] = derived
        return self._arns.get(label)

    def _list(self) -> Collection[str]:
        """The labels of those that are listed now."""
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
            raise Unavailable(f"no stream of {table} is listed now", hint=self._how_to_go_on)
        return known[0].rpartition(_STREAM)[0] + _STREAM + label
