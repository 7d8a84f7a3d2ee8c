"""Log sequence numbers as text that sorts as the numbers do: the cursors of PostgreSQL.

Another history of the log (a restored backup, a promoted standby that lacked the newest changes,
another cluster) uses the same numbers again, for other changes. Its cursors therefore begin with
an era, which sorts behind every cursor of the eras before it: `00000000/016B3748`, then
`e0001-00000000/016B3748`. The first era is not written.
"""

import re

from penstock.errors import Malformed

__all__ = ["era_of", "format_lsn", "lsn_of", "message_cursor", "next_era", "parse_lsn"]

# `e` sorts behind the hexadecimal digits.
_ERA = re.compile(r"e(\d{4})-")
_LAST_ERA = 9999


def format_lsn(lsn: int) -> str:
    """0x16B3748 -> `00000000/016B3748`; PostgreSQL's pg_lsn reads the padded form as well."""
    return f"{lsn >> 32:08X}/{lsn & 0xFFFFFFFF:08X}"


def parse_lsn(text: str) -> int:
    """`0/16B3748`, padded or not, as a number; raises Malformed."""
    high, slash, low = text.partition("/")
    try:
        if not slash or len(high) > 8 or len(low) > 8:
            raise ValueError
        return int(high, 16) << 32 | int(low, 16)
    except ValueError:
        raise Malformed(f"{text!r} is not an LSN (such as 0/16B3748)") from None


def message_cursor(lsn: int) -> str:
    """The cursor of a non-transactional logical message, whose `lsn` is the end of its record.

    The next record starts there, and may be the commit of a transaction that has the same LSN for
    its cursor: so the message's cursor is one byte earlier, inside its own record.
    """
    return format_lsn(lsn - 1)


def era_of(cursor: str) -> str:
    """What a cursor has before its LSN: `` or `e0001-`."""
    found = _ERA.match(cursor)
    return found[0] if found else ""


def lsn_of(cursor: str) -> int:
    """A cursor's LSN in its era; raises Malformed."""
    return parse_lsn(cursor.removeprefix(era_of(cursor)))


def next_era(era: str) -> str:
    """The one behind it; raises Malformed after 9,999 of them."""
    number = int(era[1:-1]) + 1 if era else 1
    if number > _LAST_ERA:
        raise Malformed(f"there is no era behind {era}")
    return f"e{number:04d}-"
