"""Log sequence numbers as text that sorts as the numbers do: the cursors of PostgreSQL.

Another history of the log uses the same numbers again: its cursors begin with an era (`wire/eras`).
"""

from penstock.model.errors import Malformed
from penstock.wire.eras import era_of


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
        raise Malformed(f"{text!r} is not an LSN (such as 0/16B3748)", "wire") from None


def message_cursor(lsn: int) -> str:
    """The cursor of a non-transactional logical message, whose `lsn` is the end of its record. The
    next record starts there, and may be the commit of a transaction that has the same LSN for its
    cursor: so the message's cursor is one byte earlier, inside its own record."""
    return format_lsn(lsn - 1)


def lsn_of(cursor: str) -> int:
    """A cursor's LSN in its era; raises Malformed."""
    return parse_lsn(cursor.removeprefix(era_of(cursor)))
