"""Where to start reading a stream: `all`, `new`, a sequence, the last N, a time. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from penstock.model.errors import SettingsError
from penstock.model.settings import parse_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """From the first message that was stored at `time` or later."""

    time: datetime


# A number is a stream sequence, the first to read; a negative one counts from the end: -10 are
# the last ten (of the whole stream: a subject filter may leave fewer).
Start = int | Since | Literal["new"]

ALL: Start = 1
NEW: Start = "new"


def parse_start(text: str, now: datetime) -> Start:
    """`all`, `new`, `1234` (a sequence), `-10` (the last ten), `10m` (ago), or an ISO 8601 time
    (UTC unless it says otherwise); raises SettingsError."""
    if text == "all":
        return ALL
    if text == "new":
        return NEW
    if text.removeprefix("-").isdecimal() and int(text) != 0:
        return int(text)
    try:
        if seconds := parse_duration(text):
            return Since(time=now - timedelta(seconds=seconds))
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{text!r} is no place to start from",
            hint="write all, new, 1234 (a sequence), -10 (the last ten), 10m (ago) or a time",
        ) from None
    return Since(time=time if time.tzinfo else time.replace(tzinfo=UTC))
