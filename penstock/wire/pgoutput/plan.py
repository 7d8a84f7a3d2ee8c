"""The structures that cross into the native kernel (page.h has the same), and a relation as one."""

import ctypes
from collections.abc import Sequence

import orjson
import ormsgpack

from penstock.model.change import Images
from penstock.wire.pgoutput.layout import DecoderSettings, RowLayout

_ARRAY, _KEY = 1, 2
_NOT_HERE = -1


class Text(ctypes.Structure):
    """Bytes that the caller keeps alive; no address is null."""

    _fields_ = (("at", ctypes.c_char_p), ("size", ctypes.c_int64))


class _Column(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32), ("flags", ctypes.c_int32), ("delimiter", ctypes.c_int32),
        ("reserved", ctypes.c_int32), ("name", Text), ("label", Text),
    )  # fmt: skip


class Plan(ctypes.Structure):
    """How the rows of one relation are decoded; `columns` is -1 if the kernel can't."""

    _fields_ = (
        ("namespace", Text), ("name", Text), ("version", Text), ("oid", ctypes.c_int64),
        ("columns", ctypes.c_int32), ("keys", ctypes.c_int32), ("tenant", ctypes.c_int32),
        ("reserved", ctypes.c_int32), ("column", ctypes.POINTER(_Column)),
        ("key", ctypes.POINTER(ctypes.c_int32)),
    )  # fmt: skip


class Setup(ctypes.Structure):
    """What all changes of a page share."""

    _fields_ = (
        ("payload", Text), ("backend", Text), ("partition", Text), ("database", Text),
        ("tenant", Text), ("operations", ctypes.POINTER(Text)), ("captured_at", ctypes.c_int64),
        ("streamed", ctypes.c_int32), ("json", ctypes.c_int32), ("tenant_rule", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )  # fmt: skip


class Unit(ctypes.Structure):
    """A transaction; or, not `inside` of one, a message."""

    _fields_ = (
        ("lsn", ctypes.c_uint64), ("committed_at", ctypes.c_int64), ("xid", ctypes.c_uint32),
        ("inside", ctypes.c_int32),
    )  # fmt: skip


class ScanState(ctypes.Structure):
    """Where the kernel is, and what it has; see page.h."""

    _fields_ = (
        ("at", ctypes.c_int64), ("stop", ctypes.c_int64), ("commit_lsn", ctypes.c_uint64),
        ("seen", ctypes.c_int64), ("unit", ctypes.c_int32), ("ordinal", ctypes.c_int32),
        ("first", ctypes.c_int32 * 2), ("last", ctypes.c_int32 * 2), ("units", ctypes.c_int32),
        ("rows", ctypes.c_int32), ("all_units", ctypes.POINTER(Unit)),
    )  # fmt: skip


class Given(ctypes.Structure):
    """A row that Python decoded; see `batch.Row`."""

    _fields_ = (
        ("unit", ctypes.c_int32), ("relation", ctypes.c_int32), ("ordinal", ctypes.c_int32),
        ("operation", ctypes.c_int32), ("tenant", Text), ("collection", Text),
        ("document_id", Text), ("key", Text), ("before", Text), ("after", Text),
        ("unchanged", ctypes.POINTER(Text)), ("unchanged_count", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )  # fmt: skip


def text(value: str | bytes | None) -> Text:
    """As the kernel has it; the structure keeps the bytes."""
    if value is None:
        return Text(None, 0)
    data = value.encode() if isinstance(value, str) else value
    return Text(data, len(data))


def plan_of(layout: RowLayout, settings: DecoderSettings) -> Plan:
    """The plan keeps alive what it points to."""
    names = [name for name, _ in layout.columns]
    places = [names.index(name) for name in layout.key]
    tenant = settings.tenant_column
    owner = names.index(tenant) if tenant is not None and tenant in names else -1
    relation = layout.relation
    plan = Plan(
        namespace=text(relation.namespace), name=text(relation.name), version=text(layout.version),
        oid=relation.oid, columns=_NOT_HERE, keys=len(places), tenant=owner,
    )  # fmt: skip
    if _possible(layout, names, [*places, *([owner] if owner >= 0 else [])]):
        plan.columns = len(names)
        plan.column = (_Column * len(names))(
            *(_column(layout, number, settings.images) for number in range(len(names)))
        )
        plan.key = (ctypes.c_int32 * len(places))(*places)
    return plan


def _possible(layout: RowLayout, names: Sequence[str], identifying: Sequence[int]) -> bool:
    kinds = layout.kinds
    return (
        layout.fault is None
        and len(set(names)) == len(names)
        and None not in kinds
        and all((kind := kinds[place]) is not None and kind.identifies for place in identifying)
    )


def _column(layout: RowLayout, number: int, images: Images) -> _Column:
    name, kind = layout.columns[number][0], layout.kinds[number]
    assert kind is not None
    flags = (_ARRAY if kind.delimiter else 0) | (_KEY if name in layout.old_key else 0)
    label = orjson.dumps(name) + b":" if images == "json" else ormsgpack.packb(name)
    return _Column(
        kind=kind.number, flags=flags, delimiter=ord(kind.delimiter or "\0"),
        name=text(name), label=text(label),
    )  # fmt: skip
