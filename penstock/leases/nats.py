"""Leases in a NATS key-value bucket, for pipelines that have a NATS server and no database.

The bucket's revisions are the leases': the server compares and swaps. A row is as durable as the
server's streams are: it syncs its disk by its `sync_interval`.
"""

import re
from abc import abstractmethod
from builtins import list as List  # `list` is a method here
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import parse_qs

import orjson

from penstock.leases import Lease, changed, encoding
from penstock.leases.stores import ClientStore
from penstock.model.errors import LeaseLost, PenstockError, SettingsError
from penstock.nats.buckets import Bucket, KeyValue, WrongRevision, key_of
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from penstock.process.closing import closing_on_failure

_BUCKET = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPED = re.compile(r"((?:=[0-9A-F]{2})+)")
_HINT = "write nats://user:password@host:4222/BUCKET, or .../BUCKET?replicas=3"
_WAYS = ("domain", "api_prefix", "inbox_prefix")


class Opened(NamedTuple):
    connection: Connection
    bucket: Bucket

    def close(self) -> None:
        self.connection.close()


class BucketStore(ClientStore[Opened]):
    """A `LeaseStore` in a bucket. Threads and processes may share the bucket."""

    def __init__(self, settings: NatsSettings, url: str = "") -> None:
        super().__init__(url)
        self._settings = settings

    @abstractmethod
    def _make(self, connection: Connection) -> Bucket:
        """The bucket over an open connection; it is made unless it is there."""

    def get(self, name: str) -> Lease | None:
        with self._bucket() as bucket:
            found = bucket.get(key_of([name]))
            return None if found is None else lease_of(found)

    def list(self, prefix: str) -> List[Lease]:
        with self._bucket() as bucket:
            rows = [lease_of(entry) for entry in bucket.entries()]
        return sorted(
            (row for row in rows if row.name.startswith(prefix)), key=lambda row: row.name
        )

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        """Each row by itself, in one exchange. Unavailable: any may have been written."""
        with self._bucket() as bucket:
            changes = [
                (
                    key_of([one.name]),
                    orjson.dumps(encoding.fields_of(one)),
                    encoding.number_of(one.revision),
                )
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
        with self._bucket() as bucket:
            key = key_of([lease.name])
            if (found := bucket.get(key)) is None and not lease.revision:
                return
            if found is None or str(found.revision) != lease.revision:
                raise changed(lease.name)
            try:
                bucket.delete(key, found.revision)
            except WrongRevision:
                raise changed(lease.name) from None

    @contextmanager
    def _bucket(self) -> Iterator[Bucket]:
        """The bucket over a connection of this process; one that failed is not used again."""
        with self._lock:
            try:
                yield self._client().bucket
            except (LeaseLost, WrongRevision):
                raise
            except BaseException:
                self.close()
                raise

    def _connect(self) -> Opened:
        connection = Connection(self._settings)
        connection.open()
        with closing_on_failure(connection):
            return Opened(connection, self._make(connection))

    def _is_usable(self, client: Opened) -> bool:
        try:
            client.connection.check()
        except PenstockError:
            client.close()
            return False
        return True


class NatsStore(BucketStore):
    def __init__(self, url: str) -> None:
        servers, _, rest = url.rpartition("/")
        name, _, query = rest.partition("?")
        options = parse_qs(query)
        replicas = options.pop("replicas", ["1"])[-1]
        ways = {name: options.pop(name)[-1] for name in _WAYS if name in options}
        if "://" not in servers or options or not replicas.isdecimal():
            raise SettingsError(
                "the positions URL names no bucket of a NATS server", "leases", hint=_HINT
            )
        if not _BUCKET.fullmatch(name):
            raise SettingsError(f"invalid bucket name {name!r}", "leases", hint=_HINT)
        self.name = name
        self._replicas = int(replicas)
        super().__init__(NatsSettings.model_validate({"url": servers, **ways}), url)

    def __repr__(self) -> str:
        return f"NatsStore({self.name!r})"

    def _make(self, connection: Connection) -> Bucket:
        bucket = Bucket(connection, self.name)
        bucket.create(replicas=self._replicas)
        return bucket


def _name(key: str) -> str:
    if key == "=":
        return ""
    return _ESCAPED.sub(lambda m: bytes.fromhex(m[1].replace("=", "")).decode(), key)


def lease_of(entry: KeyValue) -> Lease:
    """Raises SettingsError for what is no lease."""
    try:
        fields = orjson.loads(entry.value or b"")
        return encoding.lease_of(_name(entry.key), fields, str(entry.revision))
    except (ValueError, KeyError, TypeError):
        raise SettingsError(
            f"the key {entry.key} of the bucket is no lease",
            "leases",
            hint="give the positions a bucket of their own",
        ) from None
