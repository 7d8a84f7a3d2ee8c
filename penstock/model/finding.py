"""What a preflight check finds: plain values that the CLI prints and tests compare."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of a preflight check: what was looked at, how it is, and what to do about it.

    `warning` works but could be better; `error` could not run, or could lose data.
    """

    level: Level
    subject: str
    message: str
    remedy: str = ""


def finding(level: Level, subject: str, message: str, remedy: str = "") -> Finding:
    """One finding, in a line."""
    return Finding(level=level, subject=subject, message=message, remedy=remedy)
