"""The whole demo: servers, shop, pipeline, consumer, verdict."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

from rich.console import Console

from penstock.demo.consumer import WARM_UP, Consumer, DemoMirror
from penstock.demo.pipeline import DemoFolder, DemoPipeline
from penstock.demo.screen import Scene, Screen
from penstock.demo.servers import Nats
from penstock.demo.sources import DemoSource, source
from penstock.demo.verdict import judge
from penstock.demo.workload import Workload

_STREAM = "CDC"
START = 180.0  # seconds until the pipeline is ready, or a table is loaded
_STALL = 30.0  # seconds without a new event after which draining gives up
_FINISH = 60.0  # seconds that reading to the stream's end may take
_EXAMPLES = 5  # of what differs in the mirror
KEPT = 5.0  # changes a second after the verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    source: str = "postgres"
    seconds: float = 30.0
    rate: float = 500.0
    keep: bool = False
    quiet: bool = False


# Takes the verdict as plain JSON.
Report = Callable[[Mapping[str, Any]], None]


def run(options: Options, console: Console, report: Report = lambda _: None) -> int:
    """0 when every change arrived exactly once and in order, else 1. Raises Unavailable."""
    made = source(options.source)
    if made.notice:
        show_lines(console, made.notice)
    with DemoFolder() as folder, ExitStack() as stack:
        with Screen(Console(quiet=True) if options.quiet else console) as screen:
            screen.show(Scene(phase="setting up"))
            shop, nats = stack.enter_context(made), stack.enter_context(Nats())
            demo = _Demo(options, screen, shop, nats, folder.path)
            stack.callback(demo.pipeline.kill)
            demo.play()
        folder.is_kept = not demo.ok
        show_lines(console, *demo.verdict())
        report(demo.to_json())
        if options.keep:
            demo.keep(console, nats)
        if not demo.ok:
            show_lines(console, f"the pipeline's log: {demo.pipeline.log_file}")
        return int(not demo.ok)


def show_lines(console: Console, *lines: str) -> None:
    console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)


class _Demo:
    def __init__(
        self, options: Options, screen: Screen, source: DemoSource, nats: Nats, folder: Path
    ) -> None:
        variables = {**source.environment, "NATS_URL": nats.url}
        document = {
            "backends": [{"name": "default", **source.backend}],
            "sink": {
                "type": "jetstream", "url": "${NATS_URL}", "stream": _STREAM,
                "subject": source.subject, "encoding": "msgpack", "breaker": {"timeout": "2s"},
            },
        }  # fmt: skip
        self.pipeline = DemoPipeline(folder, document, variables)
        self._mirror = DemoMirror(nats.url, folder / "mirror.db", source.mirrored)
        self._consumer = Consumer(nats.url, _STREAM, source.keys)
        self._writer = source.writer(options.rate)
        self._workload = Workload(self._writer, options.rate)
        self._ledger = self._workload.ledger
        self._options, self._screen, self._source = options, screen, source
        self._started = time.monotonic()
        self._code = self._rows = 0
        self._problems: list[str] = []

    @property
    def ok(self) -> bool:
        return not self._problems and self._code == 0

    def play(self) -> None:
        self.pipeline.start()
        self._wait("starting Spark", self.pipeline.ready, START)
        self._consumer.start()
        try:
            # The clock starts when the first change has arrived.
            self._workload.open()
            self._wait("starting Spark", lambda: self._consumer.replica.count > 0, START)
            self._stream()
            self._drain()
            self._wait("mirroring", lambda: self._mirror.is_loaded, START)
            self._show("verdict")
            self._mirror.finish(_FINISH)
            self._code = self.pipeline.stop()
            self._consumer.finish(_FINISH)
        finally:
            self._consumer.stop()
            self._mirror.stop()
        tables = self._source.tables()
        shops = {table: rows for table, rows in tables.items() if table in self._source.keys}
        self._rows = sum(map(len, shops.values()))
        self._problems += judge(self._ledger, self._consumer.replica, shops)
        self._problems += islice(self._mirror.problems(tables), _EXAMPLES)

    def _stream(self) -> None:
        self._started = time.monotonic()
        workload, ends_at = self._workload, self._started + self._options.seconds
        workload.start()
        if self._source.mirrored:
            self._mirror.start()
        try:
            # Ctrl-C ends the shop early, and judges what was committed so far; a second one aborts.
            with suppress(KeyboardInterrupt):
                self._wait("streaming", lambda: time.monotonic() >= ends_at or not workload.running)
        finally:
            workload.stop()

    def _drain(self) -> None:
        moved, count = time.monotonic(), -1

        def done() -> bool:
            nonlocal moved, count
            if self._consumer.replica.count != count:
                moved, count = time.monotonic(), self._consumer.replica.count
            return count >= self._ledger.count or time.monotonic() - moved > _STALL

        self._wait("draining", done)

    def _wait(self, phase: str, done: Callable[[], bool], timeout: float = inf) -> None:
        self.pipeline.wait_for(phase, done, timeout, self._show)

    def _show(self, phase: str) -> None:
        now, meter, replica = time.monotonic(), self._consumer.meter, self._consumer.replica
        self._screen.show(
            Scene(
                phase=phase,
                elapsed=now - self._started,
                total=self._options.seconds,
                committed=self._ledger.count,
                received=replica.count,
                duplicates=replica.repeated.total(),
                rate=meter.rate(now),
                p50=meter.quantile(0.5),
                p99=meter.quantile(0.99),
                title=self._source.title,
                latest=list(self._consumer.latest),
            )
        )

    def verdict(self) -> list[str]:
        meter, ledger, lines = self._consumer.meter, self._ledger, list(self._problems)
        if self._code != 0:
            lines.append(f"the pipeline did not stop in order: exit code {self._code}")
        p50, p99 = meter.quantile(0.5), meter.quantile(0.99)
        if not self._options.quiet and p50 is not None and p99 is not None:
            latency = f"p50 {p50 * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms"
            lines.append(f"latency from commit to stored, after {WARM_UP:.0f} s: {latency}")
        if not self.ok:
            received = self._consumer.replica.count
            return [
                *lines,
                f"VERDICT: FAILED. {ledger.count:,} changes committed, {received:,} received.",
            ]
        mirrored = f", and so does a mirror of snapshots and changes ({self._mirror.rows:,} rows)"
        return [
            *lines,
            f"VERDICT: ok. {ledger.count:,} changes in {len(ledger.committed):,} transactions"
            " arrived exactly once and in order per key;"
            f" the consumer's copy equals the tables ({self._rows:,} rows)"
            f"{mirrored if self._mirror.rows else ''}.",
        ]

    def to_json(self) -> dict[str, Any]:
        """The verdict. Latencies are milliseconds from commit to stored, null where unknown."""
        p50, p99 = (self._consumer.meter.quantile(share) for share in (0.5, 0.99))
        return {
            "ok": self.ok, "source": self._options.source, "committed": self._ledger.count,
            "transactions": len(self._ledger.committed), "received": self._consumer.replica.count,
            "rows": self._rows, "mirrored_rows": self._mirror.rows,
            "latency_p50_ms": p50 and p50 * 1e3, "latency_p99_ms": p99 and p99 * 1e3,
            "exit_code": self._code, "problems": self._problems,
            "log": "" if self.ok else str(self.pipeline.log_file),
        }  # fmt: skip

    def keep(self, console: Console, nats: Nats) -> None:
        """Starts the pipeline again, opens the shop at a walk and says how to reach everything."""
        pipeline, source = self.pipeline, self._source
        workload = Workload(self._writer, KEPT)
        variables = " ".join(f"{name}={value}" for name, value in pipeline.variables.items())
        mirror = f"  penstock mirror {nats.url} --to sqlite:///mirror.db"
        with suppress(KeyboardInterrupt):
            pipeline.start()
            pipeline.wait_for("starting", pipeline.ready, START)
            workload.start()
            show_lines(
                console,
                "",
                f"Everything stays up until Ctrl-C; the shop writes {KEPT:.0f} changes a second:",
                *(f"  {each}" for each in source.hints()),
                f"  penstock tail --url {nats.url} --stream {_STREAM}",
                *([mirror] if source.mirrored else []),
                f"  {pipeline.ops}/ui/, the dashboard, whose token is {pipeline.token}",
                # Its file names the servers by variables.
                f"  {variables} penstock check {pipeline.file}",
            )
            pipeline.wait_for("trading", lambda: not workload.running)
        workload.stop()
        pipeline.stop()
