"""Which cluster a server belongs to, and whether its oplog still has what we read of it.

A resume token of an idle stream is only a time, which every cluster accepts; so marks keep the name
and id of theirs. Members that were restored from a copy of their files have the same id: then the
oplog lacks the entry of the last change that we read.
"""

from typing import Any

from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure

from penstock.feeds.mongodb.connect import Client

# Codes of a read that the role does not allow: Unauthorized, and Atlas' own.
_DENIED = (13, 8000)


def hello_of(client: Client) -> dict[str, Any]:
    """The answer of the server where the client reads."""
    found: dict[str, Any] = client.admin.command("hello", read_preference=client.read_preference)
    return found


def is_sharded(hello: dict[str, Any]) -> bool:
    """Whether it is a mongos."""
    return hello.get("msg") == "isdbgrid"


def id_namespace(hello: dict[str, Any]) -> str:
    """The collection that has the cluster's id."""
    return "config.version" if is_sharded(hello) else "local.system.replset"


def read_id(client: Client, hello: dict[str, Any]) -> str | None:
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
    return _time(entry)


def lacks(client: Client, time: int) -> bool:
    """Whether the oplog reaches back to a cluster time and has no entry of it: the history in which
    a change had that time was replaced. False where the oplog may not be read."""
    wanted = {"ts": {"$gte": Timestamp(time >> 32, time & 0xFFFFFFFF)}}
    try:
        # The server finds an entry of the oplog by its `ts` without a scan.
        entry = client.local["oplog.rs"].find_one(wanted, {"ts": 1})
        # Asked after that: entries are removed at any moment.
        return entry is not None and _time(entry) != time and oldest_in(client) <= time
    except OperationFailure as error:
        if error.code not in _DENIED:
            raise
        return False


def _time(entry: Any) -> int:
    found = None if entry is None else entry["ts"]
    return found.time << 32 | found.inc if isinstance(found, Timestamp) else 0
