"""A span for each batch, made in the service of what tasks and readers report.

A batch is a page of the source. Its times come in two reports: the task's, once it is stored, and
the reader's, once a save covers it. Where pages pass through Spark as rows, a batch is Spark's
micro-batch. The SDK's sampler decides here, once for each batch.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Tracer, set_span_in_context

from penstock.model.position import Place
from penstock.ops.reports import SpansReport, StoredBatch

WAITING = 2_000  # batches at most that wait for a save; the oldest end without one

Steps = Mapping[str, tuple[int, int]]


class BatchSpans:
    """`take` is called by the board's threads."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, StoredBatch]] = deque()  # of backends; stored, not saved
        self._micro_batches: dict[str, int] = {}  # of backends: the last one

    def take(self, backend: str, report: SpansReport) -> None:
        if report.micro_batch:
            self._micro_batch(backend, **report.micro_batch)
            return
        saved = {name: Place.parse(place) for name, place in report.saved.items()}
        with self._lock:
            self._waiting += [(backend, StoredBatch(*each)) for each in report.stored]
            ended = [self._waiting.popleft() for _ in range(len(self._waiting) - WAITING)]
            covered: list[tuple[str, StoredBatch]] = []
            for _ in range(len(self._waiting) if saved else 0):
                of, batch = item = self._waiting.popleft()
                up_to = saved.get(batch.partition) if of == backend else None
                is_saved = up_to is not None and Place.parse(batch.place) <= up_to
                (covered if is_saved else self._waiting).append(item)
        for item in ended:
            self._page(*item)
        for item in covered:
            self._page(*item, save=(report.began, report.ended))

    def close(self) -> None:
        """What waits ends without a save."""
        with self._lock:
            left, self._waiting = self._waiting, deque()
        for item in left:
            self._page(*item)

    def _page(self, backend: str, batch: StoredBatch, **save: tuple[int, int]) -> None:
        about = {"partition": batch.partition, "place": batch.place, "changes": batch.changes}
        steps = {
            "read": (batch.captured, batch.handed),
            "decode": (batch.handed, batch.decoded),
            "store": (batch.decoded, batch.stored),
            **save,
        }
        self._span(backend, about, steps)

    def _micro_batch(self, backend: str, id: int, timings: Mapping[str, float]) -> None:
        """It is reported again and again; one without changes stores nothing."""
        if self._micro_batches.get(backend) == id or "addBatch" not in timings:
            return
        self._micro_batches[backend] = id
        took = {name: int(milliseconds * 1e6) for name, milliseconds in timings.items()}
        began = time.time_ns() - took.get("triggerExecution", 0)
        read = began + took.get("latestOffset", 0)
        store = read + sum(took.get(each, 0) for each in ("walCommit", "getBatch", "queryPlanning"))
        steps = {"read": (began, read), "store": (store, store + took["addBatch"])}
        self._span(backend, {"micro_batch": id}, steps)

    def _span(self, backend: str, about: Mapping[str, Any], steps: Steps) -> None:
        attributes = {"backend": backend, **about}
        span = self._tracer.start_span(
            "batch",
            Context(),
            attributes={f"penstock.{name}": value for name, value in attributes.items()},
            start_time=min(began for began, _ in steps.values()),
        )
        within = set_span_in_context(span, Context())
        for name, (began, ended) in steps.items() if span.is_recording() else ():
            self._tracer.start_span(name, within, start_time=began).end(ended)
        span.end(max(ended for _, ended in steps.values()))
