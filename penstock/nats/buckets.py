"""Key-value buckets: streams whose last message under a subject is the value of a key.

The same buckets as every other NATS client's (ADR-8): `nats kv get BUCKET KEY` reads them. A value
is as durable as the server's streams are: a server syncs its disk by its `sync_interval`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import ormsgpack

from penstock.model.errors import SettingsError, Unavailable
from penstock.nats.api import WRONG_SEQUENCE, ApiError, JetStream, Stored, error_of
from penstock.nats.connection import Connection
from penstock.nats.consumers import Delivered, PullConsumer
from penstock.nats.protocol import HEADERS_START, Msg, status_of

_OPERATION = "KV-Operation"

# What a key may have besides dots, which separate its parts.
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9/_-]")


def key_of(parts: Sequence[str]) -> str:
    """A key of several names: what a key may not have is =XX for each byte of its UTF-8."""
    return ".".join(
        _NOT_PLAIN.sub(lambda m: "".join(f"={byte:02X}" for byte in m[0].encode()), part) or "="
        for part in parts
    )


class WrongRevision(Exception):
    """The key has another revision than the one that was expected."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A revision of a key. Revisions rise over the whole bucket. `value` None: it was deleted."""

    key: str
    revision: int
    value: bytes | None


class Bucket:
    """One bucket, over an open connection; owned by one thread. Everything raises Unavailable,
    SettingsError. Keys are of letters, digits and `-/_=.`. With a `prefix` of subjects, `name` is
    the stream's: such a bucket is ours alone, other clients do not know it as one."""

    def __init__(self, connection: Connection, name: str, *, prefix: str = "") -> None:
        self._connection, self._api = connection, JetStream(connection)
        self.name = name
        self.stream = name if prefix else f"KV_{name}"
        self._prefix = prefix or f"$KV.{name}."
        # As clients of NATS do: leaf nodes and imports pass no plain $KV.
        elsewhere = not prefix and connection.is_elsewhere
        self._path = f"{connection.api}." if elsewhere else ""  # before the subject of a write

    def create(self, *, history: int = 1, replicas: int = 1, storage: str = "file") -> None:
        """Makes the bucket, unless it exists; one that exists stays as it is."""
        if self._api.stream(self.stream) is not None:
            return
        self._api.create({
            "name": self.stream,
            "subjects": [self._subject(">")],
            "max_msgs_per_subject": history,
            "discard": "new",
            "storage": storage,
            "num_replicas": replicas,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            "max_age": 0,
        })  # fmt: skip

    def get(self, key: str) -> KeyValue | None:
        """The key's value now, as the leader of the bucket has it; None if there is none."""
        found = self.last(key)
        return found if found is not None and found.value is not None else None

    def last(self, key: str) -> KeyValue | None:
        """The key's last revision, which may be that of its deletion."""
        found = self._api.last(self.stream, self._subject(key))
        return None if found is None else self._entry(found)

    def lasts(self, keys: Sequence[str]) -> list[KeyValue | None]:
        """As `last`, of several keys: asked together."""
        found = self._api.last_of_each(self.stream, list(map(self._subject, keys)), direct=False)
        return [None if each is None else self._entry(each) for each in found]

    def put(self, key: str, value: bytes) -> int:
        """Sets the value, whatever it was; returns the new revision."""
        return self._revision(self._write([(key, value, None)])[0])

    def insert(self, key: str, value: bytes) -> int:
        """Sets the value of a key that has none; raises WrongRevision if it has one."""
        return self._revision(self.swap([(key, value, 0)])[0])

    def delete(self, key: str, revision: int | None = None) -> int:
        """Deletes the value; history stays. Raises WrongRevision if the key's last is not this."""
        return self._revision(self._write([(key, None, revision)])[0])

    def swap(self, changes: Sequence[tuple[str, bytes, int]]) -> list[int | WrongRevision]:
        """Sets many keys (key, value, expected revision; 0: has no value), sent together, each by
        itself: the new revision, or the error of this key. When it raises, any may be set."""
        found = self._write(changes)
        for number, (key, value, revision) in enumerate(changes):
            # A key that was deleted has no value, and the revision of its deletion.
            if isinstance(found[number], WrongRevision) and not revision:
                last = self.last(key)
                if last is not None and last.value is None:
                    found[number] = self._write([(key, value, last.revision)])[0]
        return found

    def entries(self) -> list[KeyValue]:
        """The values of all keys, in the order of their revisions."""
        found = self._consumer(">", deliver_policy="last_per_subject").rest()
        return [each for each in map(self._entry, found) if each.value is not None]

    def scan(self, keys: str = ">") -> Iterator[KeyValue]:
        """As `entries`, of few keys: a question for each, and no consumer, which users with
        narrow permissions may not make."""
        found = self._api.each(self.stream, self._subject(keys))
        return (each for each in map(self._entry, found) if each.value is not None)

    def history(self, key: str) -> list[KeyValue]:
        """The revisions of a key that the bucket keeps, the oldest first."""
        return [self._entry(one) for one in self._consumer(key, deliver_policy="all").rest()]

    def _subject(self, key: str) -> str:
        return self._prefix + key

    def _entry(self, found: Stored | Delivered) -> KeyValue:
        deleted = found.headers.get(_OPERATION) in ("DEL", "PURGE")
        key = found.subject.removeprefix(self._subject(""))
        return KeyValue(key, found.sequence, None if deleted else found.payload)

    @staticmethod
    def _revision(found: "int | WrongRevision") -> int:
        if isinstance(found, WrongRevision):
            raise found
        return found

    def _write(
        self, changes: Sequence[tuple[str, bytes | None, int | None]]
    ) -> list[int | WrongRevision]:
        asked = [
            (self._path + self._subject(key), value or b"", _headers(value, revision))
            for key, value, revision in changes
        ]
        answers = self._connection.requests(asked)
        return [self._stored(key, each) for (key, *_), each in zip(changes, answers, strict=True)]

    def _stored(self, key: str, answer: Msg) -> int | WrongRevision:
        if status_of(answer.headers) == 503:
            if self._api.stream(self.stream) is None:
                raise SettingsError(
                    f"there is no bucket {self.name}", "nats", hint=f"nats kv add {self.name}"
                )
            raise Unavailable(f"the bucket {self.name} does not answer now", "nats")
        document = orjson.loads(answer.payload)
        if failure := document.get("error"):
            error = ApiError.of(failure)
            if error.code in WRONG_SEQUENCE:
                return WrongRevision(f"{key} in the bucket {self.name}: {error}")
            raise error_of(error, f"{key} in the bucket {self.name}")
        return int(document["seq"])

    def _consumer(self, keys: str, **config: Any) -> PullConsumer:
        config["filter_subject"] = self._subject(keys)
        return PullConsumer(self._connection, self.stream, config, hint=f"nats kv add {self.name}")


def _headers(value: bytes | None, revision: int | None) -> bytes:
    lines = HEADERS_START
    if value is None:
        lines += b"KV-Operation: DEL\r\n"
    if revision is not None:
        lines += b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % revision
    return lines + b"\r\n"


def read_map(value: bytes | None) -> dict[str, Any]:
    """A value that is a map, in JSON or MessagePack; empty for any other."""
    try:
        load: Any = orjson.loads if value and value[:1] == b"{" else ormsgpack.unpackb
        found = load(value or b"")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
