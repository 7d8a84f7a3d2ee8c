"""What a preflight check finds: plain values that the CLI prints and tests compare."""

from dataclasses import dataclass
from typing import Literal

from penstock.model.errors import PenstockError

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
    """One finding, in a line; the code is dropped where nothing is to be done."""
    code = code if level != "ok" else ""
    return Finding(level=level, subject=subject, message=message, remedy=remedy, code=code)


def failed(subject: str, error: PenstockError) -> Finding:
    """An error that was met, as a finding."""
    return Finding(
        level="error", subject=subject, message=error.message, remedy=error.hint, code=error.code
    )
