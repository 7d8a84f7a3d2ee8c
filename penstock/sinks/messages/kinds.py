"""Kinds of messages: what rows have in common that determines a subject and shared fields.

A batch has few kinds, and the same ones as the batch before it: what a kind determines is made
once and kept. The partition is no part of a kind, because there may be thousands of them.
"""

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.native.batch import KIND
from penstock.nats.subjects import escape
from penstock.sinks.messages.layout import PenstockColumns
from penstock.sinks.rows.alike import Alike
from penstock.sinks.rows.columns import Columns, Numbers, Values, address
from penstock.sinks.subject import Template

_OF_NO_ROW = frozenset({
    "MESSAGE", "TRUNCATE", "SUSPEND", "DROP", "RENAME", "DROP_DATABASE", "INVALIDATE",
})  # fmt: skip
TABLE_SCHEMA = b"Penstock-Table-Schema"
_CACHED = 10_000
_KEPT_SETS = 1000


class MessageKind(NamedTuple):
    """What all changes of a kind have in common. `subject` is what it determines of the subject:
    the parts before, between and after the partitions' names. `table` is equal for kinds of one
    table, and None where changes belong to none. `schema_line` is the header that names the version
    of the table's schema; empty where there is none."""

    subject: tuple[bytes, ...]
    fields: bytes
    table: tuple[Any, ...] | None
    values: Mapping[str, Any]
    schema_line: bytes


class KindSet(NamedTuple):
    """Kinds that rows may have. `subjects` are the first parts of the kinds' subjects, then the
    second ones, and so on. `schema_lines`: None where all are empty."""

    kinds: tuple[MessageKind, ...]
    subjects: tuple[Values, ...]
    fields: Values
    schema_lines: Values | None


class RowKinds:
    """The kinds of some rows."""

    __slots__ = ("_columns", "_numbers", "set")

    def __init__(self, found: KindSet, columns: Columns, numbers: Numbers | None) -> None:
        """`numbers` None: as the kernel found them with the columns."""
        self.set, self._columns, self._numbers = found, columns, numbers

    @property
    def numbers(self) -> Numbers:
        """Which kind each row has."""
        if self._numbers is None:
            known, rows = self._columns.kinds, self._columns.rows
            assert known is not None
            memory: Any = (ctypes.c_int32 * rows).from_address(known.of)
            self._numbers = np.frombuffer(memory, np.int32).copy()
        return self._numbers

    @property
    def at(self) -> int:
        """Where the numbers are, for as long as this is held."""
        if self._numbers is None and (known := self._columns.kinds) is not None:
            return int(known.of)
        return address(self.numbers)


class KindFinder:
    """Finds the kinds of batches. `subjects` are the parts of the subject that a kind determines,
    `columnar` has the bytes of the fields that its changes share."""

    def __init__(self, subjects: Sequence[Template], columnar: PenstockColumns | None) -> None:
        self._subjects, self._columnar = subjects, columnar
        self._known: dict[tuple[Any, ...], MessageKind] = {}
        self._sets: dict[bytes, KindSet] = {}
        self._alike = Alike()

    def of(self, columns: Columns) -> RowKinds:
        """The kinds of a batch's rows, numbered in the order of their first rows."""
        if (known := columns.kinds) is not None and (found := self._sets.get(known.key)):
            return RowKinds(found, columns, None)
        key = b""
        if columns.native is None:
            numbers, firsts = _plain_kinds(columns)
        else:
            numbers, firsts, key = self._alike.of(columns.native, columns.rows)
        found = self._sets.get(key) if key else None
        if found is None:
            batch = columns.batch
            assert batch is not None
            keys = zip(*(batch.column(name).take(firsts).to_pylist() for name in KIND), strict=True)
            found = self._described(keys)
            if key:
                self._sets = {} if len(self._sets) >= _KEPT_SETS else self._sets
                self._sets[key] = found
        return RowKinds(found, columns, numbers)

    def _described(self, keys: Iterable[tuple[Any, ...]]) -> KindSet:
        kinds = tuple(self._known.get(key) or self._new(key) for key in keys)
        parts = zip(*(kind.subject for kind in kinds), strict=True)
        fields = Values([kind.fields for kind in kinds])
        return KindSet(kinds, tuple(map(Values, parts)), fields, schema_lines(kinds))

    def _new(self, key: tuple[Any, ...]) -> MessageKind:
        if len(self._known) >= _CACHED:
            self._known.clear()
        values = dict(zip(KIND, key, strict=True))
        # A document database's namespace is its database; it has no schema, and no relation ids.
        values["schema"] = None if is_document(values) else values["namespace"]
        subject = tuple(part.render(values).encode() for part in self._subjects)
        table = values["database"], values["namespace"], values["collection"]
        # A logical message is in no table, and stands for a moment of all of them; what concerns a
        # whole table concerns all of its hash partitions.
        version = values["schema_version"]
        is_moment = values["operation"] in _OF_NO_ROW or values["collection"] is None
        self._known[key] = kind = MessageKind(
            subject,
            b"" if self._columnar is None else self._columnar.shared(values),
            None if is_moment else table,
            values,
            # What a transform may have made of it must not end the header.
            b"\r\n%b: %b" % (TABLE_SCHEMA, escape(version).encode()) if version else b"",
        )
        return kind


def schema_lines(kinds: Sequence[MessageKind]) -> Values | None:
    """The headers of kinds that name schemas; None where all are empty."""
    lines = [kind.schema_line for kind in kinds]
    return Values(lines) if any(lines) else None


def is_document(values: Mapping[str, Any]) -> bool:
    """Whether a kind is of a source without schemas: a document database."""
    return values["relation_id"] is None and values["namespace"] == values["database"]


def _plain_kinds(columns: Columns) -> tuple[Numbers, Numbers]:
    """The same without the kernel. Few of the columns differ from row to row."""
    assert columns.batch is not None
    encoded = [columns.batch.column(name).dictionary_encode("encode") for name in KIND]
    varying = [one.indices.to_pylist() for one in encoded if len(one.dictionary) > 1]
    if not varying:
        return np.zeros(columns.rows, np.int32), np.zeros(1, np.int32)
    numbers: dict[tuple[int, ...], int] = {}
    kinds = [numbers.setdefault(key, len(numbers)) for key in zip(*varying, strict=True)]
    firsts = np.unique(kinds, return_index=True)[1]
    return np.array(kinds, np.int32), firsts.astype(np.int32)
