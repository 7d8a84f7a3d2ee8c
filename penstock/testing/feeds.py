"""What every feed promises of changes that were made for it: `CLAIMS`, each called with a
`StagedFeed`. Resume after *every* place gives exactly the rest."""

import json
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, get_args

from penstock.feeds import At, Feed, Following, Gap, GapPolicy, HistoryLost, TakesSnapshots
from penstock.model.errors import PositionLost, SettingsError, Unavailable
from penstock.model.page import Page
from penstock.model.position import (
    START,
    Bookmark,
    Bookmarks,
    PartitionId,
    Place,
    bookmarks_from_json,
    bookmarks_to_json,
)
from penstock.ops.reports import PartitionReport
from penstock.reading.gaps import GapLog
from penstock.reading.passed_gaps import CONFIRMED
from penstock.reading.reader import PartitionReader, Step
from penstock.reading.silences import CLOCKED
from penstock.testing.claims import Clock, hold, same
from penstock.wire.hash_partitions import hashing

Change = tuple[str, ...]
_POLICIES: tuple[GapPolicy, ...] = get_args(GapPolicy)


def refusal() -> PositionLost:
    """As most sources refuse a position that they may have lost."""
    return PositionLost("refused", "testing.refused")


@dataclass(eq=False, kw_only=True)
class StagedFeed:
    """A feed of small pages and `count` changes, some thirty, that were made at its source after it
    began at `begun`; none is acknowledged. `remembers`: the source knows what was. `starts_bare`: a
    partition that is followed without a bookmark begins with the first of them. `patience`: seconds
    that changes may take to come. `refusal`: as the source refuses a position that it may have
    lost."""

    feed: Feed
    begun: Bookmarks
    count: int
    remembers: bool = False
    starts_bare: bool = True
    patience: float = 60.0
    refusal: Callable[[], PositionLost] = refusal

    @cached_property
    def everything(self) -> Sequence[Page]:
        """All pages, each partition's in their order."""
        return read(self.feed, self.roots, self.count, self.patience)

    @property
    def roots(self) -> Bookmarks:
        """Where the partitions that are to be read began."""
        return {name: each for name, each in self.begun.items() if not each.ended}

    @property
    def bare(self) -> Bookmarks:
        """Without bookmarks, where the source has its own beginning of all changes."""
        return dict.fromkeys(self.roots, START) if self.starts_bare else self.roots

    @property
    def partitions(self) -> Iterator[tuple[PartitionId, Sequence[Page]]]:
        """Those with changes, and their pages."""
        for name in self.roots:
            if pages := [page for page in self.everything if page.partition == name]:
                yield name, pages


@contextmanager
def following(
    feed: Feed, partition: PartitionId, after: Bookmark, patience: float
) -> Iterator[Following]:
    """A partition, once the reader before is gone."""
    until = time.monotonic() + patience
    while True:
        try:
            found = feed.follow(partition, after)
        except Unavailable as error:
            hold(time.monotonic() < until, f"{partition} cannot be followed: {error}")
            time.sleep(0.01)
        else:
            break
    try:
        yield found
    finally:
        found.close()


def read(feed: Feed, after: Bookmarks, count: int, patience: float) -> list[Page]:
    """Pages of these partitions, but for ended ones, until there are so many changes."""
    with ExitStack() as stack:
        found = [(name, each) for name, each in after.items() if not each.ended]
        opened = (following(feed, name, each, patience) for name, each in found)
        return take([stack.enter_context(each) for each in opened], count, patience)


def take(followings: Sequence[Following], count: int, patience: float) -> list[Page]:
    """The same of followings; each partition's pages together."""
    pages, until, found = list[Page](), time.monotonic() + patience, 0
    while found < count:
        hold(time.monotonic() < until, f"{found} of {count} changes came in {patience:.0f} s")
        for each in followings:
            pages += each.read(0.2 / len(followings))
        found = sum(page.count for page in pages)
    return sorted(pages, key=lambda page: page.partition)


