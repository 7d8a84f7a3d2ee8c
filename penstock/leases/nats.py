"""Leases in a NATS key-value bucket, for pipelines that have a NATS server and no database.

The bucket's revisions are the leases': the server compares and swaps. A row is as durable as the
server's streams are: it syncs its disk by its `sync_interval`.
"""

import os
import re
from builtins import list as List  # `list` is a method here
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import RLock
from typing import Any
from urllib.parse import parse_qs

import orjson

from penstock.leases import Lease, changed, encoding
from penstock.model.errors import LeaseLost, PenstockError, SettingsError
from penstock.nats.buckets import Bucket, KeyValue, WrongRevision, key_of
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings

_BUCKET = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPED = re.compile(r"((?:=[0-9A-F]{2})+)")
_HINT = "write nats://user:password@host:4222/BUCKET, or .../BUCKET?replicas=3"


class BucketStore:
    """A `LeaseStore` in a bucket, which `make` makes over an open connection unless it is there.
    Threads and processes may share the bucket; threads may share the object."""

    def __init__(self, settings: NatsSettings, make: Callable[[Connection], Bucket]) -> None:
        self._settings, self._make = settings, make
        self._lock = RLock()
        self._open: tuple[int, Connection, Bucket] | None = None  # with the process that made it

    def get(self, name: str) -> Lease | None:
        """See LeaseStore."""
        with self._bucket() as bucket:
            found = bucket.get(key_of([name]))
            return None if found is None else lease_of(found)

    def list(self, prefix: str) -> List[Lease]:
        """See LeaseStore."""
        with self._bucket() as bucket:
            rows = [lease_of(entry) for entry in bucket.entries()]
        return sorted(
            (row for row in rows if row.name.startswith(prefix)), key=lambda row: row.name
        )

    def put(self, lease: Lease) -> Lease:
        """See LeaseStore."""
        (found,) = self.put_all([lease])
        if isinstance(found, LeaseLost):
            raise found
        return found

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        """See LeaseStore; each row is written by itself, all in one exchange with the server. After
        Unavailable any of them may have been written."""
        with self._bucket() as bucket:
            changes = [
                (key_of([one.name]), _value(one), encoding.number_of(one.revision))
                for one in leases
            ]
            found = bucket.swap(changes) if changes else []
        return [
            changed(lease.name)
            if isinstance(one, WrongRevision)
            else replace(lease, revision=str(one))
            for lease, one in zip(leases, found, strict=True)
        ]

    def delete(self, lease: Lease) -> None:
        """See LeaseStore."""
        with self._bucket() as bucket:
            key = key_of([lease.name])
            found = bucket.get(key)
            if found is None and not lease.revision:
                return
            if found is None or str(found.revision) != lease.revision:
                raise changed(lease.name)
            try:
                bucket.delete(key, found.revision)
            except WrongRevision:
                raise changed(lease.name) from None

    def close(self) -> None:
        """See LeaseStore."""
        with self._lock:
            opened, self._open = self._open, None
            if opened is not None and opened[0] == os.getpid():
                opened[1].close()

    @contextmanager
    def _bucket(self) -> Iterator[Bucket]:
        """The bucket over a connection of this process; one that failed is not used again."""
        with self._lock:
            try:
                yield self._connected()
            except (LeaseLost, WrongRevision):
                raise
            except BaseException:
                self.close()
                raise

    def _connected(self) -> Bucket:
        if self._open is not None and self._open[0] == os.getpid() and _is_alive(self._open[1]):
            return self._open[2]
        connection = Connection(self._settings)
        connection.open()
        try:
            bucket = self._make(connection)
        except BaseException:
            connection.close()
            raise
        self._open = os.getpid(), connection, bucket
        return bucket


class NatsStore(BucketStore):
    """A `BucketStore` of a URL; it pickles."""

    def __init__(self, url: str) -> None:
        servers, _, rest = url.rpartition("/")
        name, _, query = rest.partition("?")
        options = parse_qs(query)
        replicas = options.pop("replicas", ["1"])[-1]
        if "://" not in servers or options or not replicas.isdecimal():
            raise SettingsError("the positions URL names no bucket of a NATS server", hint=_HINT)
        if not _BUCKET.fullmatch(name):
            raise SettingsError(f"invalid bucket name {name!r}", hint=_HINT)
        self.name = name
        self._url, self._replicas = url, int(replicas)
        super().__init__(NatsSettings.model_validate({"url": servers}), self._made)

    def __reduce__(self) -> tuple[Any, ...]:
        return NatsStore, (self._url,)

    def __repr__(self) -> str:
        return f"NatsStore({self.name!r})"

    def _made(self, connection: Connection) -> Bucket:
        bucket = Bucket(connection, self.name)
        bucket.create(replicas=self._replicas)
        return bucket


def _is_alive(connection: Connection) -> bool:
    try:
        connection.check()
    except PenstockError:
        connection.close()
        return False
    return True


def _name(key: str) -> str:
    if key == "=":
        return ""
    return _ESCAPED.sub(lambda m: bytes.fromhex(m[1].replace("=", "")).decode(), key)


def _value(lease: Lease) -> bytes:
    return orjson.dumps(encoding.fields_of(lease))


def lease_of(entry: KeyValue) -> Lease:
    """Raises SettingsError for what is no lease."""
    try:
        fields = orjson.loads(entry.value or b"")
        return encoding.lease_of(_name(entry.key), fields, str(entry.revision))
    except (ValueError, KeyError, TypeError):
        raise SettingsError(
            f"the key {entry.key} of the bucket is no lease",
            hint="give the positions a bucket of their own",
        ) from None
