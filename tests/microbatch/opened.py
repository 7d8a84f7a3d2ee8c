"""Open micro-batches that end when a test says so."""

import threading

from penstock.microbatch.epochs import Epochs
from penstock.microbatch.open import OpenReading
from penstock.microbatch.options import SourceOptions


class Opened(OpenReading):
    """With the first epoch planned, and its page server open at `address` and `key`."""

    def __init__(self, epochs: Epochs) -> None:
        super().__init__(SourceOptions(backend="memory"), epochs, lambda: None, "memory")
        self.over = threading.Event()
        (ticket, *_) = self.parts({"epoch": "0"}, {"epoch": "1"})
        self.address, self.key = ticket.address, ticket.key

    def is_over(self) -> bool:
        """See `Pages`."""
        return super().is_over() or self.over.is_set()
