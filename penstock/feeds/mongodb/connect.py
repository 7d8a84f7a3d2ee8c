"""A client for one purpose: its connection, and the one by which the driver watches the server."""

import math
from collections.abc import Sequence
from typing import Any

from pymongo import MongoClient
from pymongo.server_description import ServerDescription
from pymongo.uri_parser import parse_uri

from penstock.feeds.mongodb.failures import translating
from penstock.feeds.mongodb.settings import ALL, MongoSettings

Client = MongoClient[dict[str, Any]]


class OneServer:
    """Keeps a client at the nearest server of those that it first saw, while that can be used: a
    cursor is known at its server only, and raw commands are not bound to it."""

    _chosen: Any = None

    def __call__(self, servers: Sequence[ServerDescription]) -> Sequence[ServerDescription]:
        found = [each for each in servers if each.address == self._chosen]
        found = found or sorted(servers, key=_distance)[:1]
        self._chosen = found[0].address if found else self._chosen
        return found


def _distance(server: ServerDescription) -> float:
    return math.inf if server.round_trip_time is None else server.round_trip_time


def connect(settings: MongoSettings, patience: float | None = None) -> Client:
    """A client that connects when it is first used. `patience`: seconds that an answer may take, if
    not `silence`. Raises SettingsError for a URL that it cannot use."""
    with translating(f"connecting to {address(settings)}"):
        return MongoClient(
            settings.connection.get_secret_value(),
            appname=f"penstock {settings.name}"[:128],
            maxPoolSize=1,
            serverMonitoringMode="poll",
            server_selector=OneServer(),
            connectTimeoutMS=_milliseconds(settings.connect_timeout),
            serverSelectionTimeoutMS=_milliseconds(settings.connect_timeout),
            socketTimeoutMS=_milliseconds(patience or settings.silence),
            # In the URL it would bound a `getMore` while the stream is idle.
            timeoutMS=None,
        )


def scope(settings: MongoSettings) -> str:
    """The database whose change stream it is."""
    return "admin" if settings.database == ALL else settings.database


def address(settings: MongoSettings) -> str:
    """The servers as the URL names them, without the login."""
    url = settings.connection.get_secret_value()
    if url.startswith("mongodb+srv://"):
        return url.removeprefix("mongodb+srv://").rpartition("@")[2].partition("/")[0]
    return ",".join(f"{host}:{port}" for host, port in parse_uri(url, warn=False)["nodelist"])


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))
