"""Leases in etcd, for pipelines on several hosts that have an etcd cluster.

A row is a key under the prefix, and its revision the key's `mod_revision`: the server compares and
swaps. What `put` returned is on the disks of a majority. Every write carries an id of its own, so
that a write whose answer was lost is recognised when it is sent again.
"""

import base64
import secrets
from builtins import list as List  # `list` is a method here
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import orjson

from penstock.leases import Lease, changed
from penstock.leases.encoding import fields_of, lease_of, number_of
from penstock.leases.etcd_gateway import EtcdAddress, EtcdGateway, MaybeDone
from penstock.leases.stores import ClientStore
from penstock.model.errors import LeaseLost, SettingsError

# A transaction of etcd has at most 128 operations (--max-txn-ops) and 1.5 MiB.
_ROWS, _BYTES = 100, 512 * 1024
_PAGE = 1000
_TRIES = 3

_Json = dict[str, Any]


class EtcdStore(ClientStore[EtcdGateway]):
    """A `LeaseStore` under a prefix of keys. Threads and processes may share the prefix."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._address = EtcdAddress.parse(url)
        self._prefix = f"{self._address.prefix}/".encode()

    def __repr__(self) -> str:
        return f"EtcdStore({self._address.prefix!r})"

    def get(self, name: str) -> Lease | None:
        with self._gateway() as gateway:
            answer = gateway.read("/v3/kv/range", {"key": self._key(name)})
        found = answer.get("kvs", [])
        return self._lease(found[0]) if found else None

    def list(self, prefix: str) -> List[Lease]:
        """See LeaseStore; all rows are of one revision of the store."""
        first = self._prefix + prefix.encode()
        query: _Json = {"range_end": _text(_after(first)), "limit": _PAGE}
        rows: List[Lease] = []
        while True:
            with self._gateway() as gateway:
                answer = gateway.read("/v3/kv/range", {"key": _text(first), **query})
            found = answer.get("kvs", [])
            rows += map(self._lease, found)
            if not answer.get("more") or not found:
                return rows
            first = base64.b64decode(found[-1]["key"]) + b"\0"
            query["revision"] = answer["header"]["revision"]

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        """See LeaseStore; up to a hundred rows in each write. After Unavailable some of the writes
        may have been carried out."""
        return [found for rows in _writes(leases) for found in self._write(rows)]

    def delete(self, lease: Lease) -> None:
        key = self._key(lease.name)
        answer = self._send(
            {
                "compare": [_unchanged(key, lease.revision)],
                "success": [{"requestDeleteRange": {"key": key}}],
            },
            tries=1,  # a removal leaves no id to recognise it by
        )
        if not answer.get("succeeded"):
            raise changed(lease.name)

    def _write(self, rows: Sequence[Lease]) -> List[Lease | LeaseLost]:
        """In one transaction, each row with a comparison of its own."""
        identity = secrets.token_hex(8)
        swaps = [self._swap(row, identity) for row in rows]
        if len(swaps) == 1:
            answer = self._send(swaps[0])
            outcomes = [answer]
        else:
            answer = self._send({"success": [{"requestTxn": each} for each in swaps]})
            outcomes = [each["response_txn"] for each in answer["responses"]]
        revision = str(answer["header"]["revision"])
        return [
            self._outcome(row, outcome, revision, identity)
            for row, outcome in zip(rows, outcomes, strict=True)
        ]

    def _swap(self, lease: Lease, identity: str) -> _Json:
        key = self._key(lease.name)
        fields = {**fields_of(lease), "write": identity}
        put = {"key": key, "value": _text(orjson.dumps(fields))}
        return {
            "compare": [_unchanged(key, lease.revision)],
            "success": [{"requestPut": put}],
            "failure": [{"requestRange": {"key": key}}],
        }

    def _outcome(
        self, lease: Lease, answer: _Json, revision: str, identity: str
    ) -> Lease | LeaseLost:
        if answer.get("succeeded"):
            return replace(lease, revision=revision)
        for entry in answer["responses"][0]["response_range"].get("kvs", []):
            if _fields(entry).get("write") == identity:  # sent before, and carried out
                return replace(lease, revision=str(entry["mod_revision"]))
        return changed(lease.name)

    def _send(self, transaction: _Json, *, tries: int = _TRIES) -> _Json:
        with self._gateway() as gateway:
            for _ in range(tries - 1):
                with suppress(MaybeDone):
                    return gateway.send("/v3/kv/txn", transaction)
            return gateway.send("/v3/kv/txn", transaction)

    @contextmanager
    def _gateway(self) -> Iterator[EtcdGateway]:
        with self._lock:
            yield self._client()

    def _connect(self) -> EtcdGateway:
        return EtcdGateway(self._address)

    def _key(self, name: str) -> str:
        return _text(self._prefix + name.encode())

    def _lease(self, entry: _Json) -> Lease:
        key = base64.b64decode(entry["key"]).removeprefix(self._prefix).decode(errors="replace")
        try:
            return lease_of(key, _fields(entry), str(entry["mod_revision"]))
        except KeyError:
            raise SettingsError(
                f"the key {key!r} under the prefix is no lease",
                "leases",
                hint="give the positions a prefix of their own",
            ) from None


def _writes(leases: Sequence[Lease]) -> Iterator[Sequence[Lease]]:
    """What goes into each transaction: etcd takes a key once in each."""
    chosen: List[Lease] = []
    names: set[str] = set()
    size = 0
    for lease in leases:
        cost = 200 + 3 * len(lease.name) + len(orjson.dumps(fields_of(lease)))
        if chosen and (lease.name in names or len(chosen) == _ROWS or size + cost > _BYTES):
            yield chosen
            chosen, names, size = [], set(), 0
        chosen.append(lease)
        names.add(lease.name)
        size += cost
    if chosen:
        yield chosen


def _unchanged(key: str, revision: str) -> _Json:
    """True while the key has this revision; "" is "there is no such key"."""
    return {"key": key, "target": "MOD", "result": "EQUAL", "modRevision": str(number_of(revision))}


def _fields(entry: _Json) -> _Json:
    try:
        found = orjson.loads(base64.b64decode(entry.get("value", "")))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _after(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`. (It ends in text: never in 0xFF.)"""
    return prefix[:-1] + bytes([prefix[-1] + 1])
