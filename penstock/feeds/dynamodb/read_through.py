"""Up to when a shard has been read, in times of the source, as pure code.

No answer of DynamoDB Streams says that a shard has nothing more: an empty page proves nothing about
the next one. A shard counts as read up to now when a record that is seconds old was read, or after
a minute of reads without a record, and as long as nothing comes after that. Only the lag and what
is judged to be lost follow from it; where reading goes on never does.
"""

# Seconds: how old a record is that was read at the tip; and how many reads without a record, for
# how long, are evidence of it.
FRESH = 10.0
EMPTY_READS, EMPTY_SECONDS = 60, 60.0


class ReadThrough:
    """Of one walk through a shard. `through`: everything that was created before it was read; 0 if
    that is not known. Times are the server's, in seconds."""

    def __init__(self, through: float, now: float) -> None:
        self.through = through
        self.is_at_tip = through > now - FRESH
        self._empty = 0
        self._empty_since = 0.0

    def found(self, created: float, now: float) -> None:
        """Records were read; the last was created then."""
        self.through = created
        self.is_at_tip = created > now - FRESH
        self._empty = 0

    def found_nothing(self, now: float) -> None:
        """A page was empty."""
        if not self._empty:
            self._empty_since = now
        self._empty += 1
        if self._empty >= EMPTY_READS and now - self._empty_since >= EMPTY_SECONDS:
            self.is_at_tip = True
        if self.is_at_tip:
            self.through = max(self.through, now)
