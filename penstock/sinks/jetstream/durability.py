"""Whether the servers that hold the stream sync each message: then what is acknowledged is on disk,
and many messages are cheaper as one atomic batch than as a chain.

A nats-server acknowledges what its kernel has, and syncs every two minutes, unless its
configuration says `sync_interval: always`. No client can read that; only the monitoring endpoint
has it (`/varz`, 2.10 and later). So we ask there, or take the operator's word.
"""

import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit

import orjson

from penstock.model.errors import SettingsError
from penstock.nats.connection import version_of
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.jetstream.stream import TargetStream

# What `/varz` of a monitoring URL says; raises OSError or ValueError.
Ask = Callable[[str, float], Mapping[str, Any]]
_SHOWS_SYNC = (2, 10)  # earlier ones do not have it, and cannot sync always
_REMEDY = (
    "put `sync_interval: always` into the jetstream block of every server of the stream, and name "
    "their monitoring endpoints in the sink's `monitoring`; or, if you know that they sync, set "
    "`assume_synced: true`"
)


def varz(url: str, timeout: float) -> Mapping[str, Any]:
    """Asks a monitoring endpoint; see `Ask`."""
    with urllib.request.urlopen(f"{url.rstrip('/')}/varz", timeout=timeout) as answer:  # noqa: S310
        document: Mapping[str, Any] = orjson.loads(answer.read())
    return document


def synced(settings: JetStreamSettings, stream: TargetStream, server: str, ask: Ask = varz) -> str:
    """Why an acknowledgement of this stream means that the message is on disk.

    `server` is the name of the one we are connected to, which holds the stream unless the stream
    names another. Raises SettingsError when it does not mean that, or when that is not known.
    """
    if stream.config.get("storage") == "memory":
        raise SettingsError(
            f"durability fsync: the stream {stream.name} is kept in memory",
            "jetstream.stream-in-memory",
            hint="make a stream with file storage",
        )
    if stream.config.get("persist_mode") == "async":
        raise SettingsError(
            f"durability fsync: the stream {stream.name} acknowledges before it writes "
            "(persist_mode async)",
            "jetstream.stream-async",
            hint="make a stream with the default persist_mode",
        )
    if settings.assume_synced:
        return "the operator says that the servers sync (assume_synced)"
    if not settings.monitoring:
        raise SettingsError(
            f"durability fsync: it is not known whether the servers of {stream.name} sync",
            "jetstream.sync-unknown",
            hint=_REMEDY,
        )
    answers = _answers(settings.monitoring_urls, settings.timeout, ask)
    return _judged(stream.servers or (server,), *answers)


def _answers(
    urls: Sequence[str], timeout: float, ask: Ask
) -> tuple[dict[str, bool | None], list[str]]:
    """Server name -> whether it syncs always (None: too old to tell); and who did not answer."""
    found: dict[str, bool | None] = {}
    silent = []
    for url in urls:
        try:
            answer = ask(url, timeout)
            config = (answer.get("jetstream") or {}).get("config") or {}
            old = version_of(str(answer.get("version", "0"))) < _SHOWS_SYNC
            found[str(answer["server_name"])] = None if old else bool(config.get("sync_always"))
        except (OSError, URLError, ValueError, KeyError):
            silent.append(urlsplit(url).netloc.rpartition("@")[2])
    return found, silent


def _judged(holders: Sequence[str], found: Mapping[str, bool | None], silent: Sequence[str]) -> str:
    for name in holders:
        if name in found and not found[name]:
            says = "does not sync always" if found[name] is False else "is too old to tell"
            raise SettingsError(
                f"durability fsync: the server {name} {says}", "jetstream", hint=_REMEDY
            )
    verified = [name for name in holders if name in found]
    # One of three may be down: it acknowledges nothing, and what two synced is safe.
    if 2 * len(verified) <= len(holders):
        missing = ", ".join(name for name in holders if name not in found)
        raise SettingsError(
            f"durability fsync: {missing} could not be asked"
            + (f" (no answer from {', '.join(silent)})" if silent else ""),
            "jetstream",
            hint=_REMEDY,
        )
    return f"{', '.join(verified)} of {len(holders)} sync{'s' * (len(verified) == 1)} always"
