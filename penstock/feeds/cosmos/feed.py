"""Cosmos DB's change feed as a feed: a partition is a key range, named `MIN-MAX` (see `ranges`)."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from penstock.feeds import WHOLE_TABLE, At, Gap, Listing, RowSelection, SnapshotWait
from penstock.feeds.cosmos.client import ContainerIdentity, CosmosContainer, container_of
from penstock.feeds.cosmos.failures import ContainerMissing, Refused, translating
from penstock.feeds.cosmos.following import CosmosFollowing, ServedRange
from penstock.feeds.cosmos.ranges import FeedMark, KeyRange, lineages, mark_of, moved, uncovered
from penstock.feeds.cosmos.settings import CosmosSettings
from penstock.feeds.cosmos.snapshot import CosmosSnapshot, schema_of
from penstock.feeds.shared import PolledFeed, checked, first_pages
from penstock.model.change import Images, OnError
from penstock.model.errors import (
    InvalidPosition,
    InvalidStream,
    PenstockError,
    SettingsError,
    Unavailable,
)
from penstock.model.finding import Finding, failed, finding
from penstock.model.page import Decoder, Page
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId
from penstock.model.table_schema import TableSchema
from penstock.wire.cosmos.decoder import CosmosDecoder, in_order, lsn_of
from penstock.wire.document_lines import document_lines

_LISTINGS = 5  # tries of pinning "now" while ranges are split
_BACKUP = (
    "give the account continuous backup and enable the feature AllVersionsAndDeletesChangeFeed:"
    " `az cosmosdb update --backup-policy-type Continuous`, then Features in the portal"
)


class CosmosFeed(PolledFeed[CosmosSettings]):
    """The implementation of `feeds.Feed`. It is its settings."""

    splits_move_changes = True
    detail_series = ("newest_lsn", "page_items", "tip_reached")
    history = ""  # the container's resource id, as the last listing gave it

    def __repr__(self) -> str:
        return f"CosmosFeed({self.settings.path} at {self.settings.endpoint}, {self.settings.mode})"

    @property
    def _client(self) -> CosmosContainer:
        return container_of(self.settings)

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> Listing:
        """See `feeds.Feed`: the known ranges and their pieces, not the physical partitions."""
        self.history = self._client.identity(again=True).rid
        physical = self._client.ranges()
        return Listing(lineages=lineages(physical, known), history=self.history)

    def verify(self, history: str) -> None:
        found = self._client.identity().rid
        if history and history != found:
            raise InvalidStream(
                f"the token is of another container than {self.settings.path} ({history}, not"
                f" {found})", "cosmos", hint="take a token of this one, a time, beginning or now",
            )  # fmt: skip

    def begin(self, at: At = None) -> Bookmarks:
        """See `feeds.Feed`. "Now" is the continuation of each range at this moment."""
        continuation = self.settings.continuation if at is None else None
        if continuation is not None:
            return self._of_continuation(continuation)
        at = self.asked(at)
        if isinstance(at, Mapping):
            return at
        if self.settings.every and at != "now":
            raise SettingsError(
                "the mode all_versions_and_deletes has neither its beginning nor a time",
                "cosmos",
                hint="begin at now, or with a token",
            )
        rid = self._client.identity(again=True).rid
        if at == "now" or (isinstance(at, datetime) and at >= datetime.now(UTC)):
            return self._now(rid)
        since = at.astimezone(UTC) if isinstance(at, datetime) else None
        return {
            each.name: Bookmark(None, FeedMark(rid=rid, range=each, since=since).to_json())
            for each in self._client.ranges()
        }

    def _now(self, rid: str) -> Bookmarks:
        for _ in range(_LISTINGS):
            found: dict[PartitionId, Bookmark] = {}
            for each in self._client.ranges():
                answer = self._client.peek(each)
                if answer.ranges != (each,):
                    break  # it was split in between
                if not answer.etag:
                    raise Unavailable(f"the service gave no continuation of {each.name}", "cosmos")
                mark = FeedMark(rid=rid, range=each, etag=answer.etag)
                found[each.name] = Bookmark(None, mark.to_json())
            else:
                return found
        raise Unavailable("the ranges are being split all the time", "cosmos")

    def _of_continuation(self, token: Mapping[str, Any]) -> Bookmarks:
        try:
            self.verify(str(token["containerRid"]))
            found = {}
            is_beginning = token["startFrom"]["Type"] == "Beginning"
            for each in token["continuation"]["continuation"]:
                part = KeyRange(str(each["range"]["min"]), str(each["range"]["max"]))
                if each["token"] is None and not is_beginning:
                    raise InvalidPosition(
                        f"the continuation in `start` was not read from in {part.name}",
                        "cosmos",
                        hint="take one that all ranges have answered, a time, or now",
                    )
                etag = None if each["token"] is None else str(each["token"])
                mark = FeedMark(rid=str(token["containerRid"]), range=part, etag=etag)
                found[part.name] = Bookmark(None, mark.to_json())
        except (KeyError, TypeError) as error:
            raise InvalidPosition(
                "the continuation in `start` is not readable",
                "cosmos",
                hint="take another one, or a time",
            ) from error
        if self.settings.every != (token.get("mode") == "AllVersionsAndDeletes"):
            raise InvalidPosition(
                f"the continuation in `start` is of the mode {token.get('mode')}",
                "cosmos",
                hint="set `mode` to that one",
            )
        listed = self._client.ranges()
        parts = [KeyRange.of(name) for name in found]
        if missing := [gap.name for each in listed for gap in uncovered(each, parts)]:
            raise InvalidPosition(
                f"the continuation in `start` has nothing of {', '.join(missing)}",
                "cosmos",
                hint="take one of the whole container, not of a feed range or a partition key",
            )
        return found

    def follow(
        self, partition: PartitionId, bookmark: Bookmark = START, *, despite: Sequence[Gap] = ()
    ) -> CosmosFollowing:
        key_range = KeyRange.of(partition)
        client, passed = self._client, {each.cause for each in despite}
        served = ServedRange(
            settings=self.settings, client=client, key_range=key_range, passed=frozenset(passed)
        )
        mark = mark_of(bookmark, key_range)
        try:
            identity = client.identity()
            if mark is not None and mark.rid != identity.rid:
                identity = client.identity(again=True)
        except ContainerMissing as error:
            if mark is None or "container_gone" in passed:
                raise Unavailable(error.message, error.code, hint=error.hint) from error
            raise served.lost("container_gone", bookmark.place) from error
        if mark is not None and mark.rid != identity.rid:
            raise served.lost("container_replaced", bookmark.place)
        cuts: Sequence[str] = ()
        if mark is None or passed - {"container_gone"}:
            mark, cuts = self._anew(key_range, identity, mark, is_after_gap=bool(passed))
            if bookmark.place is not None and not passed:
                mark = mark.inside()  # a place alone: all before it is read again, and passed over
        following = CosmosFollowing(served, identity, mark, bookmark.place)
        if cuts:
            following.end(cuts)
        return following

    def moved(self, saved: Bookmark, stored: Bookmark | None) -> Bookmark | None:
        return moved(saved, stored)

    def _anew(
        self,
        key_range: KeyRange,
        identity: ContainerIdentity,
        known: FeedMark | None,
        *,
        is_after_gap: bool,
    ) -> tuple[FeedMark, Sequence[str]]:
        """Where to begin without a continuation: at the beginning, where the mode has one, or now.
        A range that was split before the gap ends here: each child finds what it has lost."""
        mark = FeedMark(rid=identity.rid, range=key_range)
        if not self.settings.every:
            return mark, ()
        if not is_after_gap:
            raise SettingsError(
                f"nothing is known of {key_range.name}, and all versions have no beginning",
                "cosmos",
                hint="begin at now, or with a token",
            )
        answer = self._client.peek(key_range)
        if known is not None and (cuts := key_range.cuts(answer.ranges)):
            return known, cuts
        if answer.ranges != (key_range,) or not answer.etag:
            raise Unavailable(
                f"the service gave no continuation of {key_range.name} alone", "cosmos"
            )
        return mark.after(answer.etag), ()

    def remaining(self, partition: PartitionId, bookmark: Bookmark) -> int | None:
        """See `feeds.EstimatesLag`: transactions, as .NET's estimator counts them; of a range that
        was split nothing is known, and of a part of a merged one at least 1 where the service
        stopped before its newest."""
        key_range = KeyRange.of(partition)
        mark = mark_of(bookmark, key_range)
        if mark is None:
            return None
        answer = self._client.peek(key_range, mark)
        if answer.ranges != (key_range,):
            return None
        if not answer.documents or answer.newest is None:
            return int(answer.is_cut_short(mark.etag))
        paths = self._client.identity().paths
        first = lsn_of(in_order(answer.documents, paths, every=self.settings.every)[0][0])
        return max(0, answer.newest - first + 1) if first else 1

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        tenant, keeps_system = self.settings.tenant, self.settings.system_properties
        return document_lines(
            lambda form: CosmosDecoder(self.backend, tenant, form, on_error, keeps_system), images
        )

    def tables(self) -> Sequence[tuple[str, str]]:
        return [(self.settings.database, self.settings.container)]

    def schemas(self) -> Sequence[TableSchema]:
        return [schema_of(self.settings, self._client.identity(again=True))]

    def snapshot(
        self,
        schema: str,
        table: str,
        known: Bookmarks | None,
        wait: SnapshotWait,
        selection: RowSelection = WHOLE_TABLE,
    ) -> CosmosSnapshot:
        """See `feeds.TakesSnapshots`. It waits for nothing."""
        return CosmosSnapshot(self.settings, known)

    def sample(self, schema: str, table: str, rows: int) -> Iterator[Page]:
        """See `feeds.SamplesRows`: in latest-version mode, which has a beginning."""
        update = {"mode": "latest_version", "start": "", "page_items": rows}
        return first_pages(CosmosFeed(self.settings.model_copy(update=update)), rows)

    def check(self) -> Sequence[Finding]:
        found = checked(self._findings())
        if all(each.level != "error" for each in found):
            found += self._check_start()
        return found

    def _findings(self) -> Iterator[Finding]:
        settings, client = self.settings, self._client
        keys = ", ".join(client.identity(again=True).paths)
        yield finding("ok", "container", f"{settings.path} is there, partitioned by {keys}")
        ranges = client.ranges()
        yield finding("ok", "ranges", f"it has {len(ranges)} physical partition(s)")
        try:
            with translating("reading its change feed", refusals=not settings.every):
                client.page(ranges[0], None, 1)
        except Refused as refused:
            if refused.status != 400:
                with translating("reading its change feed"):
                    raise
            text = f"the mode {settings.mode} is refused: {refused.message}"
            yield finding("error", "change feed", text, _BACKUP, code="cosmos.change-feed")
        else:
            yield finding("ok", "change feed", f"it can be read in the mode {settings.mode}")
        if not settings.every:
            text = "latest_version shows no deletes and no versions between two reads"
            yield finding("ok", "mode", text)

    def _check_start(self) -> list[Finding]:
        """Reads after a time or a token as the start will: only these may be refused."""
        if self.settings.at in ("now", "beginning"):
            return []
        try:
            for name, bookmark in self.begin().items():
                if not bookmark.ended:
                    self.follow(name, bookmark).read(0.0)
        except PenstockError as error:
            return [failed("start", error)]
        return []

    def answers_after(self, partition: PartitionId, bookmark: Bookmark) -> bool:
        self.follow(partition, bookmark).read(0.0)
        return True

    def check_mark(self, partition: PartitionId, bookmark: Bookmark) -> None:
        mark_of(bookmark, KeyRange.of(partition))
        if bookmark.place is not None:
            lsn_of(bookmark.place)
