"""What the feeds here share: heads of feeds that are made of their settings alone, gaps after a
place, what `start` may say. Another feed may use them; the contract is `feeds.Feed`.

A partition that descends from nothing known is after a hole: what came before it is lost, and its
first bookmark says so, wherever the bookmark goes (into a task, into the store), until a gap is on
record.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

from pydantic import BeforeValidator, Field, field_validator

from penstock.feeds import At, Feed, Gap, GapPolicy, HistoryLost, RowSource, Span
from penstock.model.errors import InvalidPosition, Malformed, PenstockError
from penstock.model.finding import Finding, failed, finding
from penstock.model.page import Decoder, Page
from penstock.model.position import Bookmark, PartitionId, Place, bookmarks_from_json
from penstock.model.settings import Duration, Settings, Start


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


# Options of a Spark reader are text: `public.a, public.b` is a list of two.
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]


def _refuse(value: Any) -> Any:
    if value == "resnapshot":
        raise ValueError(
            "`resnapshot` needs snapshots, which this source does not have; write `fail`, or"
            " `continue` and load the data anew"
        )
    return value


# The gap policy of a feed that has no snapshots.
PolicyWithoutSnapshots = Annotated[Literal["fail", "continue"], BeforeValidator(_refuse)]


# The cause of the gap of a lineage hole.
LINEAGE_BROKEN = "lineage_broken"
_HOLE = "hole"
_HINT = "load the data anew; on_gap: continue goes on with what the source still has"


class BackendSettings(Settings):
    """What each feed's settings have."""

    name: str = Field("default", pattern=r"^[^\s:]+$")
    """The backend's name. It is part of every event id and of subjects: do not change it later."""
    on_gap: GapPolicy = "fail"
    """When changes are lost: `fail` stops this backend, `continue` reports the gap and reads on,
    and `resnapshot` also loads the data anew."""


class DocumentSettings(Protocol):
    """Settings of a feed of documents, whose tables may be in a map."""

    @property
    def namespace(self) -> str:
        """What the full names of its tables begin with; "" where it differs."""

    def following(self, tables: Sequence[tuple[str, str]]) -> Any:
        """The same, for a sink of tables, where it follows these (namespace, name). Raises
        ValueError where it does not, or changes are not enough for tables."""


class PolledSettings(BackendSettings):
    """What the settings of a feed have whose partitions any number of readers may poll."""

    start: Start = ""
    """Where a first start begins: a word, a time with a zone, or a token."""
    polled: bool = True
    """`true`: Spark's tasks read the partitions in open micro-batches. `false`: the reader process
    reads them."""
    poll: Duration = Field(1.0, gt=0)
    """Seconds between two reads of a partition that has nothing new."""
    connect_timeout: Duration = Field(10.0, gt=0)
    """Seconds for making a connection."""

    # What `start` may be besides a time and a token, and how that is listed for people.
    words: ClassVar[Mapping[str, At]]
    expected: ClassVar[str]

    @classmethod
    def begins_at(cls, start: str | dict[str, Any]) -> At:
        """`start` as `Feed.begin` takes it: a word, a time with a zone or a token. Raises
        ValueError."""
        if isinstance(start, dict):
            try:
                # The iterator's token has its bookmarks under `partitions`.
                return bookmarks_from_json(start.get("partitions", start))
            except (AttributeError, Malformed) as error:
                raise ValueError(f"not a token: {error}") from None
        if start.lower() in cls.words:
            return cls.words[start.lower()]
        try:
            time = datetime.fromisoformat(start)
        except ValueError:
            raise ValueError(f"write {cls.expected}, a time or a token") from None
        if time.tzinfo is None:
            raise ValueError("a time needs a zone: 2026-11-23T10:00:00Z")
        return time

    def following(self, tables: Sequence[tuple[str, str]]) -> Self:
        """See `DocumentSettings`: there is one table. Read by one process, as one writes."""
        for each in tables:
            if each != self.followed:
                raise ValueError(f"it follows {'.'.join(self.followed)}, and not {'.'.join(each)}")
        return self.model_copy(update={"polled": False})

    @property
    def namespace(self) -> str:
        """See `DocumentSettings`."""
        return self.followed[0]

    @property
    @abstractmethod
    def followed(self) -> tuple[str, str]:
        """Namespace and name of its table."""

    @field_validator("start")
    @classmethod
    def _is_a_start(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        cls.begins_at(value)
        return value

    @property
    def at(self) -> At:
        return self.begins_at(self.start)


_BATCH, _LINES = 1000, 1 << 20  # documents, and bytes of them, that become lines at once


class DocumentRowSource(RowSource):
    """A row source of documents, which gives them as lines, too: a `feeds.ReadsLines`."""

    is_by_key: ClassVar[bool] = True
    count: int | None = None

    @abstractmethod
    def line_decoder(self) -> Decoder:
        """A decoder of its pages, as lines."""

    @contextmanager
    def lines(
        self, columns: Sequence[str], prefix: bytes, is_stopped: Callable[[], bool]
    ) -> Iterator[Callable[[Any], Iterator[tuple[bytes, int]]]]:
        """See `feeds.ReadsLines`: a document has all columns."""
        decoder = self.line_decoder()
        with self.opened(is_stopped) as read:

            def lines(part: Any) -> Iterator[tuple[bytes, int]]:
                for page in read(part, _BATCH, _LINES):
                    for batch in decoder.decode(page):
                        found = batch.column("after").to_pylist()
                        yield b"".join(prefix + f"{each}\n".encode() for each in found), len(found)

            yield lines


S = TypeVar("S", bound=BackendSettings)
P = TypeVar("P", bound=PolledSettings)


class SettingsFeed(Feed, Generic[S]):
    """The head of a feed that is its settings: a pickled copy remembers nothing else."""

    def __init__(self, settings: S) -> None:
        self.settings = settings

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.settings,)

    @property
    def backend(self) -> str:
        return self.settings.name

    @property
    def on_gap(self) -> GapPolicy:
        return self.settings.on_gap

    def span(self, after: At | Place, until: datetime | Place | None) -> Span:
        settings = self.settings.model_copy(update={"on_gap": "fail"})
        return replace(super().span(after, until), feed=type(self)(settings))


