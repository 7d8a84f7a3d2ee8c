"""One backend's query over all its restarts: a passing failure starts it again, with back-off."""

from collections.abc import Callable, Iterator
from typing import Any

import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from penstock.backoff import delays
from penstock.errors import LeaseLost, PenstockError, Unavailable
from penstock.spark.query import failure

__all__ = ["EngineLost", "Supervised"]

log = structlog.get_logger("penstock")

# Seconds that a query must have run for the back-off to begin anew.
STEADY = 30.0


class EngineLost(Unavailable):
    """The JVM is gone; the process must start again."""


class Supervised:
    """Keeps a query running. `start(attempt)` starts it; `tick` is called a few times a second."""

    def __init__(self, name: str, start: Callable[[int], StreamingQuery]) -> None:
        self.name = name
        self.restarts = 0
        self.last_error = ""
        self._start = start
        self._query: StreamingQuery | None = None
        self._waits: Iterator[float] = delays()
        self._at = 0.0

    @property
    def running(self) -> bool:
        """Whether a query was started and has not been seen to end."""
        return self._query is not None

    def tick(self, now: float) -> None:
        """Starts the query when it is time; raises what the operator must act on.

        `now` is monotonic seconds.
        """
        try:
            if self._query is None:
                if now >= self._at:
                    self._query = self._start(self.restarts)
                    self._at = now
            elif not self._query.isActive:
                self._ended(failure(self._query.exception()), now)
        except (PySparkException, Py4JJavaError) as error:
            self._ended(failure(error), now)
        except (Py4JError, OSError) as error:
            raise EngineLost("the Spark JVM is gone") from error

    def progress(self) -> dict[str, Any]:
        """The last micro-batch: its id, and Spark's timings in milliseconds."""
        last = self._query.lastProgress if self._query is not None else None
        if last is None:
            return {}
        return {"id": last["batchId"], "timings": dict(last["durationMs"])}

    def stop(self) -> None:
        """Stops the query; what is in flight stays with the source."""
        if self._query is not None and self._query.isActive:
            self._query.stop()

    def _ended(self, error: PenstockError, now: float) -> None:
        self._query = None
        self.last_error = str(error)
        if not isinstance(error, Unavailable | LeaseLost):
            raise error
        if now - self._at > STEADY:
            self._waits = delays()
        wait = next(self._waits)
        self.restarts += 1
        self._at = now + wait
        log.warning("query ended; starting again", backend=self.name, error=str(error), wait=wait)
