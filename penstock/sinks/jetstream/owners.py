"""Which instance of each pipeline writes to a stream: leases in a stream beside it.

Apart from the changes, as dead letters are: a message of ours in the stream itself would be the
last of a shard. It needs no permission that dead letters do not need.
"""

from builtins import list as List  # `list` is a method here
from contextlib import suppress

import orjson

from penstock.leases import Lease
from penstock.leases.nats import BucketStore, lease_of
from penstock.model.errors import PenstockError
from penstock.nats.api import JetStream
from penstock.nats.buckets import Bucket
from penstock.nats.connection import Connection
from penstock.sinks.jetstream.settings import JetStreamSettings


def owners_stream(stream: str) -> str:
    """The stream with the leases of a stream."""
    return f"{stream}_OWNERS"


def owners_subject(stream: str) -> str:
    return f"penstock.owners.{stream}.>"


def instances(api: JetStream, stream: str) -> str:
    """Which instances have a lease there, for an error; "" if that cannot be read."""
    found = []
    with suppress(PenstockError, ValueError, KeyError, TypeError):
        for row in api.each(owners_stream(stream), owners_subject(stream)):
            found.append(str(orjson.loads(row.payload)["owner"]))
    return ", ".join(filter(None, found))


class OwnersStore(BucketStore):
    """A `LeaseStore` with a row for each pipeline that writes to the stream."""

    def __init__(self, settings: JetStreamSettings) -> None:
        self._stream, self._replicas = settings.stream, settings.replicas
        super().__init__(settings)

    def list(self, prefix: str) -> List[Lease]:
        """See LeaseStore. One question for each row: consumers would need another permission."""
        with self._bucket() as bucket:
            found = [row for row in map(lease_of, bucket.scan()) if row.name.startswith(prefix)]
        return sorted(found, key=lambda row: row.name)

    def _make(self, connection: Connection) -> Bucket:
        name, subject = owners_stream(self._stream), owners_subject(self._stream)
        bucket = Bucket(connection, name, prefix=subject.removesuffix(">"))
        info = JetStream(connection).stream(self._stream)
        # As many copies as the stream has: a lease that is away keeps a standby from taking over.
        copies = int(info["config"].get("num_replicas") or 1) if info else self._replicas
        bucket.create(replicas=copies)
        return bucket
