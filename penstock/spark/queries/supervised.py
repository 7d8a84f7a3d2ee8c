"""One backend's query over all its restarts: whatever ended it, it is started again, with back-off.

A query that failed for good fails alone: its backend stands still, and is tried again now and then,
because the operator may have mended its source. Only a lost lease, and a lost JVM, concern the
whole service.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from penstock.model.errors import LeaseLost, PenstockError, Unavailable
from penstock.process.backoff import delays
from penstock.spark.queries.query import failure

log = structlog.get_logger("penstock")

# Seconds that a query must have run for the back-off to begin anew.
STEADY = 30.0
# Seconds until a query that failed for good is tried again: at first, and at most.
BLOCKED_FIRST, BLOCKED_LIMIT = 1.0, 30.0
# Seconds that a query must have run to count as mended.
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
        raise EngineLost("the Spark JVM is gone", "spark") from error


class Supervised:
    """Keeps a query running. Every method raises EngineLost when the JVM is gone. `start(attempt)`
    starts it; `tick` is called a few times a second. `failed` is why it stands still until the
    operator acts. `proven`: it has ever run for a while."""

    def __init__(
        self, name: str, start: Callable[[int], StreamingQuery], restarts: int = 0
    ) -> None:
        self.name, self.restarts = name, restarts
        self.last_error = ""
        self.failed: PenstockError | None = None
        self.proven = False
        self._start = start
        self._query: StreamingQuery | None = None
        self._over = threading.Event()  # the query has ended, or the JVM
        self._waits: Iterator[float] = delays()
        self._blocked_waits = _blocked_waits()
        self._at = 0.0

    def has_drained(self, *, reported: bool) -> bool:
        """It ended, or `reported` so and no batch is left whose workers a stop would kill."""
        with talking_to_java():
            if (query := self._query) is None or not query.isActive:
                return True
            return reported and not query.status["isDataAvailable"]

    @property
    def blocked(self) -> str:
        """Why it stands still; "" if it does not."""
        return "" if self.failed is None else str(self.failed)

    def is_steady(self, now: float) -> bool:
        """Whether the query has run for a while, and runs: no tick is needed soon."""
        is_running = self._query is not None and not self._over.is_set()
        return is_running and now - self._at > CLEARED

    def tick(self, now: float) -> None:
        """Starts the query when it is time. Raises LeaseLost. `now` is monotonic seconds."""
        try:
            with talking_to_java():
                if self._query is None:
                    if now >= self._at:
                        self._query = query = self._start(self.restarts)
                        self._at = now
                        self._over = over = threading.Event()
                        waiting = threading.Thread(target=_await, args=(query, over), daemon=True)
                        waiting.start()
                elif not self._query.isActive:
                    self._ended(failure(self._query.exception()), now)
                elif now - self._at > CLEARED:
                    self.proven, self.failed = True, None
        except (EngineLost, LeaseLost):
            raise
        except PenstockError as error:
            self._ended(error, now)
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

    def _ended(self, error: PenstockError, now: float) -> None:
        if isinstance(error, LeaseLost):
            raise error
        self._query = None
        self.last_error = str(error)
        self.restarts += 1
        if now - self._at > STEADY:
            self._waits, self._blocked_waits = delays(), _blocked_waits()
        if isinstance(error, Unavailable):
            wait = next(self._waits)
            log.warning(
                "query ended; starting again", backend=self.name, error=str(error), wait=wait
            )
        else:
            # It stands still until the operator, or a connection that leads to the right server
            # again, has changed what made the query fail.
            wait = next(self._blocked_waits)
            if self.blocked != str(error):
                log.error("the backend stands still", backend=self.name, error=str(error))
            self.failed = error
        self._at = now + wait


def _await(query: StreamingQuery, over: threading.Event) -> None:
    """Waits in the JVM, so that the end of a query, or of the JVM, needs not be asked for."""
    with suppress(Exception):  # which `tick` finds
        query.awaitTermination()
    over.set()


def _blocked_waits() -> Iterator[float]:
    return delays(first=BLOCKED_FIRST, limit=BLOCKED_LIMIT)
