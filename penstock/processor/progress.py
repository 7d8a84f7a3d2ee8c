"""How far a partition is processed, and saving it in the partition's lease.

What is saved is acknowledged at the source, and nothing else is: the keeper's rule.
"""

from collections.abc import Sequence
from contextlib import suppress

from penstock.config import Checkpoint
from penstock.model.errors import LeaseLost, SettingsError, Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place
from penstock.process.backoff import Clock
from penstock.processor.settings import Processing
from penstock.reading.host_leases import HostLeases
from penstock.reading.keeper import Acknowledger, Saver, Store
from penstock.reading.reader import PartitionReader

# Seconds: after a save that failed; between two looks whether an idle source has moved on.
AGAIN, IDLE = 1.0, 10.0
# Errors of the store: a refusal may pass as well, as it does for renewals. The lease expires
# otherwise.
STORE_ERRORS = (Unavailable, SettingsError)


class LeasedPosition(Store):
    """The saved bookmark of one partition, in its lease; a `keeper.Store`."""

    def __init__(
        self, bookmark: Bookmark, leases: HostLeases, processing: Processing, clock: Clock
    ) -> None:
        self.saved = bookmark
        self.error = ""  # why the last save failed
        self._leases = leases
        self._policy = processing.checkpoint
        self.clock = clock  # monotonic seconds
        self._changes = 0  # since the last save
        self._saved_at = self._not_before = clock()

    @property
    def is_automatic(self) -> bool:
        """Whether saving is not the observer's business."""
        return self._policy != "explicit"

    def is_due(self, changes: int) -> bool:
        policy, now = self._policy, self.clock()
        self._changes += changes
        if isinstance(policy, Checkpoint):
            late = now - self._saved_at >= policy.interval
            is_due = late or self._changes >= policy.event_count
        else:
            is_due = policy == "batch"
        return is_due and now >= self._not_before

    def save(self, newest: Bookmarks, *, force: bool = False) -> Bookmarks:
        fresh = {name: each for name, each in newest.items() if each != self.saved}
        for name, bookmark in fresh.items():
            try:
                self._leases.checkpoint(name, bookmark)
            except STORE_ERRORS as error:
                self.error = str(error)
                self._not_before = self.clock() + AGAIN
                if force:
                    raise
                return {}
            self.saved = bookmark
        self.error = ""
        self._changes = 0
        self._saved_at = self.clock()
        return fresh


class PartitionProgress(Acknowledger):
    """How far one partition is, for one thread at a time; an `Acknowledger` for its keeper."""

    def __init__(self, reader: PartitionReader, position: LeasedPosition) -> None:
        # All up to there is done.
        self.processed = position.saved.place
        # Up to where the observer may checkpoint: the end of the batch that it is given.
        self.reach = position.saved.place
        self.events = self.pages = 0  # changes and batches that were processed since the start
        self.refused: Exception | None = None  # what a checkpoint of the observer raised
        self.moved_at = position.clock()  # when a batch was processed last
        self.position = position
        self._reader = reader
        self._saver = Saver(position, self)
        self._looked_at = position.clock()  # when an idle source was asked for its mark last

    @property
    def is_saved(self) -> bool:
        return self.processed == self.position.saved.place

    def done(self, place: Place, changes: int) -> None:
        """A batch was processed. Saves if it is time to."""
        self.processed = self.reach = place
        self.events += changes
        self.pages += 1
        self.moved_at = self.position.clock()
        self._save_if_due(changes)

    def idle(self) -> None:
        """Saves what is processed if due, and now and then the mark of an idle source."""
        now = self.position.clock()
        if not self.is_saved:
            self._save_if_due()
        elif now - self._looked_at >= IDLE:
            self._looked_at = now
            self.save()

    def _save_if_due(self, changes: int = 0) -> None:
        with suppress(LeaseLost):  # the next turn finds it
            self._saver.save(self._durable(self.processed), changes)

    def save(self, *, has_ended: bool = False) -> bool:
        """Saves what is processed, with the end if it `has_ended`; whether it is saved."""
        durable = self._durable(self.processed)
        if has_ended:
            durable = {self._reader.partition: self._reader.last_bookmark(self.processed)}
        try:
            self._saver.save(durable, 0, force=True)
        except (LeaseLost, *STORE_ERRORS):
            return False  # the next turn finds a lost lease
        return True

    def checkpoint(self) -> None:
        """Saves all that the observer was given. Raises LeaseLost, Unavailable, SettingsError."""
        try:
            self._saver.save(self._durable(self.reach), 0, force=True)
        except STORE_ERRORS as error:
            self.refused = error
            raise
        self.processed = self.reach  # an observer may checkpoint a batch, and then raise

    def _durable(self, place: Place | None) -> Bookmarks:
        return {self._reader.partition: self.position.saved._replace(place=place)}

    # The keeper asks these.

    @property
    def open_partitions(self) -> Sequence[PartitionId]:
        return [self._reader.partition]

    def bookmark(self, partition: PartitionId, place: Place | None) -> Bookmark | None:
        return self._reader.bookmark(place)

    def acknowledge(self, saved: Bookmarks) -> None:
        for bookmark in saved.values():
            if bookmark.place is not None:
                self._reader.durable(bookmark.place)
            self._reader.acknowledge(bookmark)
