"""`python -m bench.process`: what the Processor itself costs, and what two of its processes do.

The first table is CPU a change in batches of 100, of the memory feed alone and of the Processor
over it, whose observer does nothing; the difference is the Processor's own. The second table is
two processes with 200 partitions, a store in a file, and the records of every change. The third
(`--rebalance`) is how long processes take to have about equal shares again after one joined, was
killed here or elsewhere, in parts of what they may take: `acquire` and `expire` together.
"""

import multiprocessing
import tempfile
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from penstock import Changes, Observer, PartitionContext, Processor
from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.leases import holder
from penstock.leases.memory import MemoryStore
from penstock.leases.sqlite import SqliteStore
from penstock.model.position import PartitionId

BATCH = 100


class Nothing(Observer):
    """The cheapest one."""

    def process(self, changes: Changes, context: PartitionContext) -> None:
        """Does nothing."""


def read_alone(changes: int) -> float:
    """Seconds of CPU to read so many changes of one partition."""
    feed = MemoryFeed(MemoryFeedSettings(changes=changes, page=BATCH))
    following = feed.follow(PartitionId("p0"))
    begun = time.process_time()
    while following.read(0):
        pass
    return time.process_time() - begun


def processed(changes: int) -> float:
    """The same through a Processor, in one thread; each batch is checkpointed, in memory."""
    feed = MemoryFeed(MemoryFeedSettings(changes=changes, page=BATCH, polled=True))
    processor = Processor(feed, leases=MemoryStore(), name="bench", observer=Nothing)
    node = processor.node
    node.take_turn(_next(processor), 0.0)
    node.tick()
    begun = time.process_time()
    while node.counts["events"] < changes:
        node.take_turn(_next(processor), 0.0)
    return time.process_time() - begun


def _next(processor: Processor) -> Any:
    while (job := processor.node.turns.next()) is None:
        time.sleep(0.001)
    return job


def _host(store: str, partitions: int, changes: int, line: Connection) -> None:
    """A process: counts the records of its half, and sends how many, and its seconds of CPU."""
    counted = Counter[str]()

    class Counting(Observer):
        def process(self, found: Changes, context: PartitionContext) -> None:
            counted[context.partition] += sum(1 for _ in found)

    settings = {"partitions": partitions, "changes": changes, "page": BATCH, "polled": True}
    processor = Processor(
        "memory", settings, leases=store, name="bench", observer=Counting,
        max_partitions=partitions // 2, acquire=0.2,
    )  # fmt: skip
    thread = threading.Thread(target=processor.run)
    thread.start()
    while sum(counted.values()) < partitions * changes // 2 and thread.is_alive():
        time.sleep(0.02)
    line.send((sum(counted.values()), time.process_time()))
    processor.stop()
    thread.join()


