"""What the server says of itself: its clock, how far its oplog goes back, and its collections."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bson.timestamp import Timestamp

from penstock.errors import SettingsError
from penstock.feeds.mongodb.connect import Client, address, connect
from penstock.feeds.mongodb.failures import translating
from penstock.feeds.mongodb.settings import ALL, MongoSettings

_OWN = ("admin", "config", "local")


@contextmanager
def asking(settings: MongoSettings) -> Iterator[Client]:
    """A client for a few questions."""
    with translating(f"asking {address(settings)}"), connect(settings) as client:
        yield client


def time_of(reply: Mapping[str, Any]) -> int:
    """The newest operation that the answering server knows: seconds * 2**32 + counter."""
    found = reply.get("operationTime")
    return found.time << 32 | found.inc if isinstance(found, Timestamp) else 0


def operation_time(settings: MongoSettings) -> int:
    """The same, asked for now. Raises Unavailable, SettingsError."""
    with asking(settings) as client:
        return time_of(client.admin.command("ping"))


def oldest_in(client: Client) -> int:
    """The cluster time of the oldest entry of the oplog; 0 if there is none."""
    entry = client.local["oplog.rs"].find_one({}, {"ts": 1}, sort=[("$natural", 1)])
    found = None if entry is None else entry["ts"]
    return found.time << 32 | found.inc if isinstance(found, Timestamp) else 0


def oldest(settings: MongoSettings) -> int:
    """The beginning. Raises Unavailable, and SettingsError where it cannot be known."""
    with asking(settings) as client:
        if client.admin.command("hello").get("msg") == "isdbgrid":
            raise SettingsError(
                "the oplogs of a sharded cluster cannot be read through mongos",
                hint="begin at a time that they reach back to",
            )
        found = oldest_in(client)
    if not found:
        raise SettingsError(
            "there is no oplog: change streams need a replica set", hint="initiate a replica set"
        )
    return found


def collections(settings: MongoSettings) -> Sequence[tuple[str, str]]:
    """(database, collection), those that are followed and exist, by name."""
    with asking(settings) as client:
        names = (
            [each for each in client.list_database_names() if each not in _OWN]
            if settings.database == ALL
            else [settings.database]
        )
        pairs = [
            (name, each["name"])
            for name in names
            for each in client[name].list_collections()
            if each.get("type", "collection")
            == "collection"  # views and time series have no stream
            and not each["name"].startswith("system.")
        ]
    return sorted(pair for pair in pairs if _is_followed(settings, pair))


def _is_followed(settings: MongoSettings, pair: tuple[str, str]) -> bool:
    name = ".".join(pair) if settings.database == ALL else pair[1]
    if settings.collections:
        return name in settings.collections
    return name not in settings.exclude_collections
