"""What every feed promises while its source is written to: `CLAIMS`, each called with a `Stage`;
`trials_of` adds all others of a feed."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from typing import Any, Protocol

from penstock.feeds import Feed, SnapshotWait, TakesSnapshots
from penstock.model.errors import PositionLost
from penstock.model.page import Page
from penstock.model.position import Place
from penstock.stream.tokens import token_of
from penstock.testing import child, feeds, losses
from penstock.testing.claims import NotTried, Trial, same
from penstock.testing.feeds import StagedFeed, read, rows
from penstock.testing.losses import LostHistory

_KILLS = 3
_SOME = 20  # documents that are made at a time

Document = Mapping[str, Any]
_numbers = count()


class Stage(Protocol):
    """A source that claims write to. Inherit from it: what is not required has a default here."""

    patience: float = 60.0
    """Seconds that changes may take to come."""
    remembers: bool = False
    starts_bare: bool = False
    """See `StagedFeed`."""
    collection: tuple[str, str] = ("", "")
    """The schema and name of what `insert` writes to, as `TakesSnapshots` wants them."""

    def feed(self) -> AbstractContextManager[Feed]:
        """A feed of small pages, of which its source remembers nothing; until the end."""
        ...

    def insert(self, ids: Sequence[str]) -> None:
        """Makes a document with each id, in this order, as changes of their own."""

    def workload(self) -> Sequence[tuple[str, str]]:
        """Makes some thirty changes of all kinds: the id and the operation of each, in order."""
        ...

    def id_of(self, image: Document) -> str:
        """Of a document, in an image of a change."""
        return str(image["id"])

    def refusal(self) -> PositionLost:
        """See `StagedFeed`; raises NotTried."""
        return feeds.refusal()

    def lost(self) -> AbstractContextManager[LostHistory]:
        """Makes history lost; raises NotTried."""
        raise NotTried("history cannot be made lost here")

    def move(self) -> None:
        """Has the source split or move a partition, or its server; raises NotTried."""
        raise NotTried("nothing can be split or moved here")


def _ids(stage: Stage, feed: Feed, pages: Sequence[Page]) -> list[str]:
    """Of the documents of changes, and of rows."""
    return [
        stage.id_of(json.loads(row["after"] or row["before"] or row["key"]))
        for row in rows(feed, pages)
    ]


def _fresh(number: int = _SOME) -> list[str]:
    return [f"d{next(_numbers):06}" for _ in range(number)]


def _in_order(found: Sequence[tuple[str, str]], written: Sequence[str]) -> None:
    """Each partition's documents come as they were written, all once."""
    number = {each: n for n, each in enumerate(written)}
    for name in {partition for partition, _ in found}:
        ids = [each for partition, each in found if partition == name]
        same(ids, sorted(ids, key=lambda each: number.get(each, -1)), f"the order in {name}")
    same(Counter(each for _, each in found), Counter(written), "documents")


def _partitioned(stage: Stage, feed: Feed, pages: Sequence[Page]) -> list[tuple[str, str]]:
    return [(page.partition, each) for page in pages for each in _ids(stage, feed, [page])]


def it_begins_now_with_what_is_written_after_that(stage: Stage) -> None:
    stage.insert(_fresh())
    with stage.feed() as feed:
        begun, written = feed.begin("now"), _fresh()
        stage.insert(written)
        found = read(feed, begun, len(written), stage.patience)
        _in_order(_partitioned(stage, feed, found), written)


def rows_of_a_snapshot_and_the_changes_after_it_are_the_table(stage: Stage) -> None:
    """While it is written to: each change before the snapshot's point is in its rows, and, where
    that is exact, no other."""
    before, during = _fresh(), list[str]()
    stage.insert(before)
    with stage.feed() as feed:
        if not isinstance(feed, TakesSnapshots):
            raise NotTried("this feed has no snapshots")
        begun = feed.begin("now")
        with _writing(stage, during):
            # What was written meanwhile is before it, at it, or after it.
            wait = SnapshotWait(patience=stage.patience)
            with feed.snapshot(*stage.collection, begun, wait) as taken:
                with feeds.copy_of(taken.source).opened(lambda: False) as pages:  # type: ignore
                    parts = [list(pages(each, 7, 2**20)) for each in taken.plan(50, 2**20)]
                point, is_exact = Place.parse(taken.position), taken.is_exact
        there = {each for part in parts for each in _ids(stage, feed, part)}
        found = read(feed, begun, len(during), stage.patience)
        written = _partitioned(stage, feed, found)
        _in_order(written, during)
        places = feeds.places(feed, found)
    contained = {each for (_, each), at in zip(written, places, strict=True) if at < point}
    same(set(before) - there, set(), "documents of before that the rows lack")
    same(contained - there, set(), "documents before the point that the rows lack")
    if is_exact:
        same(there & set(during), contained, "documents of the rows that were written meanwhile")


