"""What this process knows of one account in one region, whoever asks: the pace of its calls, where
each shard is being read, and the service's clock. Limits of AWS count for the account, and a shard,
whatever number of feeds, tickets and connections there are.
"""

import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from penstock.feeds.dynamodb.walk import KnownShard

# Calls a second of one process, or its share of them. AWS allows 5 and 10 for the whole account;
# others make some, too.
LISTS, DESCRIBES = 4, 8
# Shards that are remembered. They roll every four hours; an older one is read as if it were new.
_SHARDS = 10_000
_SECOND = 1.0  # in which the service counts calls


class CallPace:
    """When a call of one operation may be made, in seconds of its caller's clock: `most` in any
    second; less than one is one in several seconds."""

    def __init__(self, most: float) -> None:
        self._recent: deque[float] = deque(maxlen=max(1, int(most)))
        self._window = _SECOND / min(1.0, most)

    def due(self) -> float:
        full = len(self._recent) == self._recent.maxlen
        return self._recent[0] + self._window if full else 0.0

    def reserve(self, now: float) -> float:
        """A call is made as soon as it may be; returns when that is."""
        at = max(now, self.due())
        self._recent.append(at)
        return at


class ServerClock:
    """The server's time by the `Date` of its answers, which is cut to the second: a lower bound.
    Until there is an answer, the local clock's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ahead: float | None = None  # of the monotonic clock
        self._last = ""

    def now(self) -> float:
        """The server's time, in seconds since 1970."""
        ahead = self._ahead
        return time.time() if ahead is None else self._clock() + ahead

    def heard(self, date: str) -> None:
        """An answer had this `Date`; one that is no date is passed over."""
        if date == self._last:
            return
        try:
            found = parsedate_to_datetime(date).timestamp() - self._clock()
        except (TypeError, ValueError):
            return
        self._last = date
        # The greatest is the closest, unless the clock was set back.
        if self._ahead is None or found > self._ahead or found < self._ahead - 2:
            self._ahead = found


class Account:
    """See above. `clock`: monotonic seconds. Thread-safe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        share: float = 1.0,
    ) -> None:
        self.server = ServerClock(clock)
        self.lists, self.describes = CallPace(share * LISTS), CallPace(share * DESCRIBES)
        # The ARNs of each table's streams that were found, by label.
        self.arns: defaultdict[str, dict[str, str]] = defaultdict(dict)
        # Whether the last look-up of streams or shards was refused: calls are too many.
        self.is_throttled = False
        self.clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._shards: OrderedDict[tuple[str, str], KnownShard] = OrderedDict()

    def wait_for(self, pace: CallPace) -> None:
        """Returns when the call may be made, which counts from now on."""
        with self._lock:
            now = self.clock()
            at = pace.reserve(now)
        if at > now:
            self._sleep(at - now)

    def shard(self, arn: str, shard: str) -> KnownShard:
        with self._lock:
            known = self._shards.setdefault((arn, shard), KnownShard())
            self._shards.move_to_end((arn, shard))
            while len(self._shards) > _SHARDS:
                self._shards.popitem(last=False)
        return known

    def heard(self, answer: Mapping[str, Any]) -> None:
        """Takes the time of an answer of botocore."""
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders") or {}
        self.server.heard(str(headers.get("date", "")))