def rows(feed: Feed, pages: Sequence[Page]) -> Iterator[dict[str, Any]]:
    """Every change, as Python has it."""
    decoder = feed.decoder("json")
    for page in pages:
        for batch in decoder.decode(page):
            yield from batch.to_pylist()


def changes(feed: Feed, pages: Sequence[Page]) -> list[Change]:
    """Every change as text, without the time it was captured at."""
    return [
        tuple(str(value) for name, value in row.items() if name != "captured_at")
        for row in rows(feed, pages)
    ]


def bookmarks(feed: Feed, pages: Sequence[Page]) -> list[Bookmark]:
    """What each change says of itself: its place, and its mark if that is needed."""
    return [
        Bookmark(Place(row["cursor"], row["ordinal"]), json.loads(row["mark"] or "{}"))
        for row in rows(feed, pages)
    ]


def places(feed: Feed, pages: Sequence[Page]) -> list[Place]:
    """Every change's place."""
    return [each.place for each in bookmarks(feed, pages) if each.place is not None]


def copy_of(feed: Feed) -> Feed:
    """As another process has it."""
    copy: Feed = pickle.loads(pickle.dumps(feed))  # noqa: S301
    return copy


def confirmed(reader: PartitionReader, clock: Clock, timeout: float = 0.0) -> Step:
    """The next step, but for those that wait for a second answer."""
    while (step := reader.step(timeout)) == Step((), CONFIRMED):
        clock.now += CONFIRMED
    return step


def _again(staged: StagedFeed, feed: Feed, after: Bookmarks) -> list[Change]:
    return changes(staged.feed, read(feed, after, staged.count, staged.patience))


def every_change_is_in_a_page_and_decodes(staged: StagedFeed) -> None:
    found = changes(staged.feed, staged.everything)
    same(len(found), sum(page.count for page in staged.everything), "changes of all pages")
    same(len(found), staged.count, "changes")


def places_strictly_increase(staged: StagedFeed) -> None:
    for name, pages in staged.partitions:
        found = places(staged.feed, pages)
        same(found, sorted(set(found)), f"places of {name}")


def event_ids_are_unique(staged: StagedFeed) -> None:
    ids = [row["event_id"] for row in rows(staged.feed, staged.everything)]
    same(len(set(ids)), len(ids), "different event ids")


def a_page_says_its_first_and_last_place_and_its_count(staged: StagedFeed) -> None:
    for name, pages in staged.partitions:
        for page in pages:
            found = places(staged.feed, [page])
            same((page.first, page.last, page.count), (found[0], found[-1], len(found)), "a page")
            same(page.partition, name, "its partition")


def resuming_after_every_place_gives_exactly_the_rest(staged: StagedFeed) -> None:
    for name, pages in staged.partitions:
        expected, marks = changes(staged.feed, pages), bookmarks(staged.feed, pages)
        for number, bookmark in enumerate(marks[:-1], start=1):
            rest = read(staged.feed, {name: bookmark}, len(marks) - number, staged.patience)
            same(changes(staged.feed, rest), expected[number:], f"after {bookmark.place}")


def following_again_replays_what_was_not_acknowledged(staged: StagedFeed) -> None:
    expected = changes(staged.feed, staged.everything)
    same(_again(staged, staged.feed, staged.bare), expected, "without a place")


def the_same_page_decodes_the_same_twice_and_by_a_pickled_decoder(staged: StagedFeed) -> None:
    copy = pickle.loads(pickle.dumps(staged.feed.decoder("msgpack")))  # noqa: S301
    for page in staged.everything:
        first, second = staged.feed.decoder("msgpack").decode(page), copy.decode(page)
        found = [[batch.to_pylist() for batch in each] for each in (first, second)]
        same(found[1], found[0], "the second time")


def a_page_pickles(staged: StagedFeed) -> None:
    copy = pickle.loads(pickle.dumps(staged.everything))  # noqa: S301
    same(copy, staged.everything, "a pickled copy")


def a_feed_pickles_and_the_copy_reads_the_same(staged: StagedFeed) -> None:
    copy = copy_of(staged.feed)
    same(copy.backend, staged.feed.backend, "its backend")
    expected = changes(staged.feed, staged.everything)
    same(_again(staged, copy, staged.bare), expected, "changes of a pickled copy")


