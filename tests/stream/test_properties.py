"""Random shard trees and schedules: records of a shard in order, parents before children, every
record once, and from every token exactly the rest.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Unavailable
from penstock.stream import Stream
from tests.stream.scripted import ScriptedFeed

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
    max_size=60,
)  # fmt: skip


class Run:
    """An iterator on a scripted feed, and which records of each shard it has handed out."""

    def __init__(self, lineage: Mapping[str, tuple[str, ...]], pages: Pages) -> None:
        self.feed = ScriptedFeed(lineage, pages)
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
        tokens.append(run.token())
    for token, done in tokens:
        run.resume(token, done)
        run.drain()
