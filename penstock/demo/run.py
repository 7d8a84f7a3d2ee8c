"""The whole demo: servers, shop, pipeline, consumer, verdict.

Everything runs in temporary folders, which are removed unless something differs.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from rich.console import Console

from penstock.demo.consumer import Consumer
from penstock.demo.ledger import Ledger
from penstock.demo.mirror import DemoMirror
from penstock.demo.nats_server import Nats
from penstock.demo.pipeline import STREAM, DemoPipeline
from penstock.demo.screen import Scene, Screen
from penstock.demo.sources import DemoSource, source
from penstock.demo.verdict import Verdict, judge
from penstock.demo.workload import Workload
from penstock.model.errors import PenstockError, Unavailable

_START = 180.0  # seconds until the pipeline is ready
_STALL = 30.0  # seconds without a new event after which draining gives up
_FINISH = 60.0  # seconds that reading to the stream's end may take
_EXAMPLES = 5  # of what differs in the mirror


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`seconds` is how long the shop is open, `rate` its changes a second, `source` a name of
    `SOURCES`."""

    source: str = "postgres"
    seconds: float = 30.0
    rate: float = 500.0
    keep: bool = False
    quiet: bool = False


def run(options: Options, console: Console) -> int:
    """Runs the demo; 0 when every change arrived exactly once and in order, else 1.

    Raises Unavailable when a server or the pipeline does not come up, or the pipeline ends.
    """
    with ExitStack() as stack:
        made = source(options.source)
        if made.notice:
            console.print(made.notice, highlight=False, soft_wrap=True)
        folder = stack.enter_context(_folder())
        with Screen(console, quiet=options.quiet) as screen:
            screen.show(Scene(phase="setting up"))
            shop = stack.enter_context(made)
            nats = stack.enter_context(Nats())
            variables = {**shop.environment, "NATS_URL": nats.url}
            pipeline = DemoPipeline(folder.path, shop.backend, shop.subject, variables)
            stack.callback(pipeline.kill)
            mirror = DemoMirror(nats.url, folder.path / "mirror.db", shop.mirrored)
            demo = _Demo(options, screen, shop, nats, pipeline, mirror=mirror)
            verdict, code = demo.play()
        ok = verdict.ok and code == 0
        folder.keep = not ok
        _say(console, options, demo, verdict, code)
        if options.keep:
            _keep(console, shop, nats, pipeline)
            pipeline.stop()
        if not ok:
            console.print(f"the pipeline's log: {pipeline.log}", highlight=False, soft_wrap=True)
        return 0 if ok else 1


@dataclass
class _Folder:
    """The pipeline's folder; it is kept when something went wrong, for its log."""

    path: Path
    keep: bool = False


@contextmanager
def _folder() -> Iterator[_Folder]:
    folder = _Folder(Path(tempfile.mkdtemp(prefix="penstock-demo-")))
    try:
        yield folder
    except PenstockError:
        folder.keep = True
        raise
    finally:
        if not folder.keep:
            shutil.rmtree(folder.path, ignore_errors=True)