def after_the_last_place_a_read_finds_nothing_in_time(staged: StagedFeed) -> None:
    for name, pages in staged.partitions:
        last = bookmarks(staged.feed, pages)[-1]
        with following(staged.feed, name, last, staged.patience) as found:
            same(list(found.read(0.1)), [], "after the last place")
            began = time.monotonic()
            same(list(found.read(0.2)), [], "after the last place")
            hold(time.monotonic() - began < 30, "a read of 0.2 s takes more than 30 s")


def the_end_of_its_log_is_after_what_was_written_and_is_reached(staged: StagedFeed) -> None:
    feed, end, pinned_at = staged.feed, staged.feed.end(staged.begun), time.monotonic()
    for name, pages in staged.partitions:
        until, bookmark = end.places.get(name), bookmarks(feed, pages)[-1]
        if until is not None:
            hold(until >= pages[-1].last, f"{name} ends at {until}, before a change")
        for row in rows(feed, pages) if until is None else ():
            late = row["committed_at"] and row["committed_at"].timestamp() > end.time
            hold(not late, f"{name} ends at {end.time}, before a change")
        reader = PartitionReader(feed, name, bookmark, GapLog(None))
        is_passed, patience = until is None, time.monotonic() + staged.patience
        while reader.emptied_at < pinned_at or not is_passed:
            hold(time.monotonic() < patience, f"the end of {name} is not reached")
            same(list(reader.step(0.1).pages), [], "pages after the last")
            passed = feed.passed(reader.bookmark(bookmark.place) or bookmark)
            is_passed = until is None or (passed is not None and passed >= until)
        reader.disconnect()


def keep_alive_takes_nothing(staged: StagedFeed) -> None:
    for name, pages in staged.partitions:
        with following(staged.feed, name, staged.bare[name], staged.patience) as found:
            for _ in range(5):
                found.keep_alive()
            expected = changes(staged.feed, pages)
            again = take([found], len(expected), staged.patience)
            same(changes(staged.feed, again), expected, "after five of them")


def the_status_is_plain_and_says_whether_it_is_connected(staged: StagedFeed) -> None:
    name, _ = next(staged.partitions)
    with following(staged.feed, name, staged.bare[name], staged.patience) as found:
        found.read(0.2)
        status = found.status()
        same(status["connected"], True, "connected")
        PartitionReport(**{key: value for key, value in status.items() if key not in CLOCKED})
        # Its own terms are apart from those that every source has.
        shown = {**status, **status.get("details", {}), "details": None}
        same(
            {k: v for k, v in shown.items() if not isinstance(v, (str, int, float, type(None)))},
            {}, "what is not plain",
        )  # fmt: skip
    same(found.status()["connected"], False, "connected after its end")


def the_preflight_check_finds_no_error(staged: StagedFeed) -> None:
    findings = staged.feed.check()
    hold(findings, "it finds nothing at all")
    same([each for each in findings if each.level == "error"], [], "errors")


def it_begins_at_a_bookmark_for_each_partition_that_is_plain_json(staged: StagedFeed) -> None:
    parents = {each.partition: each.parents for each in staged.feed.partitions(staged.begun)}
    done, waiting = {name for name, each in staged.begun.items() if each.ended}, [*staged.begun]
    while waiting:  # ancestors of what it begins with are done
        above = set(parents.get(waiting.pop(), ())) - done
        done |= above
        waiting += above
    live = parents.keys() - done
    roots = {name for name in live if live.isdisjoint(parents[name])}
    same(set(staged.roots), roots, "partitions")
    text = json.dumps(bookmarks_to_json(staged.begun))
    same(bookmarks_from_json(json.loads(text)), staged.begun, "from JSON")


def what_is_written_after_begin_is_delivered(staged: StagedFeed) -> None:
    """However late it is followed."""
    expected = changes(staged.feed, staged.everything)
    same(_again(staged, staged.feed, staged.roots), expected, "changes after `begin`")


