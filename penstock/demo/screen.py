"""What the demo shows: a live screen in a terminal, some lines in a pipe, or nothing."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.consumer.tail.lines import line
from penstock.consumer.tail.reader import Message
from penstock.process.closing import Closes

PHASES = ("setting up", "starting Spark", "streaming", "draining", "mirroring", "verdict")
_PLAIN_EVERY = 5.0  # seconds between lines where there is no terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One moment of the demo. Latencies are seconds from commit to stored, None when unknown."""

    phase: str
    elapsed: float = 0.0
    total: float = 0.0
    committed: int = 0
    received: int = 0
    duplicates: int = 0
    rate: float = 0.0
    p50: float | None = None
    p99: float | None = None
    title: str = "PostgreSQL"
    latest: Sequence[Message] = ()


class Screen(Closes):
    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._printed = ("", 0.0)

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.quiet:
            self._live.start()
        return self

    def close(self) -> None:
        """Leaves the last scene on the terminal."""
        self._live.stop()

    def show(self, scene: Scene) -> None:
        if self._live.is_started:
            self._live.update(draw(scene), refresh=True)
            return
        phase, at = self._printed
        # Before the first change is received each phase is one line.
        is_due = scene.received and time.monotonic() - at >= _PLAIN_EVERY
        if scene.phase != phase or is_due:
            self._printed = scene.phase, time.monotonic()
            self._console.print(summary(scene), highlight=False, soft_wrap=True)


def draw(scene: Scene) -> RenderableType:
    parts: list[RenderableType] = [_phases(scene.phase)]
    if scene.phase == "streaming" and scene.total:
        done, bar = min(scene.elapsed, scene.total), ProgressBar(scene.total, scene.elapsed, 60)
        parts.append(Columns([bar, f"{done:.0f} of {scene.total:.0f} s"]))
    parts += [_numbers(scene), Text()]
    parts += [line(message) for message in scene.latest]
    title = f"penstock  {scene.title} → Spark → NATS JetStream"
    return Panel(Group(*parts), title=title, border_style="blue")


def summary(scene: Scene) -> str:
    """A scene in one line, for a pipe."""
    if not scene.received:
        return f"{scene.phase} ..."
    return (
        f"{scene.phase}: {scene.committed:,} committed, {scene.received:,} received,"
        f" {scene.rate:,.0f} events/s, latency p50 {_ms(scene.p50)} p99 {_ms(scene.p99)},"
        f" {scene.duplicates} duplicates"
    )


def _phases(current: str) -> Text:
    now = PHASES.index(current)
    marks = [("✔", "green")] * now + [("▶", "bold yellow")] + [("·", "dim")] * len(PHASES)
    shown = zip(PHASES, marks, strict=False)
    return Text.assemble(*((f"{mark} {phase}   ", style) for phase, (mark, style) in shown))


def _numbers(scene: Scene) -> Table:
    table = Table.grid(padding=(0, 3))
    numbers = {
        "events/s": f"{scene.rate:,.0f}",
        "latency p50": _ms(scene.p50),
        "latency p99": _ms(scene.p99),
        "in flight": f"{max(0, scene.committed - scene.received):,} changes",
        "committed": f"{scene.committed:,}",
        "received": f"{scene.received:,}",
        "twice": str(scene.duplicates),
    }
    cells = [Text.assemble((f"{name} ", "dim"), (n, "bold")) for name, n in numbers.items()]
    table.add_row(*cells[:4])
    table.add_row(*cells[4:])
    return table


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"
