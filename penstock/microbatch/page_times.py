"""When a task's pages were handed to it, decoded and stored, for the service's spans."""

import time
from collections import deque
from collections.abc import Sequence

from penstock.model.page import Page
from penstock.model.position import PartitionId, Place, Position
from penstock.native.batch import Batch, backend_of, last_place
from penstock.ops.reporter import Reporter
from penstock.ops.reports import SpansReport, StoredBatch

# Nanoseconds between two pages that are noted, and how many wait to be stored at most: of others
# there is no span. (A batch's five spans cost the service 0.25 ms.)
EVERY, WAITING = 200_000_000, 1_000


class PageTimes:
    """Of one write. One thread notes pages, another reports them."""

    def __init__(self, board: Reporter) -> None:
        self._board = board
        self._noted = 0  # when a page was noted last
        # The backend, the last change, and what is known already.
        self._waiting: deque[tuple[str, Place, StoredBatch]] = deque(maxlen=WAITING)

    def decoded(self, page: Page, batches: Sequence[Batch], handed: int) -> None:
        """The page was decoded now; `handed` is nanoseconds since 1970 UTC."""
        kept = [batch for batch in batches if batch.num_rows]
        if not kept or handed - self._noted < EVERY:
            return
        self._noted = handed
        backend, place = backend_of(kept[-1]), last_place(kept[-1])
        known = StoredBatch(
            partition=page.partition,
            place=str(place),
            changes=sum(batch.num_rows for batch in kept),
            captured=page.captured_at * 1000,
            handed=handed,
            decoded=time.time_ns(),
            stored=0,
        )
        self._waiting.append((backend, place, known))

    def stored(self, position: Position) -> None:
        """Everything up to there is stored now."""
        now, found = time.time_ns(), dict[str, list[StoredBatch]]()
        for _ in range(len(self._waiting)):
            backend, place, known = item = self._waiting.popleft()
            up_to = position.get(PartitionId(known.partition))
            if up_to is None or place > up_to:
                self._waiting.append(item)
            else:
                found.setdefault(backend, []).append(known._replace(stored=now))
        for backend, batches in found.items():
            self._board.report(backend, SpansReport(stored=[list(each) for each in batches]))