def _rest_after_bookmarks_of_its_own(staged: StagedFeed, *, closed: bool) -> None:
    """As a token in JSON, from another process: the feed is a pickled copy."""
    for name, pages in staged.partitions:
        expected, marks = changes(staged.feed, pages), places(staged.feed, pages)
        for number in sorted({1, len(marks) // 2, len(marks) - 1} - {0, len(marks)}):
            begun = staged.roots[name]
            with following(staged.feed, name, begun, staged.patience) as found:
                taken = take([found], len(marks), staged.patience)
                bookmark = None if closed else found.bookmark(marks[number - 1])
            if closed:
                hold(found.bookmark(taken[-1].last), "a closed following has no last bookmark")
                bookmark = found.bookmark(marks[number - 1])
            hold(bookmark and bookmark.place == marks[number - 1], f"its bookmark is {bookmark}")
            token = Bookmark.from_json(json.loads(json.dumps((bookmark or START).to_json())))
            left = len(marks) - number
            rest = read(copy_of(staged.feed), {name: token}, left, staged.patience)
            same(changes(staged.feed, rest), expected[number:], f"after {token.place}")


def after_a_bookmark_of_its_own_it_gives_exactly_the_rest(staged: StagedFeed) -> None:
    _rest_after_bookmarks_of_its_own(staged, closed=False)


def a_closed_following_has_the_bookmarks_of_all_that_it_read(staged: StagedFeed) -> None:
    _rest_after_bookmarks_of_its_own(staged, closed=True)


def a_token_is_where_it_begins(staged: StagedFeed) -> None:
    token = {name: Bookmark(pages[0].last, {}) for name, pages in staged.partitions}
    same(staged.feed.begin(token), token, "where it begins")


def it_begins_where_it_is_asked_to_or_refuses(staged: StagedFeed) -> None:
    given: tuple[At, ...] = ("now", "beginning", datetime(2026, 1, 1, tzinfo=UTC))
    for at in given:
        try:
            begun = copy_of(staged.feed).begin(at)
        except SettingsError as error:
            hold(error.hint, "a refusal without a hint")
            hold(at != "now", "every feed can begin now")
        else:
            names = {name for name, each in begun.items() if not each.ended}
            same(names, set(staged.roots), f"partitions that begin at {at}")


def a_listing_names_every_partition_once_and_says_what_it_is(staged: StagedFeed) -> None:
    listing = staged.feed.partitions(staged.begun)
    names = [each.partition for each in listing]
    hold(names, "no partition")
    same(len(set(names)), len(listing), "different names")
    same(listing.complete, True, "complete")
    hold(isinstance(listing.history, str), "a history that is no text")
    hold(list(staged.feed.partitions()), "nothing need be known")


def the_status_of_a_feed_is_plain_and_does_no_io(staged: StagedFeed) -> None:
    status = copy_of(staged.feed).status()
    same(json.loads(json.dumps(status)), status, "from JSON")
    same(status.get("state", ""), "", "state")


def hash_partitions_change_no_other_column_of_a_page(staged: StagedFeed) -> None:
    decoder, plain = hashing(staged.feed.decoder("json"), 4), staged.feed.decoder("json")
    for page in staged.everything:
        (expected,), (found,) = plain.decode(page), decoder.decode(page)
        hold(found.drop_columns(["route"]) == expected.drop_columns(["route"]), "columns differ")


def a_feed_says_its_policy_for_gaps(staged: StagedFeed) -> None:
    same(staged.feed.on_gap, "fail", "the default")


def a_feed_without_snapshots_refuses_to_resnapshot(staged: StagedFeed) -> None:
    settings = getattr(staged.feed, "settings")  # noqa: B009
    given = settings.model_dump(exclude_unset=True) | {"on_gap": "resnapshot"}
    refusal = ""
    try:
        made = type(settings).model_validate(given)
    except ValueError as error:
        refusal = str(error)
    if isinstance(staged.feed, TakesSnapshots):
        hold(not refusal, refusal)
        same(made.on_gap, "resnapshot", "on_gap")
    else:
        hold(refusal, "it takes `resnapshot`")
        is_known = "on_gap" in type(settings).model_fields
        hold(not is_known or "snapshots" in refusal, f"it does not say why: {refusal}")


def beginning_twice_is_beginning_once(staged: StagedFeed) -> None:
    staged.feed.begin()
    staged.feed.begin()
    expected = changes(staged.feed, staged.everything)
    same(_again(staged, staged.feed, staged.bare), expected, "changes")


class _WrongFeed:
    """A feed whose source is wrong about what it lost."""

    def __init__(self, feed: Feed, policy: GapPolicy) -> None:
        self._feed, self.on_gap = feed, policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)


class _WrongOnce(_WrongFeed):
    """It says once that what comes after a bookmark is lost, when it is followed or by the first
    read."""

    def __init__(self, feed: Feed, policy: GapPolicy, found: str) -> None:
        super().__init__(feed, policy)
        self._found, self.is_wrong = found, True

    def follow(self, partition: PartitionId, bookmark: Bookmark, **more: Any) -> Following:
        gap = Gap(cause="wrong", after=str(bookmark.place or ""), policy=self.on_gap)
        wrong, self.is_wrong = self.is_wrong, False
        if wrong and self._found == "follow":
            raise HistoryLost(gap)
        following = self._feed.follow(partition, bookmark, **more)
        if wrong:

            def read(timeout: float) -> Sequence[Page]:
                raise HistoryLost(gap)

            following.read = read  # type: ignore[method-assign]
        return following


class _RefusingFor(_WrongFeed):
    """It refuses a position until a moment of the clock, each time after a reply without changes,
    and takes 31 seconds for each. Following finds nothing lost."""

    def __init__(self, staged: StagedFeed, policy: GapPolicy, clock: Clock, seconds: float) -> None:
        super().__init__(staged.feed, policy)
        self._refusal = staged.refusal
        self._clock, self._until = clock, clock.now + seconds

    def judged(self, error: PositionLost, bookmark: Bookmark) -> HistoryLost | None:
        """The feed's own, which asks the source."""
        with suppress(Unavailable):
            return self._feed.judged(error, bookmark)
        return None

    def follow(self, partition: PartitionId, bookmark: Bookmark, **more: Any) -> Following:
        following = self._feed.follow(partition, bookmark, **more)
        replies, read = iter([False, True]), following.read

        def slowly(timeout: float) -> Sequence[Page]:
            self._clock.now += 31.0
            if self._clock.now >= self._until:
                return read(timeout)
            if next(replies):
                raise self._refusal()
            return ()

        following.read = slowly  # type: ignore[method-assign]
        return following


def _nothing_is_lost(
    staged: StagedFeed, make: Callable[[Clock], Any], after: Bookmark, done: int
) -> tuple[Any, int]:
    """Through a feed that is wrong all comes after `done` changes, and no gap is recorded; the feed
    and how often it refused."""
    name, pages = next(staged.partitions)
    expected, gaps, clock = changes(staged.feed, pages), GapLog(), Clock()
    feed, found, refused = make(clock), list[Page](), 0
    reader = PartitionReader(feed, name, after, gaps, is_stored=False, clock=clock)
    until = time.monotonic() + staged.patience
    while sum(page.count for page in found) < len(expected) - done:
        hold(time.monotonic() < until, f"{found} after {staged.patience} s")
        step = confirmed(reader, clock, 0.2)
        hold(step.error is None or isinstance(step.error, Unavailable), f"raised {step.error}")
        refused += step.error is not None and step.error.message == "refused"
        found += step.pages
    reader.disconnect()
    same(changes(staged.feed, found), expected[done:], "changes")
    same((gaps.rows(), reader.drained), ({}, False), "gaps, and an end")
    return feed, refused


def one_answer_that_history_is_lost_loses_and_ends_nothing(staged: StagedFeed) -> None:
    name, pages = next(staged.partitions)
    marks = bookmarks(staged.feed, pages)
    for policy in _POLICIES:
        for found in ("follow", "read"):
            for done in (0, len(marks) // 2):
                after = marks[done - 1] if done else staged.bare[name]

                def wrong(_: Clock, policy: GapPolicy = policy, found: str = found) -> _WrongOnce:
                    return _WrongOnce(staged.feed, policy, found)

                feed, _ = _nothing_is_lost(staged, wrong, after, done)
                hold(not feed.is_wrong, "it was not asked")


def a_refusal_for_a_while_is_no_gap_where_nothing_is_lost(staged: StagedFeed) -> None:
    _, pages = next(staged.partitions)
    marks = bookmarks(staged.feed, pages)
    done = max(1, len(marks) // 2)
    staged.refusal()  # where it is not to be had, nothing is tried
    for policy in _POLICIES:

        def refusing(clock: Clock, policy: GapPolicy = policy) -> _RefusingFor:
            return _RefusingFor(staged, policy, clock, 400.0)

        _, refused = _nothing_is_lost(staged, refusing, marks[done - 1], done)
        hold(refused > 3, f"it refused {refused} times only")


def after_an_acknowledgement_in_the_middle_the_rest_is_still_there(staged: StagedFeed) -> None:
    """The last one, because a source may forget what was acknowledged."""
    for name, pages in staged.partitions:
        expected, marks = changes(staged.feed, pages), bookmarks(staged.feed, pages)
        half = len(marks) // 2
        with following(staged.feed, name, staged.bare[name], staged.patience) as found:
            take([found], len(marks), staged.patience)
            found.acknowledge(Bookmark(marks[half].place))
            found.acknowledge(Bookmark(marks[0].place))  # never back
            found.read(0.0)
        left = len(marks) - half - 1
        rest = read(staged.feed, {name: marks[half]}, left, staged.patience)
        same(changes(staged.feed, rest), expected[half + 1 :], "after what was acknowledged")
        bare = {name: staged.bare[name]}
        again = changes(staged.feed, read(staged.feed, bare, left, staged.patience))
        if not again:
            continue
        # From the acknowledged place, or from the start of its transaction; never from after it.
        start = expected.index(again[0])
        hold(int(staged.remembers) <= start <= half + 1, f"it began with change {start}")
        same(again, expected[start : start + len(again)], "what comes again")


CLAIMS: Sequence[Callable[[StagedFeed], None]] = (
    every_change_is_in_a_page_and_decodes,
    places_strictly_increase,
    event_ids_are_unique,
    a_page_says_its_first_and_last_place_and_its_count,
    resuming_after_every_place_gives_exactly_the_rest,
    following_again_replays_what_was_not_acknowledged,
    the_same_page_decodes_the_same_twice_and_by_a_pickled_decoder,
    a_page_pickles,
    a_feed_pickles_and_the_copy_reads_the_same,
    after_the_last_place_a_read_finds_nothing_in_time,
    the_end_of_its_log_is_after_what_was_written_and_is_reached,
    keep_alive_takes_nothing,
    the_status_is_plain_and_says_whether_it_is_connected,
    the_preflight_check_finds_no_error,
    it_begins_at_a_bookmark_for_each_partition_that_is_plain_json,
    what_is_written_after_begin_is_delivered,
    after_a_bookmark_of_its_own_it_gives_exactly_the_rest,
    a_closed_following_has_the_bookmarks_of_all_that_it_read,
    a_token_is_where_it_begins,
    it_begins_where_it_is_asked_to_or_refuses,
    a_listing_names_every_partition_once_and_says_what_it_is,
    the_status_of_a_feed_is_plain_and_does_no_io,
    hash_partitions_change_no_other_column_of_a_page,
    a_feed_says_its_policy_for_gaps,
    a_feed_without_snapshots_refuses_to_resnapshot,
    beginning_twice_is_beginning_once,
    one_answer_that_history_is_lost_loses_and_ends_nothing,
    a_refusal_for_a_while_is_no_gap_where_nothing_is_lost,
    after_an_acknowledgement_in_the_middle_the_rest_is_still_there,
)
"""In this order: the last one may have the source forget changes."""
