"""The tables that are printed."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rich.console import Console
from rich.table import Table

from .deliveries import Row
from .drain import Drain
from .episodes import SLOW
from .idle import IdleProcess
from .iterate import Iteration
from .latency import Latency
from .mirror import MirrorRates
from .outage import Outage
from .takeover import Takeover
from .timeline import Sample, Standstill
from .usage import OURS

_WORST = 5  # episodes that are shown
_AWAKE = 0.5  # wake-ups a second of threads that are shown
_BAR = 30  # characters of the longest bar


def show_drain(console: Console, one: Drain) -> None:
    """One drain, and the peers of its run."""
    table = _figures(f"draining {one.rows:,} rows into {one.messages:,} messages")
    table.add_row("events/s", f"{one.events_per_second:,.0f}")
    table.add_row(f"{one.baseline}, rows/s", f"{one.baseline_per_second:,.0f}")
    table.add_row("ratio to that", f"{one.ratio:.2f}")
    for name, rate in one.peers.items():
        table.add_row(f"{name}, rows/s", f"{rate:,.0f}")
        table.add_row(f"ratio to {name}", f"{one.events_per_second / rate:.2f}")
    table.add_row("start to the first event, s", f"{one.first_event:.1f}")
    table.add_row("threads of our Python processes, at most", str(one.peak_threads))
    _memory(table, one)
    _cpu(table, one.cpu)
    for role, cores in sorted(one.busy.items()):
        text = f"{cores.total:.2f} = {cores.user:.2f} + {cores.system:.2f}"
        table.add_row(f"cores busy with {role}, user + system", text)
    table.add_row("share of all cores that was idle", f"{one.idle:.0%}")
    if one.still is not None:
        _curves(console, one.curves)
        _still(table, one.still)
    console.print(table)


def show_idle(console: Console, processes: Sequence[IdleProcess]) -> None:
    """Each process, and its threads that wake."""
    table = Table(title="a pipeline that has nothing to do", title_justify="left")
    table.add_column("process, thread")
    for name in ("% of a core", "wake-ups/s", "RSS, MB", "PSS, MB"):
        table.add_column(name, justify="right")
    for each in processes:
        memory = [f"{size / 1e6:.0f}" for size in (each.rss, each.pss)]
        table.add_row(each.role, f"{each.cpu:.2f}", f"{each.wakes:.1f}", *memory)
        for thread in each.threads:
            if thread.wakes >= _AWAKE:
                table.add_row(f"  {thread.name}", f"{thread.cpu:.2f}", f"{thread.wakes:.1f}")
    cpu, wakes = sum(each.cpu for each in processes), sum(each.wakes for each in processes)
    memory = [f"{sum(sizes) / 1e6:.0f}" for sizes in (
        [each.rss for each in processes], [each.pss for each in processes]
    )]  # fmt: skip
    table.add_row("together", f"{cpu:.2f}", f"{wakes:.1f}", *memory)
    console.print(table)


def show_mirror(console: Console, one: MirrorRates) -> None:
    """A mirror into one target."""
    table = _figures(f"a mirror of {one.rows:,} rows in {one.target}, and as many changes")
    table.add_row("rows/s loaded, by the clock", f"{one.load:,.0f}")
    table.add_row("rows/s loaded, by its CPU", f"{one.load_cpu:,.0f}")
    table.add_row("changes/s applied, by the clock", f"{one.tail:,.0f}")
    table.add_row("changes/s applied, by its CPU", f"{one.tail_cpu:,.0f}")
    console.print(table)


def show_latency(console: Console, one: Latency) -> None:
    """One load."""
    title = (
        f"commit to stored: {one.rate:,} rows/s in {one.size}-row transactions for "
        f"{one.seconds} s ({one.changes:,} changes)"
    )
    table = _figures(title)
    for name, value in (("p50", one.p50), ("p99", one.p99), ("max", one.max)):
        text = f"{value:.1f}; until penstock had it {one.captured[name]:.1f}"
        table.add_row(f"{name}, ms", text)
    slow = sum(episode.changes for episode in one.episodes)
    said = f"{len(one.episodes)} episodes, {slow:,} changes" if slow else "none"
    table.add_row(f"{SLOW:.0f} ms or slower", said)
    for episode in sorted(one.episodes, key=lambda episode: -episode.stored)[:_WORST]:
        text = f"{episode.stored:.0f}; until penstock had it {episode.captured:.0f}"
        table.add_row(f"  worst of the one at {episode.at:.1f} s, ms", text)
    late = f"{one.late:.3f}" if one.kept_up else f"{one.late:.3f}: THE RATE WAS NOT REACHED"
    table.add_row("the writer was late by at most, s", late)
    if one.snapshots:
        table.add_row("snapshots of another table meanwhile", str(one.snapshots))
    _memory(table, one)
    _cpu(table, one.cpu)
    console.print(table)


def show_outage(console: Console, one: Outage) -> None:
    """One outage."""
    table = _figures(f"broker gone for {one.seconds} s at {one.rate:,} rows/s")
    table.add_row("changes, each stored once", f"{one.changes:,}")
    table.add_row("all stored after the return, s", f"{one.recovery:.1f}")
    _memory(table, one)
    console.print(table)


def show_takeovers(console: Console, rows: Sequence[Takeover]) -> None:
    """Each way to wait."""
    table = Table(title="kill -9 of the instance that runs", title_justify="left")
    table.add_column("standby")
    for name in ("noticed, s", "first change of the second, s", "on standby, MB"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.standby, f"{row.noticed:.1f}", f"{row.first_message:.1f}",
            f"{row.memory / 1e6:,.0f}",
        )  # fmt: skip
    console.print(table)


def show_scaling(console: Console, drains: Sequence[Drain]) -> None:
    """Cost over the number of tables and columns."""
    table = Table(title="cost by tables and columns", title_justify="left")
    for name in ("tables", "columns", "events/s", "ratio", "own CPU us", "nats CPU us", "PSS MB"):
        table.add_column(name, justify="right")
    for one in drains:
        table.add_row(
            f"{one.tables:,}", str(one.columns), f"{one.events_per_second:,.0f}",
            f"{one.ratio:.2f}", f"{one.own_cpu:.1f}", f"{one.cpu.get('nats-server', 0):.1f}",
            f"{one.peak_pss / 1e6:,.0f}",
        )  # fmt: skip
    console.print(table)


def show_deliveries(console: Console, rows: Sequence[Row]) -> None:
    """Each delivery of the sink alone."""
    table = Table(title="deliveries: the sink alone", title_justify="left")
    for name in ("delivery", "servers", "sync"):
        table.add_column(name)
    for name in ("events/s", "client us", "server us", "p50 ms", "p99 ms", "behind"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.delivery, str(row.servers), row.sync, f"{row.events_per_second:,.0f}",
            f"{row.client_cpu:.1f}", f"{row.server_cpu:.1f}", f"{row.p50:.1f}", f"{row.p99:.1f}",
            str(row.behind),
        )  # fmt: skip
    console.print(table)


def show_iteration(console: Console, one: Iteration) -> None:
    """Each reader of one stream."""
    title = f"CPU a record of {one.bytes_each} bytes, {one.records:,} records"
    table = Table(title=title, title_justify="left")
    for name in ("reader", "us", "penstock is faster by"):
        table.add_column(name, justify="left" if name == "reader" else "right")
    for reader, spent in one.cpu.items():
        table.add_row(reader, f"{spent:.1f}", f"{spent / one.cpu['penstock']:.1f}")
    console.print(table)
    if one.ratio is None:
        console.print("Bloop is not there: scripts/test makes its environment, .venv/bloop")


def _figures(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    return table


def _curves(console: Console, curves: Sequence[Sample]) -> None:
    """A line for each sample; the bars show what was sent and stored since the one before."""
    steps = [
        (now.at, now.sent, now.sent - before.sent, now.stored, now.stored - before.stored)
        for before, now in pairwise(curves)
    ]
    most_sent = max((step[2] for step in steps), default=0) or 1
    most_stored = max((step[4] for step in steps), default=0) or 1
    table = Table(title="sent by the wal sender, and stored in the stream", title_justify="left")
    for name in ("s", "sent, MiB", "stored, messages"):
        table.add_column(name, justify="right")
        if name != "s":
            table.add_column("since the line before")
    for at, sent, more_sent, stored, more_stored in steps:
        table.add_row(
            f"{at:.1f}", f"{sent / 2**20:,.1f}", "#" * round(_BAR * more_sent / most_sent),
            f"{stored:,}", "#" * round(_BAR * more_stored / most_stored),
        )  # fmt: skip
    console.print(table)


def _still(table: Table, still: Standstill) -> None:
    table.add_row("first to last message, s", f"{still.seconds:.1f}")
    for name, share in (
        ("reading", still.reading),
        ("writing", still.writing),
        ("one of them", still.either),
        ("both", still.neither),
    ):
        table.add_row(f"share of it in which {name} stood still with work left", f"{share:.0%}")


def _memory(table: Table, one: Drain | Latency | Outage) -> None:
    table.add_row("peak memory of ours, PSS, MB", f"{one.peak_pss / 1e6:,.0f}")
    table.add_row("peak memory of ours, RSS, MB", f"{one.peak_rss / 1e6:,.0f}")


def _cpu(table: Table, cpu: Mapping[str, float]) -> None:
    for role, microseconds in sorted(cpu.items()):
        table.add_row(f"CPU of {role}, us an event", f"{microseconds:.2f}")
    ours = sum(cpu.get(role, 0.0) for role in OURS)
    table.add_row("CPU of ours together, us an event", f"{ours:.2f}")
