"""What was committed, as PostgreSQL itself tells it over SQL: a slot of its own, decoded here.

Shares no code with the product, so that an error cannot hide by being in both.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.servers import Database

_NUMBERS = {20, 21, 23}  # type oids: bigint, smallint, int


@dataclass(frozen=True, slots=True)
class Fact:
    """One committed change: its event id, and what its message must say."""

    id: str
    operation: str
    data: dict[str, Any] | None  # the new row; None for DELETE


class Truth:
    """The changes of one database, in commit order, from the moment this is made."""

    def __init__(self, database: Database, publication: str = "pub") -> None:
        self._database, self._publication = database, publication
        self._slot = f"truth_{database.name}"
        self._past = 0  # commit LSN; after a crash the slot tells again what it told
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self._slot,))

    def read(self) -> list[Fact]:
        """What was committed since the last call. Nobody may write meanwhile, or the rest comes
        with the next call."""
        rows = self._database.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', %s)",
            (self._slot, self._publication),
        )
        facts: list[Fact] = []
        columns: dict[int, list[tuple[str, int]]] = {}
        commit = ordinal = 0
        for (data,) in rows:
            kind, body = data[:1], data[1:]
            if kind == b"B":
                commit, ordinal = struct.unpack_from(">Q", body)[0], 0
            elif kind == b"R":
                columns[struct.unpack_from(">I", body)[0]] = _columns(body[4:])
            elif kind in b"IUD":
                if commit > self._past:
                    name = f"default:{commit >> 32:08X}/{commit & 0xFFFFFFFF:08X}:{ordinal}"
                    facts.append(_fact(name, kind, body, columns))
                ordinal += 1
        self._past = max(self._past, commit)
        return facts


def assert_same(facts: Sequence[Fact], bodies: Sequence[dict[str, Any]]) -> None:
    """These messages are these changes: every one, once, in order, as it was, and no other."""
    expected, got = [fact.id for fact in facts], [body["event_id"] for body in bodies]
    missing, invented = set(expected) - set(got), set(got) - set(expected)
    assert not missing, f"{len(missing)} missing, such as {min(missing)}"
    assert not invented, f"{len(invented)} invented, such as {min(invented)}"
    assert got == expected, "repeated, or out of order"
    for fact, body in zip(facts, bodies, strict=True):
        assert (body["operation"], body["data"]) == (fact.operation, fact.data), fact.id


def _columns(body: bytes) -> list[tuple[str, int]]:
    """(name, type oid) of each column of a Relation message."""
    _, _, body = body.split(b"\0", 2)
    count = struct.unpack_from(">H", body, 1)[0]
    body, found = body[3:], []
    for _ in range(count):
        name, body = body[1:].split(b"\0", 1)
        found.append((name.decode(), struct.unpack_from(">I", body)[0]))
        body = body[8:]
    return found


def _fact(name: str, kind: bytes, body: bytes, columns: dict[int, list[tuple[str, int]]]) -> Fact:
    of = columns[struct.unpack_from(">I", body)[0]]
    at, image, data = 4, b"", None
    while image != b"N" and at < len(body):
        image = body[at : at + 1]
        data, at = _tuple(body, at + 1, of)
    operation = {b"I": "INSERT", b"U": "UPDATE", b"D": "DELETE"}[kind]
    return Fact(name, operation, data if image == b"N" else None)


def _tuple(body: bytes, at: int, columns: list[tuple[str, int]]) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    at += 2
    for name, oid in columns:
        kind, at = body[at : at + 1], at + 1
        if kind == b"t":
            size = struct.unpack_from(">I", body, at)[0]
            text = body[at + 4 : at + 4 + size].decode()
            found[name] = int(text) if oid in _NUMBERS else text
            at += 4 + size
        elif kind == b"n":
            found[name] = None
    return found, at
