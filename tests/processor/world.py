"""Hosts without threads: a clock that tests move, and hosts that are driven by hand."""

from collections.abc import Callable
from typing import Any

from penstock.leases import LeaseStore
from penstock.leases.memory import MemoryStore
from penstock.processor.observer import Changes, CloseReason, Observer, PartitionContext
from penstock.processor.processor import Processor
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.waiting import Clock


class World:
    """`log` has every call of every observer: (host, partition, what). `fail(changes, context)`
    may raise in `process`."""

    def __init__(self, store: LeaseStore | None = None) -> None:
        self.clock = Clock(1000.0)
        self.store = store or MemoryStore()
        self.log: list[tuple[str, str, Any]] = []
        self.numbers: dict[str, list[int]] = {}  # what was processed of each partition
        self.fail: Callable[[Changes, PartitionContext], None] = lambda _changes, _context: None
        self.on_close: Callable[[PartitionContext, CloseReason], None] = lambda _c, _r: None
        self.errors: list[str] = []

    def host(self, name: str, feed: StagedFeed | None = None, **keywords: Any) -> Processor:
        world = self

        class Noting(Observer):
            def open(self, context: PartitionContext) -> None:
                world.log.append((name, context.partition, "open"))

            def process(self, changes: Changes, context: PartitionContext) -> None:
                world.log.append((name, context.partition, len(changes)))
                world.fail(changes, context)
                found = [each["new"] or each["old"] or each["key"] for each in changes]
                assert len(found) == len(changes)
                numbers = world.numbers.setdefault(context.partition, [])
                numbers += [_number(each["meta"]["sequence_number"]) for each in changes]

            def close(self, context: PartitionContext, reason: CloseReason) -> None:
                world.log.append((name, context.partition, str(reason)))
                world.on_close(context, reason)

        return Processor(
            feed or memory(),
            leases=self.store,
            name="test",
            observer=Noting,
            host=name,
            on_error=lambda error, _context: self.errors.append(f"{type(error).__name__}: {error}"),
            clock=self.clock,
            **keywords,
        )

    def pass_time(self, seconds: float, *hosts: Processor, step: float = 1.0) -> None:
        """Moves the clock in steps; at each, every host keeps its leases and takes its turns."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            for host in hosts:
                self.drive(host)
            self.clock.now += step
        for host in hosts:
            self.drive(host)

    def drive(self, host: Processor) -> None:
        host.node.tick()
        for _ in range(10_000):
            job = host.node.turns.next()
            if job is None:
                return
            host.node.take_turn(job, 0.0)
        raise AssertionError("turns without an end")

    def leave(self, host: Processor) -> None:
        """A stop in order."""
        host.node.leave()
        self.drive(host)
        assert host.partitions == []

    def calls(self, partition: str) -> list[Any]:
        return [what for _, name, what in self.log if name == partition]

    def rows(self) -> dict[str, Any]:
        return {row.name.rpartition("/")[2]: row for row in self.store.list("test/")}


def memory(**settings: Any) -> StagedFeed:
    """Changes in pages of 10."""
    return StagedFeed(StagedSettings(**{"changes": 30, "page": 10, **settings}))


def _number(place: str) -> int:
    cursor, _, ordinal = place.partition(":")
    return int(cursor.rpartition("-")[2]) * 10 + int(ordinal)
