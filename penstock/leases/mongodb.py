"""Leases in a MongoDB collection, for pipelines that have a replica set and no other database.

A row is a document; the comparison is in the filter of its update, which MongoDB carries out as one
step. A revision is a random number that every write draws anew, so that no revision ever comes
again. What `put` returned is in the journals of a majority.
"""

import secrets
from builtins import list as List  # `list` is a method here
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from dns.exception import DNSException
from dns.resolver import NXDOMAIN
from pymongo import MongoClient, ReadPreference, UpdateOne, WriteConcern, errors
from pymongo.collection import Collection
from pymongo.read_concern import ReadConcern

from penstock.leases import Lease, changed
from penstock.leases.encoding import number_of, properties_of, text_of
from penstock.leases.stores import ClientStore
from penstock.model.errors import LeaseLost, SettingsError, Unavailable, is_caused_by

_Json = dict[str, Any]

_HINT = "write mongodb://USER:PASSWORD@HOST:27017/DATABASE"
# The collection: no feed follows one of this name, because each save would be a change.
NAME = "penstock_lease"
_PATIENCE: _Json = {
    "serverSelectionTimeoutMS": 5000,
    "connectTimeoutMS": 5000,
    "socketTimeoutMS": 15000,
    "maxPoolSize": 4,
    "appname": "penstock leases",
}
_DUPLICATE = 11000
# Codes of a login that is refused. One that worked is refused while LDAP or the like is away.
_LOGIN = (18, 8000)
# Server's codes that the operator must act on; all others pass: an election, a restart, a lock.
_OPERATOR = {
    13: "give the role readWrite on the database of `positions`",
    18: "correct the user and password in `positions`",
    20: "positions need a replica set",
    73: "correct the name of the database",
    8000: "correct the user and password in `positions`",
}


class MongoStore(ClientStore[MongoClient[_Json]]):
    """A `LeaseStore` in one collection, made on demand. Threads and processes may share it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._database = database_of(url)
        self._has_worked = False

    def __repr__(self) -> str:
        return f"MongoStore({self._database}.{NAME})"

    def get(self, name: str) -> Lease | None:
        with self._rows() as rows:
            found = rows.find_one({"_id": name})
        return None if found is None else _lease(found)

    def list(self, prefix: str) -> List[Lease]:
        with self._rows() as rows:
            found = list(rows.find({"_id": {"$gte": prefix, "$lt": f"{prefix}\U0010ffff"}}))
        return sorted(map(_lease, found), key=lambda lease: lease.name)

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        """See LeaseStore; each row is written by itself, all in one request, and one more tells
        which were lost, if any were. After Unavailable any of them may have been written."""
        fresh = {lease.name: (lease, _document(lease)) for lease in reversed(leases)}
        changes = [
            UpdateOne(
                {"_id": name, "revision": number_of(lease.revision)},
                {"$set": document},
                upsert=not lease.revision,
            )
            for name, (lease, document) in fresh.items()
        ]
        with self._rows() as rows:
            if not changes or _all_written(rows, changes):
                written = set(fresh)
            else:
                found = rows.find({"_id": {"$in": list(fresh)}}, {"revision": 1})
                ours = {name: document["revision"] for name, (_, document) in fresh.items()}
                written = {each["_id"] for each in found if each["revision"] == ours[each["_id"]]}
        return [
            replace(lease, revision=str(fresh[lease.name][1]["revision"]))
            if lease.name in written and fresh[lease.name][0] is lease
            else changed(lease.name)
            for lease in leases
        ]

    def delete(self, lease: Lease) -> None:
        with self._rows() as rows:
            found = rows.delete_one({"_id": lease.name, "revision": number_of(lease.revision)})
            if found.deleted_count or (not lease.revision and self.get(lease.name) is None):
                return
        raise changed(lease.name)

    @contextmanager
    def _rows(self) -> Iterator[Collection[_Json]]:
        with _translated(self._has_worked):
            yield self._client()[self._database].get_collection(
                NAME,
                write_concern=WriteConcern("majority", j=True, wtimeout=10_000),
                read_concern=ReadConcern("majority"),
                # Whatever the URL prefers: an older row would read as one that was taken over.
                read_preference=ReadPreference.PRIMARY,
            )
        self._has_worked = True

    def _connect(self) -> MongoClient[_Json]:
        return MongoClient(self._url, **_PATIENCE)


def database_of(url: str) -> str:
    """The database that a URL names; raises SettingsError."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise SettingsError("the positions URL can't be read", "leases", hint=_HINT) from None
    database = parts.path.strip("/")
    if not parts.netloc.rpartition("@")[2] or not database:
        raise SettingsError("the positions URL names no database of MongoDB", "leases", hint=_HINT)
    if any(each.startswith("collection=") for each in parts.query.split("&")):
        raise SettingsError(
            f"positions in MongoDB are always in the collection {NAME}, which no feed follows",
            "leases",
            hint="leave out `collection` and choose a DATABASE; rename a collection that is there",
        )
    return database


def _all_written(rows: Collection[_Json], changes: List[UpdateOne]) -> bool:
    try:
        result = rows.bulk_write(changes, ordered=False)
    except errors.BulkWriteError as error:
        failed = error.details.get("writeErrors", [])
        if error.details.get("writeConcernErrors") or any(
            each.get("code") != _DUPLICATE for each in failed
        ):
            raise
        return False
    return result.matched_count + result.upserted_count == len(changes)


def _document(lease: Lease) -> _Json:
    return {
        "owner": lease.owner,
        "continuation": lease.continuation,
        "properties": text_of(lease.properties),
        "revision": 1 + secrets.randbits(62),
    }


def _lease(document: _Json) -> Lease:
    try:
        return Lease(
            name=document["_id"],
            owner=str(document["owner"]),
            continuation=str(document["continuation"]),
            properties=properties_of(str(document.get("properties", ""))),
            revision=str(int(document["revision"])),
        )
    except (KeyError, ValueError, TypeError):
        raise SettingsError(
            f"the document {document.get('_id')!r} of the collection is no lease",
            "leases",
            hint="give the positions a collection of their own",
        ) from None


@contextmanager
def _translated(has_worked: bool) -> Iterator[None]:
    try:
        yield
    except (errors.ConfigurationError, errors.InvalidURI, ValueError) as error:
        if is_caused_by(error, DNSException, OSError) and not is_caused_by(error, NXDOMAIN):
            raise Unavailable(
                "positions collection: the name in `positions` is not resolved now",
                "leases",
                hint="penstock retries by itself",
            ) from error
        # Not its text: it may quote the URL.
        raise SettingsError(
            "MongoDB does not accept the positions URL", "leases", hint=_HINT
        ) from None
    except errors.PyMongoError as error:
        code = getattr(error, "code", None)
        message = str(error).split(", full error", 1)[0].split(" (configured timeouts", 1)[0]
        if code in _OPERATOR and not (has_worked and code in _LOGIN):
            hint = _OPERATOR[code]
            raise SettingsError(f"positions collection: {message}", "leases", hint=hint) from error
        raise Unavailable(
            f"positions collection: {message}",
            "leases",
            hint="is MongoDB running, and are address, user and password in `positions` right?",
        ) from error