class _Demo:
    """One run of the shop through the pipeline."""

    def __init__(
        self,
        options: Options,
        screen: Screen,
        source: DemoSource,
        nats: Nats,
        pipeline: DemoPipeline,
        *,
        mirror: DemoMirror,
    ) -> None:
        self.consumer = Consumer(nats.url, STREAM, source.keys)
        self.ledger = Ledger()
        self._options = options
        self._screen = screen
        self._source = source
        self._pipeline = pipeline
        self.mirror = mirror
        self._started = time.monotonic()

    def play(self) -> tuple[Verdict, int]:
        """The verdict, and the pipeline's exit code."""
        self._pipeline.start()
        self._wait("starting Spark", self._pipeline.ready, _START)
        self.consumer.start()
        rate = self._options.rate
        workload = Workload(self._source.writer(self.ledger, rate), self.ledger, rate=rate)
        try:
            # The clock starts when the first change has arrived.
            workload.open()
            self._wait("starting Spark", lambda: self.consumer.replica.count > 0, _START)
            self._stream(workload)
            self._drain()
            self._wait("mirroring", lambda: self.mirror.is_loaded, _START)
            self._show("verdict")
            self.mirror.finish(_FINISH)
            code = self._pipeline.stop()
            self.consumer.finish(_FINISH)
        finally:
            self.consumer.stop()
            self.mirror.stop()
        tables = self._source.tables()
        shops = {table: rows for table, rows in tables.items() if table in self._source.keys}
        verdict = judge(self.ledger, self.consumer.replica, shops)
        problems = (*verdict.problems, *islice(self.mirror.problems(tables), _EXAMPLES))
        return replace(verdict, problems=problems), code

    def _stream(self, workload: Workload) -> None:
        self._started = time.monotonic()
        workload.start()
        if self._source.mirrored:
            self.mirror.start()
        try:
            self._wait(
                "streaming",
                lambda: self._elapsed() >= self._options.seconds or not workload.running,
            )
        except KeyboardInterrupt:
            # Ends the shop early, and judges what was committed so far. A second Ctrl-C aborts.
            pass
        finally:
            workload.stop()

    def _drain(self) -> None:
        moved, count = time.monotonic(), -1

        def done() -> bool:
            nonlocal moved, count
            replica = self.consumer.replica
            if replica.count != count:
                moved, count = time.monotonic(), replica.count
            return count >= self.ledger.count or time.monotonic() - moved > _STALL

        self._wait("draining", done)

    def _wait(self, phase: str, done: Callable[[], bool], timeout: float = float("inf")) -> None:
        deadline = time.monotonic() + timeout
        while not done():
            self._pipeline.check()
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{phase} took longer than {timeout:.0f} s:\n{self._pipeline.tail()}"
                )
            self._show(phase)
            time.sleep(0.2)

    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    def _show(self, phase: str) -> None:
        now, meter, replica = time.monotonic(), self.consumer.meter, self.consumer.replica
        self._screen.show(
            Scene(
                phase=phase,
                elapsed=self._elapsed(),
                total=self._options.seconds,
                committed=self.ledger.count,
                received=replica.count,
                duplicates=replica.duplicates.total(),
                rate=meter.rate(now),
                p50=meter.recent(now, 0.5),
                p99=meter.recent(now, 0.99),
                title=self._source.title,
                source_lag=self._source.lag(),
                latest=list(self.consumer.latest),
            )
        )


def _say(console: Console, options: Options, demo: _Demo, verdict: Verdict, code: int) -> None:
    meter, received = demo.consumer.meter, demo.consumer.replica.count
    lines = list(verdict.problems)
    if code != 0:
        lines.append(f"the pipeline did not stop in order: exit code {code}")
    p50, p99 = meter.overall(0.5), meter.overall(0.99)
    if not options.quiet and p50 is not None and p99 is not None:
        latency = f"p50 {p50 * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms"
        lines.append(f"latency from commit to stored, after {meter.warm_up:.0f} s: {latency}")
    if verdict.ok and code == 0:
        lines.append(
            f"VERDICT: ok. {verdict.changes:,} changes in {verdict.transactions:,} transactions"
            " arrived exactly once and in order per key;"
            f" the consumer's copy equals the tables ({verdict.rows:,} rows){_mirrored(demo)}."
        )
    else:
        lines.append(
            f"VERDICT: FAILED. {verdict.changes:,} changes committed, {received:,} received."
        )
    console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)


def _mirrored(demo: _Demo) -> str:
    if not demo.mirror.rows:
        return ""
    return f", and so does a mirror of snapshots and changes ({demo.mirror.rows:,} rows)"


def _keep(console: Console, source: DemoSource, nats: Nats, pipeline: DemoPipeline) -> None:
    """Starts the pipeline again and says how to reach everything, until Ctrl-C."""
    pipeline.start()
    variables = " ".join(f"{name}={value}" for name, value in pipeline.variables.items())
    lines = (
        "",
        "Everything stays up until Ctrl-C:",
        *(f"  {each}" for each in source.hints()),
        f"  penstock tail --url {nats.url} --stream {STREAM}",
        *([f"  penstock mirror {nats.url} --to sqlite:///mirror.db"] if source.mirrored else []),
        f"  {pipeline.ops}/status",
        # Its file names the servers by variables.
        f"  {variables} penstock check {pipeline.file}",
    )
    console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)
    try:
        while True:
            pipeline.check()
            time.sleep(0.5)
    except KeyboardInterrupt:
        return
