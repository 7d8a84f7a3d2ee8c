"""What the server says of itself: its clock, its collections, which cluster it belongs to, and
whether its oplog still has what we read of it.

A resume token of an idle stream is only a time, which every cluster accepts; so marks keep the name
and id of theirs. Members that were restored from a copy of their files have the same id: then the
oplog lacks the entry of the last change that we read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from penstock.feeds.mongodb.connect import Client, address, connect
from penstock.feeds.mongodb.failures import code_of, translating
from penstock.feeds.mongodb.settings import ALL, MongoSettings
from penstock.model.errors import SettingsError

_OWN = ("admin", "config", "local")
# Codes of a read that the role does not allow: Unauthorized, and AtlasError.
_DENIED = (13, 8000)


@contextmanager
def asking(settings: MongoSettings) -> Iterator[Client]:
    with translating(f"asking {address(settings)}"), connect(settings) as client:
        yield client


def asked(client: Client, command: str) -> dict[str, Any]:
    """The answer of the server where the client reads, which needs no primary."""
    found: dict[str, Any] = client.admin.command(command, read_preference=client.read_preference)
    return found


def time_of(stamp: Any) -> int:
    """A cluster time: seconds * 2**32 + counter; 0 for what is none."""
    return stamp.time << 32 | stamp.inc if isinstance(stamp, Timestamp) else 0


def stamp_of(time: int) -> Timestamp:
    return Timestamp(time >> 32, time & 0xFFFFFFFF)


def operation_time(client: Client) -> int:
    return time_of(asked(client, "ping").get("operationTime"))


def hello_of(client: Client) -> dict[str, Any]:
    return asked(client, "hello")


def is_sharded(hello: Mapping[str, Any]) -> bool:
    """Whether it is a mongos."""
    return hello.get("msg") == "isdbgrid"


def id_namespace(hello: Mapping[str, Any]) -> str:
    """The collection that has the cluster's id."""
    return "config.version" if is_sharded(hello) else "local.system.replset"


def read_id(client: Client, hello: Mapping[str, Any]) -> str | None:
    """The cluster's id; None where the role may not read it."""
    database, _, collection = id_namespace(hello).partition(".")
    try:
        found = client[database][collection].find_one() or {}
    except OperationFailure as error:
        if error.code not in _DENIED:
            raise
        return None
    settings = found if is_sharded(hello) else found.get("settings", {})
    return str(settings.get("clusterId" if is_sharded(hello) else "replicaSetId", ""))


def identity(client: Client) -> str:
    """`SET/ID` of a replica set, `mongos/ID` of a sharded cluster; without the id where the role
    may not read it; empty for a server of its own."""
    hello = hello_of(client)
    name = "mongos" if is_sharded(hello) else hello.get("setName")
    return f"{name}/{read_id(client, hello) or ''}" if name else ""


def is_another(known: str, found: str) -> bool:
    """Whether two identities are those of different clusters, as far as both are known."""
    if not known or not found:
        return False
    (name, _, id_), (name_now, _, id_now) = known.partition("/"), found.partition("/")
    return id_ != id_now if id_ and id_now else name != name_now


def is_proven(known: str, found: str) -> bool:
    """Whether two identities are those of one cluster for certain."""
    return known == found and not found.endswith("/") and bool(found)


def completed(known: str, found: str) -> str:
    """The more complete of two identities of one cluster."""
    return found if not known or (found and not found.endswith("/")) else known


def oldest_in(client: Client) -> int:
    """The cluster time of the oldest entry of the oplog; 0 if there is none."""
    entry = client.local["oplog.rs"].find_one({}, {"ts": 1}, sort=[("$natural", 1)])
    return time_of((entry or {}).get("ts"))


def lacks(client: Client, time: int) -> bool:
    """Whether the oplog reaches back to a cluster time and has no entry of it: the history in which
    a change had that time was replaced. False where the oplog may not be read."""
    try:
        # The server finds an entry of the oplog by its `ts` without a scan.
        entry = client.local["oplog.rs"].find_one({"ts": {"$gte": stamp_of(time)}}, {"ts": 1})
        # Asked after that: entries are removed at any moment.
        return entry is not None and time_of(entry["ts"]) != time and oldest_in(client) <= time
    except OperationFailure as error:
        if error.code not in _DENIED:
            raise
        return False


def reach(settings: MongoSettings) -> tuple[int, str]:
    """The cluster time of the oldest entry of the oplog; else 0, and why. Raises Unavailable,
    SettingsError."""
    try:
        with asking(settings) as client:
            if is_sharded(hello_of(client)):
                return 0, "the oplogs of a sharded cluster cannot be read through mongos"
            found = oldest_in(client)
    except SettingsError as error:
        if error.__cause__ is None or code_of(error.__cause__) not in _DENIED:
            raise
        return 0, f"the oplog cannot be read ({error.message})"
    return found, "" if found else "there is no oplog"


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
            # Views and time series have no stream.
            if each.get("type", "collection") == "collection"
            and not each["name"].startswith("system.")
        ]
    return sorted(pair for pair in pairs if settings.takes(*pair))