@contextmanager
def _writing(stage: Stage, written: list[str]) -> Iterator[None]:
    """Documents are made meanwhile, from before it begins until after it ends."""
    is_over, failed = threading.Event(), list[Exception]()

    def work() -> None:
        try:
            while not is_over.is_set() and len(written) < 500:
                ids = _fresh(2)
                stage.insert(ids)
                written.extend(ids)
                is_over.wait(0.02)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while not written and thread.is_alive():
            time.sleep(0.01)
        yield
    finally:
        is_over.set()
        thread.join(stage.patience)
    if failed:
        raise failed[0]


def changes_go_on_after_a_split_or_a_move(stage: Stage) -> None:
    with (
        stage.feed() as feed,
        child.ChildReader(feed, token_of(feed.backend, feed.begin("now"))) as it,
    ):
        written = _fresh()
        stage.insert(written)
        it.wait(len(written), stage.patience)
        stage.move()
        more = _fresh()
        stage.insert(more)
        written += more
        it.wait(len(written), stage.patience)
        same(Counter(_read_ids(stage, it)), Counter(written), "documents")


def a_reader_that_is_killed_goes_on_without_a_gap_or_a_repetition(stage: Stage) -> None:
    with stage.feed() as feed:
        begun, written = feed.begin("now"), list[str]()
        with child.ChildReader(feed, token_of(feed.backend, begun, feed.history)) as it:
            for _ in range(_KILLS):
                ids = _fresh()
                stage.insert(ids)
                it.wait(len(written) + 1, stage.patience)
                more = _fresh()
                stage.insert(more)
                written += [*ids, *more]
                it.kill()
                it.start()
            it.wait(len(written), stage.patience)
            time.sleep(0.5)  # nothing comes again
            found = it.changes()
        same(len({each["event_id"] for each in found}), len(found), "different event ids")
        documents = [(each["partition"], stage.id_of(each["image"])) for each in found]
        _in_order(documents, written)


def _read_ids(stage: Stage, reader: child.ChildReader) -> list[str]:
    return [stage.id_of(each["image"]) for each in reader.changes()]


CLAIMS: Sequence[Callable[[Stage], None]] = (
    it_begins_now_with_what_is_written_after_that,
    rows_of_a_snapshot_and_the_changes_after_it_are_the_table,
    a_reader_that_is_killed_goes_on_without_a_gap_or_a_repetition,
    changes_go_on_after_a_split_or_a_move,
)


def each_document_has_its_changes_in_their_order(
    stage: Stage, staged: StagedFeed, written: Sequence[tuple[str, str]]
) -> None:
    found = {each: list[str]() for each, _ in written}
    for row in rows(staged.feed, staged.everything):
        image = json.loads(row["after"] or row["before"] or row["key"])
        found.setdefault(stage.id_of(image), []).append(row["operation"])
    expected = {name: [kind for each, kind in written if each == name] for name, _ in written}
    same(found, expected, "operations")


def trials_of(stage: Stage) -> Generator[Trial]:
    """All claims of a feed, one after the other; each is to be called before the next is asked
    for."""
    with stage.feed() as feed:
        begun = feed.begin("now")
        written = stage.workload()
        staged = StagedFeed(
            feed=feed, begun=begun, count=len(written), remembers=stage.remembers,
            starts_bare=stage.starts_bare, patience=stage.patience,
            refusal=stage.refusal,
        )  # fmt: skip
        first = each_document_has_its_changes_in_their_order
        yield Trial(partial(first, stage, staged, written), first)
        for claim in feeds.CLAIMS:
            yield Trial(partial(claim, staged), claim)
    for living in CLAIMS:
        yield Trial(partial(living, stage), living)
    for loss in losses.CLAIMS:
        yield Trial(partial(_with_a_loss, stage, loss), loss)


def _with_a_loss(stage: Stage, claim: Callable[[LostHistory], None]) -> None:
    with stage.lost() as lost:
        claim(lost)
