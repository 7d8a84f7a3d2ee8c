"""A batch of changes as the kernel made it of a page."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

from penstock.model.change import COLUMNS, IMAGES, Images
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.native import ARROW_ARRAY, NativeColumn

_SURVEYED = (
    "backend", "partition", "cursor", "ordinal", *IMAGES, "event_id", "mark", "committed_at",
)  # fmt: skip
SURVEY_SLOTS = (ctypes.c_int32 * len(_SURVEYED))(*map(COLUMNS.index, _SURVEYED))

# What rows have in common that are of one kind; the integers among them have 8 bytes.
KIND = (
    "backend", "tenant", "database", "namespace", "collection", "operation", "relation_id",
    "schema_version",
)  # fmt: skip
_INTEGERS = ("relation_id",)
_Several = ctypes.c_int32 * len(KIND)
KIND_SLOTS = _Several(*map(COLUMNS.index, KIND))
KIND_WIDTHS = _Several(*(8 if name in _INTEGERS else 0 for name in KIND))

# Texts of a survey.
LAST_ID, MARK = 4, 5


class NativeSurvey(ctypes.Structure):
    """`struct survey`; its texts are valid as long as its batch."""

    _fields_ = (
        ("simple", ctypes.c_int32), ("first", ctypes.c_int32), ("last", ctypes.c_int32),
        ("is_committed", ctypes.c_int32), ("weight", ctypes.c_int64), ("size", ctypes.c_int64),
        ("committed_at", ctypes.c_int64), ("sizes", ctypes.c_int64 * 6),
        ("texts", ctypes.c_void_p * 6),
    )  # fmt: skip

    def text(self, number: int) -> bytes:
        """0 to 3: backend, partition, first and last cursor; LAST_ID and MARK are of the last row,
        which may have no mark: b""."""
        at = self.texts[number]
        return ctypes.string_at(at, self.sizes[number]) if at else b""


class NativeKinds(ctypes.Structure):
    """`struct kinds`: `count` kinds, numbered in the order of their first rows; valid as long as
    its batch."""

    _fields_ = (
        ("count", ctypes.c_int64), ("key_size", ctypes.c_int64), ("of", ctypes.c_void_p),
        ("counts", ctypes.c_void_p), ("at", ctypes.c_void_p),
    )  # fmt: skip

    @property
    def key(self) -> bytes:
        """The values of KIND of all kinds, as `Alike` has them; empty where they are too many."""
        return ctypes.string_at(self.at, self.key_size)

    @property
    def sizes(self) -> list[int]:
        """How many rows each has."""
        return list((ctypes.c_int32 * self.count).from_address(self.counts))


class _Changes(ctypes.Structure):
    """`struct changes`."""

    _fields_ = (
        ("array", ctypes.c_byte * ARROW_ARRAY), ("survey", NativeSurvey), ("kinds", NativeKinds),
        ("columns", NativeColumn * (2 * len(COLUMNS))),
    )  # fmt: skip


class NativeBatch:
    """The changes of a page, of which there is one at least, in order.

    What only C reads of them needs no Arrow: `batch` makes the record batch when it is asked for
    first. `columns`, `survey` and `kinds` are valid as long as this is. Used by one thread at a
    time.
    """

    __slots__ = (
        "_batch", "_made", "_release", "columns", "first", "images", "kinds", "last", "partition",
        "rows", "schema", "survey",
    )  # fmt: skip

    def __init__(
        self, functions: Any, schema: pa.Schema, images: Images, partition: PartitionId
    ) -> None:
        self._batch: pa.RecordBatch | None = None
        self._made = _Changes()
        self._release: Callable[[Any], None] = functions.penstock_rows_release
        self.columns: Any = self._made.columns  # of the change, then the items of its list
        self.survey: NativeSurvey = self._made.survey
        self.kinds: NativeKinds = self._made.kinds
        self.schema, self.images, self.partition = schema, images, partition
        self.rows = 0
        self.first = self.last = Place("", 0)

    def fill(self, functions: Any, page: int) -> bool:
        """Takes the rows of the kernel's page. False without memory."""
        made = ctypes.byref(self._made)
        if functions.penstock_rows_changes(
            page, SURVEY_SLOTS, KIND_SLOTS, KIND_WIDTHS, len(KIND), made
        ):
            return False
        survey = self.survey
        self.rows = self.columns[0].length
        self.first = Place(survey.text(2).decode(), survey.first)
        self.last = Place(survey.text(3).decode(), survey.last)
        return True

    def __del__(self) -> None:
        self._release(ctypes.byref(self._made))  # nothing where it is Arrow's by now

    def __len__(self) -> int:
        return self.rows

    @property
    def num_rows(self) -> int:
        return self.rows

    def get_total_buffer_size(self) -> int:
        """As a record batch has it, about."""
        size: int = self.survey.size
        return size

    @property
    def batch(self) -> pa.RecordBatch:
        """The same as Arrow has it, without a copy."""
        if self._batch is None:
            at = ctypes.addressof(self._made)
            self._batch = pa.RecordBatch._import_from_c(at, self.schema)
        return self._batch

    def column(self, name: str) -> Any:
        return self.batch.column(name)


Batch = pa.RecordBatch | NativeBatch


@runtime_checkable
class NativeDecoder(Protocol):
    """A decoder whose kernel's batches need not become Arrow's."""

    def decode_natively(self, page: Page) -> Sequence[Batch]:
        """The same as `decode`."""


@runtime_checkable
class TakesNative(Protocol):
    """A sink whose `write` takes batches of both kinds."""

    takes_native: Literal[True]


def arrow(changes: Batch) -> pa.RecordBatch:
    """Changes as a record batch."""
    return changes.batch if isinstance(changes, NativeBatch) else changes


def backend_of(changes: Batch) -> str:
    """The backend of changes that are all of one, of which there is one at least."""
    if isinstance(changes, NativeBatch):
        return changes.survey.text(0).decode()
    found: str = changes.column("backend")[-1].as_py()
    return found


def last_place(changes: Batch) -> Place:
    """The place of the last of some changes."""
    if isinstance(changes, NativeBatch):
        return changes.last
    return Place(*(changes.column(name)[-1].as_py() for name in ("cursor", "ordinal")))


def last_committed(changes: Batch) -> int | None:
    """When the last of some changes was committed, in microseconds since 1970 UTC."""
    if isinstance(changes, NativeBatch):
        return changes.survey.committed_at if changes.survey.is_committed else None
    found: Any = changes.column("committed_at")[-1]  # `as_py` would make a datetime
    committed: int | None = found.value
    return committed


def declare(functions: Any) -> None:
    """What is called here of the library."""
    pointer = ctypes.c_void_p
    functions.penstock_rows_release.argtypes = [pointer]
    functions.penstock_rows_release.restype = None
    functions.penstock_rows_changes.argtypes = [
        pointer, pointer, pointer, pointer, ctypes.c_int32, pointer,
    ]  # fmt: skip
    functions.penstock_rows_changes.restype = ctypes.c_int32
