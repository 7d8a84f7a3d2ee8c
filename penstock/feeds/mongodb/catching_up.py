"""A server that has not reached the saved position: waited for, and reported after a minute."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock.model.errors import Unavailable
from penstock.wire.changestream.events import cursor_of

_REPORTED_AFTER = 60  # seconds


class CatchingUp:
    """What is known of one backend's server. A secondary that was cut off is behind, and a server
    whose clock was set back: that is no lost history. The members of a replica set that are not cut
    off know of each operation by its time, before they have it. `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None

    def expect(self, read: int, newest: int, server: str) -> None:
        """Raises Unavailable if the `newest` cluster time that a server knows (0: it does not say)
        is before that of what was `read`."""
        if newest >= read or not newest:
            self._since = None
            return
        now = self._clock()
        self._since = now if self._since is None else self._since
        waited = int(now - self._since)
        raise Unavailable(
            f"{server} is at {cursor_of(newest)}, before the saved position {cursor_of(read)}:"
            " waiting for it" + (f" for {waited} s so far" if waited >= _REPORTED_AFTER else ""),
            hint="does this member replicate, and is its clock right?",
        )

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Feed.status`."""
        waited = 0 if self._since is None else int(self._clock() - self._since)
        if waited < _REPORTED_AFTER:
            return {}
        message = f"the server has been before the saved position for {waited} s"
        return {"state": "behind", "message": message, "at_risk": ""}
