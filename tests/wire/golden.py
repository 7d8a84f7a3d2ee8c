"""What real servers sent (see capture.py), and a small planner that makes pages of it."""

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.model.page import Page
from penstock.wire.pgoutput.context import Context, TypeEntry
from penstock.wire.pgoutput.messages import (
    Begin,
    Commit,
    LogicalMessage,
    Message,
    OriginMessage,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    TwoPhase,
    Type,
    decode_message,
)
from tests.wire.pages import page_of, places

_FOLDER = Path(__file__).parent / "golden"


@dataclass(frozen=True, slots=True)
class Sent:
    """One message as it came; `streamed` if it came between Stream Start and Stream Stop."""

    raw: bytes
    streamed: bool
    message: Message


@dataclass(frozen=True, slots=True)
class Golden:
    """One file: its messages, and the facts that came with it."""

    sent: tuple[Sent, ...]
    version: int
    types: dict[int, TypeEntry]
    keys: dict[int, tuple[str, ...]]
    tables: dict[str, Any]

    def of(self, kind: type[Message]) -> list[Any]:
        return [sent.message for sent in self.sent if isinstance(sent.message, kind)]


def names(pattern: str = "*") -> list[str]:
    return sorted(file.stem for file in _FOLDER.glob(f"{pattern}.json"))


def parts(name: str) -> Iterator[bytes]:
    """The records of one .bin file."""
    data, at = (_FOLDER / f"{name}.bin").read_bytes(), 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def golden(name: str) -> Golden:
    facts = json.loads((_FOLDER / f"{name}.json").read_text())
    sent, streaming = [], False
    for raw in parts(name):
        message = decode_message(raw, streamed=streaming)
        sent.append(Sent(raw, streaming, message))
        streaming = (streaming or isinstance(message, StreamStart)) and not isinstance(
            message, StreamStop
        )
    return Golden(
        sent=tuple(sent),
        version=facts["version"],
        types={int(oid): TypeEntry(**entry) for oid, entry in facts["types"].items()},
        keys={int(oid): tuple(key) for oid, key in facts["keys"].items()},
        tables=facts["tables"],
    )


def pages(source: Golden, size: int = 10**9) -> list[Page]:
    """The committed changes in commit order, as pages of at most `size` changes."""
    found: list[Page] = []
    relations: dict[int, bytes] = {}
    streams: dict[int, list[tuple[int, bytes]]] = {}
    plain: list[bytes] = []
    xid = 0

    def context(**fields: Any) -> Context:
        return Context(
            relations=tuple(relations.values()), types=source.types, keys=source.keys, **fields
        )

    for sent in source.sent:
        match sent.message:
            case StreamStart():
                xid = sent.message.xid
            case StreamStop():
                pass
            case StreamAbort(xid=top, subxid=sub):
                streams[top] = [(own, raw) for own, raw in streams[top] if own != sub]
                if top == sub:
                    del streams[top]
            case StreamCommit(xid=top, commit_lsn=lsn, committed_at=at):
                rows = [raw for _, raw in streams.pop(top)]
                start = context(streamed=True, commit_lsn=lsn, committed_at=at, xid=top)
                found += _cut(rows, start, size)
            case _ if sent.streamed:
                own = getattr(sent.message, "xid", None)
                streams.setdefault(xid, []).append((own or xid, sent.raw))
            case _:
                plain.append(sent.raw)
                outside = isinstance(sent.message, LogicalMessage) and not (
                    sent.message.transactional
                )
                if isinstance(sent.message, Commit) or outside:
                    found += _cut(plain, context(), size)
                    _remember(plain, relations)
                    plain = []
        if sent.streamed and isinstance(sent.message, Relation):
            relations[sent.message.oid] = sent.raw[:1] + sent.raw[5:]
    return found


def _remember(messages: Sequence[bytes], relations: dict[int, bytes]) -> None:
    for raw in messages:
        message = decode_message(raw)
        if isinstance(message, Relation):
            relations[message.oid] = raw


def _cut(messages: Sequence[bytes], context: Context, size: int) -> Iterator[Page]:
    """Pages of `size` changes; each starts in the middle of what the one before left open."""
    piece: list[bytes] = []
    count = 0
    for raw in messages:
        piece.append(raw)
        count += len(places([raw], Context(streamed=context.streamed)))
        if count >= size:
            yield page_of(piece, context=context)
            context = after(piece, context)
            piece, count = [], 0
    if places(piece, context):
        yield page_of(piece, context=context)


def after(messages: Sequence[bytes], context: Context) -> Context:
    """The context that what follows `messages` starts in."""
    relations = {decode_message(raw).oid: raw for raw in context.relations}  # type: ignore[union-attr]
    lsn, at, xid, ordinal = (
        context.commit_lsn, context.committed_at, context.xid, context.ordinal,
    )  # fmt: skip
    for raw in messages:
        match decode_message(raw, streamed=context.streamed):
            case Begin() as begin:
                lsn, at, xid, ordinal = begin.final_lsn, begin.committed_at, begin.xid, 0
            case Commit():
                lsn = at = xid = ordinal = 0
            case Relation() as relation:
                relations[relation.oid] = raw[:1] + raw[5:] if context.streamed else raw
            case OriginMessage() | Type() | TwoPhase():
                pass
            case _:
                changes = places([raw], Context(streamed=context.streamed, commit_lsn=1))
                ordinal += sum(place.cursor == "00000000/00000001" for place in changes)
    return Context(
        streamed=context.streamed, commit_lsn=lsn, committed_at=at, xid=xid, ordinal=ordinal,
        relations=tuple(relations.values()), types=context.types, keys=context.keys,
    )  # fmt: skip
