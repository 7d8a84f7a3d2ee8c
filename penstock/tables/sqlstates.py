"""What an error of a PostgreSQL destination means: one table, by its SQLSTATE alone. Pure.

What is in no list is of the changes that were being written, and is isolated: triggers, domains and
functions have SQLSTATEs of their own, and an error that never passes must stop no other table.
"""

from typing import Literal

from penstock.model.errors import Rejected, Unavailable

# It passes by itself, however long that takes; it may, and is of the changes where it recurs; an
# operator must change something, and the table waits; a change is refused.
Meaning = Literal["passes", "recurs", "setup", "refused"]

# The longest prefix of the SQLSTATE wins.
_MEANINGS: dict[str, Meaning] = {
    "08": "passes",  # the connection
    "0A": "setup",  # a statement that a table of this kind does not take
    "25": "recurs",  # a transaction that has failed, or was ended by a limit
    "25006": "passes",  # a standby, until it is promoted
    "26": "setup",  # a pooler that divides a session among servers
    "28": "setup",  # a role that may not connect
    "2B": "setup",  # something depends on what is altered
    "3D": "setup",
    "3F": "setup",
    "40": "passes",  # another transaction went first
    "40002": "refused",  # a constraint
    "42": "setup",  # names, types, privileges, row-level security
    "53": "passes",  # no room, memory or connection left
    "53400": "recurs",  # a limit that this statement exceeds, as temp_file_limit
    "54011": "setup",  # too many columns
    "55": "setup",  # a table that lacks what a statement needs, as a replica identity
    "55006": "recurs",  # something in the session still uses it
    "55P03": "passes",  # somebody's lock
    "57": "passes",  # the server stops or starts
    "57014": "recurs",  # somebody cancels what takes long, or what a trigger does
    "58": "passes",  # files of the server
    "58P01": "recurs",  # a function's library is not there
    "72": "recurs",  # a snapshot that is too old
    "HV": "recurs",  # a foreign server
    "XX": "recurs",  # a defect of the server or of an extension
    "XX001": "setup",  # damaged rows
    "XX002": "setup",  # a damaged index
}


def meaning(state: str) -> Meaning:
    """What an error with this SQLSTATE means; "" where no server has answered."""
    if not state:  # the connection broke
        return "passes"
    prefixes = (state[:end] for end in range(len(state), 0, -1))
    return next((_MEANINGS[each] for each in prefixes if each in _MEANINGS), "refused")


# How often something fails while the server answers, until what is refused of it is isolated.
TRIES = 6


class Recurring(Unavailable):
    """It may pass by itself; where it recurs while the server answers, it is of the changes."""

    @property
    def of_changes(self) -> Rejected:
        """The same, once it has recurred."""
        return Rejected(self.message, "tables.recurring")
