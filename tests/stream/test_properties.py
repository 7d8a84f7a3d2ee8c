"""Random shard trees and schedules: records of a shard in order, parents before children, every
record once, and from every token exactly the rest. Creation times are random: they go backwards in
a shard, and children's are before their parents'. Where records are trimmed: never a silent hole.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.feeds import GapPolicy
from penstock.model.errors import RecordsExpired, Unavailable
from penstock.stream import Stream
from tests.stream.scripted import ScriptedFeed
from tests.wire.cells import examples

Pages = dict[str, list[list[int]]]


@st.composite
def trees(draw: st.DrawFn) -> tuple[dict[str, tuple[str, ...]], Pages]:
    """Up to seven shards, each with up to two parents among those before, and their pages."""
    lineage: dict[str, tuple[str, ...]] = {}
    pages: Pages = {}
    for number in range(draw(st.integers(1, 7))):
        known = list(lineage)
        parents = draw(st.lists(st.sampled_from(known), max_size=2, unique=True)) if known else []
        name = f"S{number}"
        lineage[name] = tuple(parents)
        pages[name] = draw(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=4))
    return lineage, pages


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["next", "next", "next", "heartbeat", "show", "resume", "save", "move", "latest",
             "fail", "wait"]
        ),
        st.integers(0, 99),
    ),
    min_size=15,  # without one, lists of about five are drawn
    max_size=60,
)  # fmt: skip


class Run:
    """An iterator on a scripted feed, and which records of each shard it has handed out."""

    def __init__(
        self, lineage: Mapping[str, tuple[str, ...]], pages: Pages, on_gap: GapPolicy = "fail"
    ) -> None:
        self.feed = ScriptedFeed(lineage, pages, on_gap=on_gap)
        self.feed.shown = dict.fromkeys(lineage, 0)
        self.now = 0.0
        self.stream = Stream(self.feed, at="trim_horizon", clock=self.clock)
        self.done = dict.fromkeys(lineage, 0)
        self.saved = [self.token()]

    def clock(self) -> float:
        return self.now

    def token(self) -> tuple[Any, dict[str, int]]:
        return json.loads(json.dumps(self.stream.token)), dict(self.done)

    def total(self, shard: str) -> int:
        return sum(map(len, self.feed.pages[shard]))

    def next(self) -> bool:
        """Takes a record, and holds it against the guarantees; whether there was one."""
        try:
            record = next(self.stream)
        except Unavailable:
            return True  # it fails once
        if record is None:
            return False
        cursor = record["meta"]["sequence_number"].partition(":")[0]
        shard, _, number = cursor.rpartition("-")
        assert int(number) == self.done[shard], "in order, each once"
        self.done[shard] += 1
        for parent in self.feed.lineage[shard]:
            assert self.done[parent] == self.total(parent), "parents before children"
        return True

    def step(self, action: str, number: int) -> None:
        shards = list(self.feed.lineage)
        shard = shards[number % len(shards)]
        match action:
            case "next":
                self.next()
            case "heartbeat":
                with suppress(Unavailable):
                    self.stream.heartbeat()
            case "show":
                shown = self.feed.shown
                shown[shard] = min(shown[shard] + 1, len(self.feed.pages[shard]))
            case "save":
                self.saved.append(self.token())
            case "resume":
                self.resume(*self.token())
            case "move":
                token, self.done = self.saved[number % len(self.saved)]
                self.done = dict(self.done)
                self.stream.move_to(token)
            case "latest":
                self.feed.failing.discard("list")
                self.stream.move_to("latest")
                listed = {each.partition for each in self.feed.partitions()}
                self.done = {
                    name: sum(len(times) for _, times in self.feed.numbers(name))
                    if name in listed
                    else 0
                    for name in self.feed.lineage
                }
            case "fail":
                self.feed.failing.add([*shards, "list"][number % (len(shards) + 1)])
            case "wait":
                self.now += number / 10

    def resume(self, token: Any, done: dict[str, int]) -> None:
        self.stream.close()
        self.done = dict(done)
        self.stream = Stream(self.feed, at=token, clock=self.clock)

    def drain(self) -> None:
        """Everything there is; nothing is left then."""
        self.feed.shown = {name: len(pages) for name, pages in self.feed.pages.items()}
        for _ in range(8 * len(self.done) + 8):
            while self.next():
                pass
            self.now += 10
        assert self.done == {name: self.total(name) for name in self.done}


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(trees(), STEPS)
def test_the_guarantees_hold_for_any_tree_and_schedule(
    shape: tuple[dict[str, tuple[str, ...]], Pages], steps: list[tuple[str, int]]
) -> None:
    run = Run(*shape)
    for step in steps:
        run.step(*step)
    run.drain()
    for token, done in [*run.saved, run.token()]:
        run.resume(token, done)
        run.drain()


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(trees(), st.integers(0, 3))
def test_resume_from_every_token_gives_exactly_the_rest(
    shape: tuple[dict[str, tuple[str, ...]], Pages], beats: int
) -> None:
    run = Run(*shape)
    run.feed.shown = {name: len(pages) for name, pages in run.feed.pages.items()}
    tokens = [run.token()]
    for turn in range(80):
        if beats and turn % beats == 0:
            run.step("heartbeat", 0)
        run.next()
        run.now += 1
        if (token := run.token()) != tokens[-1]:
            tokens.append(token)
    for token, done in tokens:
        run.resume(token, done)
        run.drain()


LOSSES = st.lists(
    st.tuples(
        st.sampled_from(
            ["next", "next", "next", "heartbeat", "show", "show", "resume", "save", "move", "trim",
             "trim", "unlist", "fail", "wait"]
        ),
        st.integers(0, 99),
    ),
    min_size=15,
    max_size=60,
)  # fmt: skip


class LossyRun(Run):
    """A run in which the source trims pages and unlists shards: what is handed out may have holes
    of these records, and of no other, and the iterator has noted each."""

    expired = False  # whether the last call raised RecordsExpired

    def next(self) -> bool:
        self.expired = False
        try:
            record = next(self.stream)
        except Unavailable:
            return True
        except RecordsExpired:
            assert self.stream.gaps
            assert self.feed.on_gap == "fail"
            self.expired = True
            return False
        if record is None:
            return False
        cursor = record["meta"]["sequence_number"].partition(":")[0]
        shard, _, digits = cursor.rpartition("-")
        if (number := int(digits)) != self.done[shard]:
            assert self.feed.on_gap == "continue", "a hole without an error"
            assert self.done[shard] < number <= self.horizon(shard), "only what is trimmed is lost"
            assert any(gap.cause == "trimmed" for gap in self.stream.gaps), "no silent hole"
        self.done[shard] = number + 1
        for parent in self.feed.lineage[shard]:
            assert self.is_over(parent), "parents before children"
        return True

    def horizon(self, shard: str) -> int:
        """The number of the first record that is not trimmed."""
        return sum(map(len, self.feed.pages[shard][: self.feed.trimmed[shard]]))

    def is_over(self, shard: str) -> bool:
        """Whether all of it was handed out, as far as the source still has it."""
        if shard in self.feed.unlisted:
            return True
        return max(self.done[shard], self.horizon(shard)) == self.total(shard)

    def step(self, action: str, number: int) -> None:
        shards = list(self.feed.lineage)
        shard = shards[number % len(shards)]
        match action:
            case "trim":
                self.feed.trimmed[shard] = min(self.feed.trimmed[shard] + 1, self.feed.shown[shard])
            case "unlist":
                self.feed.unlisted.add(shard)
            case _:
                super().step(action, number)

    def drain(self) -> None:
        """What is still there is handed out; what is not is said."""
        self.feed.shown = {name: len(pages) for name, pages in self.feed.pages.items()}
        for _ in range(8 * len(self.done) + 8):
            while self.next():
                pass
            self.now += 10
        # Errors come between the records of other shards: those are all handed out by now.
        left = [
            name
            for name, parents in self.feed.lineage.items()
            if self.done[name] < self.total(name)
            and name not in self.feed.unlisted
            and all(map(self.is_complete, parents))
        ]
        if self.feed.on_gap == "continue":
            assert all(map(self.is_over, left))
        elif left:
            self.next()
            assert self.expired, left

    def is_complete(self, shard: str) -> bool:
        """Whether it and its ancestors were handed out to the last record."""
        whole = self.done[shard] == self.total(shard) and shard not in self.feed.unlisted
        return whole and all(map(self.is_complete, self.feed.lineage[shard]))


@pytest.mark.slow
@pytest.mark.parametrize("on_gap", ["fail", "continue"])
@settings(max_examples=examples(100))
@given(trees(), LOSSES)
def test_what_the_source_loses_is_never_a_silent_hole(
    on_gap: GapPolicy,
    shape: tuple[dict[str, tuple[str, ...]], Pages],
    steps: list[tuple[str, int]],
) -> None:
    run = LossyRun(*shape, on_gap)
    for step in steps:
        run.step(*step)
    run.drain()
    for token, done in [*run.saved, run.token()]:
        run.resume(token, done)
        run.drain()
