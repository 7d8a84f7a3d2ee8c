"""Closed followings of a partition, for the marks of what they read: a change may become durable
while there is no connection, or after a new one has begun beyond it.
"""

import threading
from collections import deque

from penstock.feeds import Following
from penstock.position import Bookmark, Place

__all__ = ["PastFollowings"]


class PastFollowings:
    """Closed followings in their order, each with the last place that it read; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed: deque[tuple[Place | None, Following]] = deque()

    def add(self, read_to: Place | None, following: Following) -> None:
        """A following was closed after it had read up to `read_to`. One that read nothing new is
        not kept."""
        with self._lock:
            if not self._closed or self._closed[-1][0] != read_to:
                self._closed.append((read_to, following))

    def bookmark(self, place: Place | None) -> Bookmark | None:
        """See `Following.bookmark`; the newest that knows the place."""
        with self._lock:
            for _, following in reversed(self._closed):
                found = following.bookmark(place)
                if found is not None:
                    return found
        return None

    def durable(self, place: Place) -> None:
        """Everything up to `place` is durable: drops those that read no more. The last one stays:
        it has the bookmark of `place` until there is another connection."""
        with self._lock:
            while len(self._closed) > 1 and _reaches(place, self._closed[0][0]):
                self._closed.popleft()

    def saved(self, place: Place) -> None:
        """The bookmark of `place` is saved, and there is a connection: drops those that read no
        more."""
        with self._lock:
            while self._closed and _reaches(place, self._closed[0][0]):
                self._closed.popleft()


def _reaches(place: Place, read_to: Place | None) -> bool:
    return read_to is None or place >= read_to
