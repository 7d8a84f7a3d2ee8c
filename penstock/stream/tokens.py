"""Where to begin: what users write, and the token, to what `Feed.begin` takes."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.feeds import At
from penstock.model.errors import InvalidPosition, Malformed
from penstock.model.position import Bookmarks, bookmarks_from_json, bookmarks_to_json

_VERSION = 1
_WORDS: Mapping[str, At] = {"trim_horizon": "beginning", "latest": "now"}
_HINT = 'write "trim_horizon", "latest", a datetime with a zone, or a token of this iterator'


def token_of(backend: str, bookmarks: Bookmarks, history: str = "") -> dict[str, Any]:
    """Plain JSON, the inverse of `beginning_at`. `history`: of the source, if the feed names it."""
    token = {"version": _VERSION, "backend": backend, "partitions": bookmarks_to_json(bookmarks)}
    return token | ({"history": history} if history else {})


def history_of(position: Any) -> str:
    """The history of a token; "" if it names none, or the position is no token."""
    history = position.get("history", "") if isinstance(position, Mapping) else ""
    if not isinstance(history, str):
        raise InvalidPosition("the token is damaged: its history is no text", "stream", hint=_HINT)
    return history


def beginning_at(position: Any, backend: str, now: datetime) -> At:
    """What `Feed.begin` takes; a future time is "now". Raises InvalidPosition."""
    if isinstance(position, str):
        if (word := _WORDS.get(position.lower())) is None:
            raise InvalidPosition(f"{position[:80]!r} is not a position", "stream", hint=_HINT)
        return word
    if isinstance(position, Mapping):
        return _bookmarks(position, backend)
    if callable(getattr(position, "timestamp", None)):
        moment = _moment(position)
        return "now" if moment > now else moment
    raise InvalidPosition(f"{type(position).__name__} is not a position", "stream", hint=_HINT)


def _moment(time: Any) -> datetime:
    if getattr(time, "tzinfo", UTC) is None or (
        isinstance(time, datetime) and time.utcoffset() is None
    ):
        raise InvalidPosition(
            f"the time {time} has no zone",
            "stream",
            hint="write datetime.now(timezone.utc), or time.astimezone() for a local time",
        )
    try:
        if isinstance(time, datetime):
            return time.astimezone(UTC)
        return datetime.fromtimestamp(time.timestamp(), UTC)
    except (ValueError, OverflowError, OSError, TypeError) as error:
        raise InvalidPosition(
            f"{type(time).__name__} gives no time: {error}", "stream", hint=_HINT
        ) from error


def _bookmarks(token: Mapping[str, Any], backend: str) -> Bookmarks:
    if token.get("version") != _VERSION or not isinstance(token.get("partitions"), Mapping):
        raise InvalidPosition("the mapping is not a token of this iterator", "stream", hint=_HINT)
    if token.get("backend") != backend:
        raise InvalidPosition(
            f"the token is of the backend {token.get('backend')!r}, and this is {backend!r}",
            "stream",
            hint="begin with a token of the same source, under the same name",
        )
    try:
        return bookmarks_from_json(token["partitions"])
    except (Malformed, AttributeError, TypeError) as error:
        raise InvalidPosition(f"the token is damaged: {error}", "stream", hint=_HINT) from error
