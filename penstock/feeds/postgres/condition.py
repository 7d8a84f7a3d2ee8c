"""A condition that a request for a snapshot brings: SQL that is written into our statements.

The server judges what it means. Here it is only made sure that it is one expression: that it can
neither close the parentheses around it nor begin another statement.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.feeds.postgres.failures import is_wrong_statement
from penstock.model.errors import PenstockError, SettingsError

_PIECE = re.compile(r"""'[^']*'|"[^"]*"|--|/\*|[^'"]""")
# A backslash may escape a quote; `$` begins a quoted text, outside of one.
_REFUSED = {"--": "comments", "/*": "comments", ";": "semicolons", "$": "dollar signs"}
_HINT = "correct `where`: an SQL condition over the columns of this table"


def checked(where: str) -> str:
    """The condition itself. Raises SettingsError."""
    depth = end = 0
    for piece in _PIECE.finditer(where):
        if piece.start() != end:
            break  # at a quote that is not closed
        end = piece.end()
        if refused := _REFUSED.get(piece[0]):
            raise _refused(f"{refused} outside of quotes")
        if "\\" in piece[0] or "\0" in piece[0]:
            raise _refused("backslashes")
        depth += (piece[0] == "(") - (piece[0] == ")")
        if depth < 0:
            break
    if end != len(where) or depth:
        raise SettingsError(
            "the condition of the request has a quote or a parenthesis without its other one",
            hint=_HINT,
        )
    return where


@contextmanager
def blaming(where: str) -> Iterator[None]:
    """What the server finds wrong with a statement, the condition in it is to blame for: ours are
    right, and write nothing."""
    try:
        yield
    except PenstockError as error:
        writes = "in a read-only transaction" in error.message
        if not where or not (writes or is_wrong_statement(error)):
            raise
        raise SettingsError(error.message, hint=_HINT) from error


def _refused(what: str) -> SettingsError:
    return SettingsError(f"the condition of the request has {what}", hint=_HINT)
