"""Which kind of owner the rows of a name have: a pipeline, or a processor.

Both store a place for each partition under `NAME/BACKEND/`. If they shared rows, each would go on
at the other's places, and changes would reach only one of them.
"""

import time
from collections.abc import Iterable
from typing import Literal

from penstock.leases import Lease, LeaseStore
from penstock.leases.holder import KIND, LeaseHolder
from penstock.leases.owned import OwnedRows
from penstock.model.errors import SettingsError
from penstock.model.formats import verify_format
from penstock.process.backoff import Clock

Kind = Literal["pipeline", "processor"]

_HINT = "give one of them another `name`, or a positions store of its own"


def kind_of(row: Lease) -> str:
    """ "" for a row of an earlier version that either kind may have written: a plain pipeline left
    its name in its rows, and none of a lease's terms."""
    found = str(row.properties.get(KIND, ""))
    return found or ("pipeline" if row.owner and "since" not in row.properties else "")


def verify_kind(rows: Iterable[Lease], kind: Kind) -> None:
    """Raises SettingsError for a row of another kind, or of a later version."""
    for row in rows:
        verify_format(row.properties.get("format"), f"the position {row.name!r}")
        found = kind_of(row)
        if found not in ("", kind):
            raise SettingsError(
                f"{row.name!r} is the position of a {found}, and this is a {kind}",
                "leases.name-taken",
                hint=_HINT,
            )


class NameCheck:
    """Whether a processor may begin under its name: all rows of the name are of its kind, and no
    pipeline of the name runs. A running pipeline renews `owner:NAME` every second."""

    def __init__(self, store: LeaseStore, name: str, *, clock: Clock = time.monotonic) -> None:
        self._store, self._name = store, name
        self._holder = LeaseHolder(OwnedRows(store, f"owner:{name}"), clock=clock)
        self._revision = ""  # of the pipeline's lease, at the last call

    def attempt(self) -> bool:
        """Whether it may; False: not known yet, call again after a second. Raises SettingsError,
        Unavailable."""
        verify_kind(self._store.list(f"{self._name}/"), "processor")
        row = self._store.get(f"owner:{self._name}")
        if row is None or kind_of(row) == "processor" or self._holder.free([row]):
            return True
        before, self._revision = self._revision, row.revision
        if before not in ("", row.revision):
            raise SettingsError(
                f"a pipeline with the name {self._name!r} runs", "leases.name-taken", hint=_HINT
            )
        return False
