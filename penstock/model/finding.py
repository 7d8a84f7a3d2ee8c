"""What a preflight check finds: plain values that the CLI prints and tests compare."""

import re
import sys
from dataclasses import dataclass
from typing import Literal

from penstock.model.errors import PenstockError, part_of

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of a preflight check: what was looked at, how it is, and what to do about it.

    `warning` works but could be better; `error` could not run, or could lose data. `code` is
    stable, and a heading of docs/reference/errors.md; "" where nothing is to be done.
    """

    level: Level
    subject: str
    message: str
    remedy: str = ""
    code: str = ""


def finding(
    level: Level, subject: str, message: str, remedy: str = "", *, code: str = ""
) -> Finding:
    """One finding, in a line. Its code begins with the part of penstock that calls this, and ends
    with `code`; the default is the subject, which then must not have a name in it."""
    part = part_of(sys._getframe(1).f_globals["__name__"])
    name = code or re.sub("[^a-z]+", "-", subject.lower())
    full = "" if level == "ok" else name if "." in name else f"{part}.{name}"
    return Finding(level=level, subject=subject, message=message, remedy=remedy, code=full)


def failed(subject: str, error: PenstockError) -> Finding:
    """An error that was met, as a finding."""
    return Finding(
        level="error", subject=subject, message=error.message, remedy=error.hint, code=error.code
    )