class PolledFeed(SettingsFeed[P]):
    """The head of a feed whose partitions any number of readers may poll, and whose `start` may be
    a token. `oldest`: what `start` calls the oldest change, for people."""

    oldest = "beginning"
    checks_bookmarks = True
    shares_tables = True

    @property
    def polled(self) -> bool:
        return self.settings.polled

    def asked(self, at: At) -> At:
        """Where to begin: at `at`, or where the settings say. Raises InvalidPosition and
        InvalidStream for a token that cannot be read from."""
        if at is None:
            at, start = self.settings.at, self.settings.start
            if isinstance(start, dict) and "history" in start:
                self.verify(str(start["history"]))
        try:
            for name, bookmark in at.items() if isinstance(at, Mapping) else ():
                self.check_mark(name, bookmark)
        except Malformed as error:
            raise InvalidPosition(
                f"the token is damaged: {error.message}",
                "feeds.token-damaged",
                hint=f"take another one, a time or {self.oldest}",
            ) from error
        return at

    def check_bookmark(self, partition: PartitionId, bookmark: Bookmark) -> Sequence[Finding]:
        """See `feeds.Feed`: reads after it once."""
        if bookmark.ended:
            return []
        try:
            answered = self.answers_after(partition, bookmark)
        except PenstockError as error:
            return [failed("saved position", error)]
        if not answered:
            late = f"{partition} was not read: calls are too many"
            code = "feeds.saved-position"
            return [finding("warning", "saved position", late, "check again soon", code=code)]
        return [finding("ok", "saved position", f"{partition} has the changes after it")]

    # What each has of its own.

    @abstractmethod
    def check_mark(self, partition: PartitionId, bookmark: Bookmark) -> None:
        """Raises Malformed for a bookmark that cannot be read from. No I/O."""

    @abstractmethod
    def answers_after(self, partition: PartitionId, bookmark: Bookmark) -> bool:
        """Reads after a bookmark once; false where calls are too many. Raises what reading does."""


def checked(findings: Iterable[Finding]) -> list[Finding]:
    """Every finding; only the error where the source cannot be asked."""
    try:
        return list(findings)
    except PenstockError as error:
        return [failed("server", error)]


def lost(
    cause: str, after: Place | None, detail: str, *, policy: GapPolicy, hint: str
) -> HistoryLost:
    """The error for the gap after a place; None is a partition's beginning."""
    place = "" if after is None else str(after)
    return HistoryLost(Gap(cause=cause, after=place, detail=detail, policy=policy), hint=hint)


def comes_before(place: Place | None, other: Place | None) -> bool:
    """Whether a place comes before another; None is a partition's beginning."""
    return other is not None and (place is None or place < other)


def behind_hole(cause: str, detail: str) -> Bookmark:
    """The first bookmark of a partition after a hole."""
    return Bookmark(mark={_HOLE: {"cause": cause, "detail": detail}})


def is_behind_hole(bookmark: Bookmark) -> bool:
    return bookmark.place is None and _HOLE in (bookmark.mark or {})


def hole_before(bookmark: Bookmark, policy: GapPolicy) -> HistoryLost | None:
    """The gap before a partition that begins with this bookmark, if there is one."""
    if not is_behind_hole(bookmark):
        return None
    hole = (bookmark.mark or {})[_HOLE]
    return lost(hole["cause"], None, hole["detail"], policy=policy, hint=_HINT)


def first_pages(feed: Feed, rows: int) -> Iterator[Page]:
    """See `feeds.SamplesRows`: of the first changes, where reading them leaves nothing at the
    source."""
    for partition, bookmark in feed.begin("beginning").items():
        with closing(feed.follow(partition, bookmark)) as following:
            for page in following.read(1.0):
                yield page
                rows -= page.count
        if rows <= 0:
            return
