"""How far a partition is processed, and saving it in the partition's lease.

What is saved is acknowledged at the source, and nothing else is.
"""

from collections.abc import Callable

from penstock.config import Checkpoint
from penstock.model.errors import LeaseLost, SettingsError, Unavailable
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.processor.settings import Processing
from penstock.reading.host_leases import HostLeases
from penstock.reading.reader import PartitionReader

# Seconds: after a save that failed; between two looks whether an idle source has moved on.
AGAIN, IDLE = 1.0, 10.0
# Of the store: a refusal may pass as well, as it does for renewals. The lease expires otherwise.
STORE_ERRORS = (Unavailable, SettingsError)


class PartitionProgress:
    """Of one partition, for one thread at a time. `processed`: all up to there is done. `reach`: up
    to where the observer may checkpoint: the end of the batch that it is given. `events`, `pages`:
    changes and batches that were processed since the start. `error`: why the last save failed."""

    def __init__(
        self,
        reader: PartitionReader,
        bookmark: Bookmark,
        leases: HostLeases,
        processing: Processing,
        clock: Callable[[], float],
    ) -> None:
        self.processed = self.reach = bookmark.place
        self.events = self.pages = 0
        self.moved_at = clock()
        self.error = ""
        self._reader, self._leases, self._clock = reader, leases, clock
        self._policy = processing.checkpoint
        self._saved = bookmark
        self._changes = 0  # since the last save
        self._saved_at = self._looked_at = clock()
        self._not_before = clock()

    @property
    def place(self) -> Place | None:
        """What is saved."""
        return self._saved.place

    @property
    def saved(self) -> Bookmark:
        """What is saved."""
        return self._saved

    @property
    def is_automatic(self) -> bool:
        """Whether saving is not the observer's business."""
        return self._policy != "explicit"

    def done(self, place: Place, changes: int) -> None:
        """A batch was processed. Saves if it is time to."""
        self.processed = self.reach = place
        self.events += changes
        self.pages += 1
        self._changes += changes
        self.moved_at = self._clock()
        self._save_if_due()

    def _save_if_due(self) -> None:
        policy, now = self._policy, self._clock()
        if isinstance(policy, Checkpoint):
            late = now - self._saved_at >= policy.interval
            is_due = late or self._changes >= policy.event_count
        else:
            is_due = policy == "batch"
        if is_due and now >= self._not_before:
            self.save()

    def idle(self) -> None:
        """There is nothing to process. Saves what is processed if it is time to, and now and then
        the mark of a source that has moved on."""
        now = self._clock()
        if self.processed != self._saved.place:
            self._save_if_due()
        elif now - self._looked_at >= IDLE:
            self._looked_at = now
            self.save()

    def save(self) -> bool:
        """Saves what is processed; whether it is saved. A store that is away delays it."""
        try:
            self.checkpoint(self.processed)
        except LeaseLost:
            return False  # the next turn finds it
        except STORE_ERRORS as error:
            self.error = str(error)
            self._not_before = self._clock() + AGAIN
            return False
        return True

    def checkpoint(self, place: Place | None) -> None:
        """Saves that all up to `place` is done. Raises LeaseLost, Unavailable."""
        bookmark = self._reader.bookmark(place)
        if bookmark is not None and bookmark != self._saved:
            self._write(bookmark)
        self.error = ""
        if place is not None:
            self._reader.durable(place)
        if place == self.reach:  # an observer may say so of a batch, and then raise
            self.processed = place
        if place == self.processed:
            self._changes = 0
        self._saved_at = self._clock()

    def save_end(self) -> bool:
        """Saves that the partition has ended, and all of it is done; whether that is saved."""
        try:
            self._write(self._reader.last_bookmark(self.processed))
        except (LeaseLost, *STORE_ERRORS) as error:
            self.error = str(error)
            return False
        return True

    @property
    def is_saved(self) -> bool:
        """Whether what was processed is saved."""
        return self.processed == self._saved.place

    def _write(self, bookmark: Bookmark) -> None:
        self._leases.checkpoint(PartitionId(self._reader.partition), bookmark)
        self._saved = bookmark
        self._reader.acknowledge(bookmark)
