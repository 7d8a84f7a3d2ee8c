"""One backend's query over all its restarts: a passing failure starts it again, with back-off."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from penstock.backoff import delays
from penstock.errors import PenstockError, PositionLost, Unavailable
from penstock.spark.queries.query import failure

__all__ = ["EngineLost", "Supervised", "talking_to_java"]

log = structlog.get_logger("penstock")

# Seconds that a query must have run for the back-off to begin anew.
STEADY = 30.0
# Seconds until a query that lost its history is tried again, and after which it is taken to have
# found what it needs.
BLOCKED = 30.0
CLEARED = 10.0


class EngineLost(Unavailable):
    """The JVM is gone; the process must start again."""


@contextmanager
def talking_to_java() -> Iterator[None]:
    """Raises EngineLost when the JVM is gone; what Java itself raises passes."""
    try:
        yield
    except Py4JJavaError:
        raise
    except (Py4JError, OSError) as error:
        raise EngineLost("the Spark JVM is gone") from error


class Supervised:
    """Keeps a query running. Every method raises EngineLost when the JVM is gone.
    `start(attempt)` starts it; `tick` is called a few times a second."""

    def __init__(self, name: str, start: Callable[[int], StreamingQuery]) -> None:
        self.name = name
        self.restarts = 0
        self.last_error = ""
        self.blocked = ""
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
            with talking_to_java():
                if self._query is None:
                    if now >= self._at:
                        self._query = self._start(self.restarts)
                        self._at = now
                elif not self._query.isActive:
                    self._ended(failure(self._query.exception()), now)
                elif self.blocked and now - self._at > CLEARED:
                    self.blocked = ""
        except (PySparkException, Py4JJavaError) as error:
            self._ended(failure(error), now)

    def progress(self) -> dict[str, Any]:
        """The last micro-batch: its id, and Spark's timings in milliseconds."""
        with talking_to_java():
            last = self._query.lastProgress if self._query is not None else None
        if last is None:
            return {}
        return {"id": last["batchId"], "timings": dict(last["durationMs"])}

    def hand_over(self) -> None:
        """Stops at once, and may be started again later: the pipeline is another instance's."""
        self.stop()
        self._query = None
        self.restarts += 1

    def stop(self) -> None:
        """Stops the query; what is in flight stays with the source."""
        with talking_to_java():
            if self._query is not None and self._query.isActive:
                self._query.stop()

    def _block(self, error: PositionLost, now: float) -> None:
        """Stands still, and looks now and then whether the operator, or a connection that leads
        to the right server again, has changed what was lost."""
        if not self.blocked:
            log.error("the backend stands still", backend=self.name, error=str(error))
        self.blocked = str(error)
        self.restarts += 1
        self._at = now + BLOCKED

    def _ended(self, error: PenstockError, now: float) -> None:
        self._query = None
        self.last_error = str(error)
        if isinstance(error, PositionLost):
            self._block(error, now)
            return
        if not isinstance(error, Unavailable):
            raise error
        if now - self._at > STEADY:
            self._waits = delays()
        wait = next(self._waits)
        self.restarts += 1
        self._at = now + wait
        log.warning("query ended; starting again", backend=self.name, error=str(error), wait=wait)