def shared(partitions: int, changes: int, processes: int = 2) -> tuple[float, float]:
    """Changes a second of all processes, from their start; microseconds of CPU a change."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="penstock-process-") as folder:
        store = f"sqlite:///{folder}/leases.db"
        lines = [fork.Pipe() for _ in range(processes)]
        begun = time.monotonic()
        hosts = [
            fork.Process(target=_host, args=(store, partitions, changes, own)) for _, own in lines
        ]
        for each in hosts:
            each.start()
        answers = [line.recv() for line, _ in lines]
        seconds = time.monotonic() - begun
        for each in hosts:
            each.join()
    total = sum(count for count, _ in answers)
    return total / seconds, sum(cpu for _, cpu in answers) * 1e6 / total


# Seconds: the defaults.
RENEW, ACQUIRE, EXPIRE = 17.0, 13.0, 60.0


def _member(store: str, partitions: int, scale: float, elsewhere: bool) -> None:
    """A process that processes until it is ended; `elsewhere`: as if on another machine, where
    nobody sees that its process is gone."""
    if elsewhere:
        holder.machine = lambda: "elsewhere"
    settings = {"partitions": partitions, "changes": 1_000_000, "page": BATCH, "polled": True}
    Processor(
        "memory", settings | {"latency": 0.5}, leases=store, name="bench", observer=Nothing,
        renew=RENEW * scale, acquire=ACQUIRE * scale, expire=EXPIRE * scale,
    ).run()  # fmt: skip


def _balanced(store: SqliteStore, partitions: int, hosts: list[Any], bound: float) -> float:
    """Seconds until only these processes have leases, and all of them about as many."""
    begun, pids = time.monotonic(), {each.pid for each in hosts}
    share = partitions // len(hosts)
    while True:
        rows = store.list("bench/")
        counts = Counter(row.properties.get("pid") for row in rows if row.owner)
        fair = all(share <= count <= share + 1 for count in counts.values())
        if len(rows) == counts.total() == partitions and counts.keys() == pids and fair:
            return time.monotonic() - begun
        if time.monotonic() - begun > 20 * bound:
            raise SystemExit(f"not balanced: {counts}")
        time.sleep(0.02)


def rebalanced(partitions: int, scale: float) -> dict[str, float]:
    """What happened to the third of three processes -> seconds until the shares are equal."""
    fork = multiprocessing.get_context("fork")
    bound = scale * (ACQUIRE + EXPIRE)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-rebalance-") as folder:
        url = f"sqlite:///{folder}/leases.db"
        store = SqliteStore.of_url(url)
        hosts: list[Any] = []

        def start(count: int, elsewhere: bool = False) -> None:
            for _ in range(count):
                hosts.append(fork.Process(target=_member, args=(url, partitions, scale, elsewhere)))
                hosts[-1].start()

        try:
            start(2)
            _balanced(store, partitions, hosts, bound)
            start(1)
            found["joined"] = _balanced(store, partitions, hosts, bound)
            hosts.pop().kill()
            found["killed on the same machine"] = _balanced(store, partitions, hosts, bound)
            start(1, elsewhere=True)
            _balanced(store, partitions, hosts, bound)
            hosts.pop().kill()
            found["killed on another machine"] = _balanced(store, partitions, hosts, bound)
        finally:
            for each in hosts:
                each.kill()
    return found


@click.command()
@click.option("--changes", default=200_000, show_default=True, help="Of the first table.")
@click.option("--partitions", default=200, show_default=True, help="Of the second.")
@click.option("--each", default=1000, show_default=True, help="Changes of each partition.")
@click.option("--runs", default=3, show_default=True, help="The least CPU counts.")
@click.option("--rebalance", is_flag=True, help="Only the third table.")
@click.option("--scale", default=0.1, show_default=True, help="Of its intervals to the defaults.")
def main(
    changes: int, partitions: int, each: int, runs: int, rebalance: bool, scale: float
) -> None:
    """Prints the first two tables, or the third."""
    console = Console(width=100)
    if rebalance:
        console.print(_rebalance(60, scale))
        return
    alone = min(read_alone(changes) for _ in range(runs)) * 1e6 / changes
    ours = min(processed(changes) for _ in range(runs)) * 1e6 / changes
    table = Table(title=f"us of CPU a change, batches of {BATCH}, one partition")
    for name in ("the feed alone", "through the Processor", "the Processor's own"):
        table.add_column(name, justify="right")
    table.add_row(*(f"{value:.2f}" for value in (alone, ours, ours - alone)))
    console.print(table)
    rate, cpu = shared(partitions, each)
    second = Table(title=f"{partitions} partitions on 2 processes, {each} changes each")
    second.add_column("changes/s", justify="right")
    second.add_column("us of CPU a change", justify="right")
    second.add_row(f"{rate:,.0f}", f"{cpu:.1f}")
    console.print(second)


def _rebalance(partitions: int, scale: float) -> Table:
    bound = scale * (ACQUIRE + EXPIRE)
    title = f"{partitions} partitions, 3 processes, acquire + expire = {bound:.1f} s"
    table = Table(title=title)
    for name in ("the third", "seconds", "of acquire + expire"):
        table.add_column(name, justify="right")
    for what, seconds in rebalanced(partitions, scale).items():
        table.add_row(what, f"{seconds:.1f}", f"{seconds / bound:.2f}")
    return table


if __name__ == "__main__":
    main()
