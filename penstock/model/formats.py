"""Whether what is stored was stored by a later version, in a format that this one may misread.

Positions, ledgers, the documents in buckets, and a mirror's state: what says no format is of the
first. A version that changes one of them in a way that an earlier one must not read counts FORMAT
up, and stores it with what it changes.
"""

from typing import Any

from penstock.model.errors import SettingsError

FORMAT = 1


def verify_format(found: Any, what: str) -> None:
    """`found`: what is stored as the format, None without. Raises SettingsError for a later one."""
    if found is not None and int(found) > FORMAT:
        raise SettingsError(
            f"{what} has the format {found}, which a later version of penstock stored: this version"
            f" knows {FORMAT}",
            "model.format",
            hint="run that version, or a later one; to go back, put back a copy from before it ran",
        )
