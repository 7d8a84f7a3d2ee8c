"""One page's payload, message by message, into rows: the decoder's loop."""

import struct
from collections.abc import Callable
from typing import Any, assert_never

from penstock.model.errors import Malformed
from penstock.wire.pgoutput.batch import FILTERED, NO_RELATION, Constants
from penstock.wire.pgoutput.context import HEARTBEAT_PREFIX, Context
from penstock.wire.pgoutput.frames import from_pg_time
from penstock.wire.pgoutput.images import Pack
from penstock.wire.pgoutput.layout import RowLayout
from penstock.wire.pgoutput.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OriginMessage,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Type,
    Update,
    decode_message,
)
from penstock.wire.pgoutput.poison import Poison, data_frame
from penstock.wire.pgoutput.rows import BROKEN, NO_COLUMNS, Diagnosis, explain, read_tuple
from penstock.wire.pgoutput.values.binary import as_base64

# A row -> its tenant.
Tenant = Callable[[dict[str, Any]], str | None]
# A raw Relation message (without a streamed xid) -> its layout.
Resolve = Callable[[bytes], RowLayout]

# CopyData `d`, its length, XLogData `w`, 24 bytes of LSNs and time, then the message: its tag, and
# the first uint32 after it (after the xid when streamed).
_FRAME = struct.Struct(">BIB24xBI")
_STREAMED_FRAME = struct.Struct(">BIB24xB4xI")
_MESSAGE = 30
_KEEPALIVE_LENGTH = 22
# What decode_message reads more slowly: transactions of one row have one of each for a row.
_BEGIN_BODY = struct.Struct(">QqI").unpack_from
_BEGIN_LENGTH = _MESSAGE - 1 + 21
_COMMIT_BODY = struct.Struct(">xQ").unpack_from
_COMMIT_LENGTH = _MESSAGE - 1 + 26
# So that no fixed-size read at the payload's end runs off it.
PADDING = bytes(64)

_COPY_DATA, _XLOG_DATA, _KEEPALIVE = b"dwk"
_INSERT, _UPDATE, _DELETE, _BEGIN, _COMMIT = b"IUDBC"
_KEY, _OLD, _NEW = b"KON"


class Scan:
    """The state of reading one page. `rows` are tuples shaped like `batch.Row`.

    With `poison`, a change that can't be read becomes an ERROR row; without, it is Malformed.
    """

    def __init__(
        self,
        payload: bytes,
        context: Context,
        *,
        resolve: Resolve,
        tenant: Tenant | None,
        pack: Pack,
        text_images: bool,
        poison: Poison | None = None,
    ) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.constants = Constants()
        self._data = payload + PADDING
        self._streamed = context.streamed
        # From a frame's start to its row's first tuple.
        self._body = (_STREAMED_FRAME if self._streamed else _FRAME).size
        self._resolve = resolve
        self._tenant = tenant
        self._pack = pack
        self._text_images = text_images
        self._poison = poison
        self._layouts: dict[int, tuple[int, RowLayout]] = {}  # the last of each relation
        self._unit = -1  # outside of a transaction
        self._commit_lsn = 0  # of the transaction that `_unit` is; the end must repeat it
        self._ordinal = 0  # of the next change of the transaction
        for raw in context.relations:
            self._announce(raw)
        if context.commit_lsn:
            self._enter(context.commit_lsn, context.xid, context.committed_at, context.ordinal)

    def run(self) -> None:
        """Fills `rows` and `constants`; raises Malformed."""
        data, body, end = self._data, self._body, len(self._data) - len(PADDING)
        frame = (_STREAMED_FRAME if self._streamed else _FRAME).unpack_from
        at = 0
        while at < end:
            copy, length, kind, tag, oid = frame(data, at)
            stop = at + 1 + length
            if copy != _COPY_DATA or stop > end:
                raise Malformed(f"byte {at} of a payload does not start a whole CopyData message")
            if kind == _XLOG_DATA and length >= _MESSAGE:
                if tag == _INSERT:
                    self._new("INSERT", at + body, stop, oid)
                elif tag == _UPDATE and data[at + body] == _NEW:
                    self._new("UPDATE", at + body, stop, oid)
                elif tag == _UPDATE:
                    self._update(at + body, stop, oid)
                elif tag == _DELETE:
                    self._delete(at + body, stop, oid)
                elif tag == _BEGIN and length == _BEGIN_LENGTH:
                    lsn, time, xid = _BEGIN_BODY(data, at + _MESSAGE + 1)
                    self._begin(lsn, xid, from_pg_time(time))
                elif tag == _COMMIT and length == _COMMIT_LENGTH:
                    self._commit(_COMMIT_BODY(data, at + _MESSAGE + 1)[0])
                else:
                    self._control(data[at + _MESSAGE : stop])
            elif kind != _KEEPALIVE or length != _KEEPALIVE_LENGTH:
                raise Malformed(f"byte {at} of a payload holds no replication message")
            at = stop

    def _new(self, operation: str, at: int, stop: int, oid: int) -> None:
        """A row that came without its old one."""
        index, layout = self._layout(oid)
        if index == FILTERED:
            return self._filtered()
        try:
            end, row, unchanged = read_tuple(self._data, at, _NEW, layout.columns)
            if end != stop or layout.fault is not None or (unchanged and operation == "INSERT"):
                raise ValueError
            key, document_id = layout.identify(row)
            self.rows.append((
                self._unit, index, self._ordinal, operation, self._owner(row), None, document_id,
                key, None, self._pack(row), unchanged,
            ))  # fmt: skip
        except BROKEN:
            self._broken(index, at, stop, layout)
        self._ordinal += 1
        return None

    def _update(self, at: int, stop: int, oid: int) -> None:
        index, layout = self._layout(oid)
        if index == FILTERED:
            return self._filtered()
        try:
            middle, old = self._old(at, layout)
            end, row, unchanged = read_tuple(self._data, middle, _NEW, layout.columns)
            if end != stop or layout.fault is not None:
                raise ValueError
            key, document_id = layout.identify(row, old)
            whole = {**old, **row} if unchanged else row
            self.rows.append((
                self._unit, index, self._ordinal, "UPDATE", self._owner(whole), None, document_id,
                key, self._pack(old), self._pack(row), unchanged,
            ))  # fmt: skip
        except BROKEN:
            self._broken(index, at, stop, layout)
        self._ordinal += 1
        return None

    def _delete(self, at: int, stop: int, oid: int) -> None:
        index, layout = self._layout(oid)
        if index == FILTERED:
            return self._filtered()
        try:
            end, old = self._old(at, layout)
            if end != stop or layout.fault is not None:
                raise ValueError
            key, document_id = layout.identify(old)
            self.rows.append((
                self._unit, index, self._ordinal, "DELETE", self._owner(old), None, document_id,
                key, self._pack(old), None, NO_COLUMNS,
            ))  # fmt: skip
        except BROKEN:
            self._broken(index, at, stop, layout)
        self._ordinal += 1
        return None

    def _old(self, at: int, layout: RowLayout) -> tuple[int, dict[str, Any]]:
        """An old row: all of it (O), or its replica identity (K), which is null elsewhere."""
        tag = self._data[at]
        if tag not in (_KEY, _OLD):
            raise ValueError
        at, old, _ = read_tuple(self._data, at, tag, layout.columns)
        if tag == _KEY:
            old = {name: value for name, value in old.items() if name in layout.old_key}
        return at, old

    def _owner(self, row: dict[str, Any]) -> str | None:
        return self._tenant(row) if self._tenant else None

    def _layout(self, oid: int) -> tuple[int, RowLayout]:
        if self._unit < 0:
            raise Malformed("a change comes outside of a transaction")
        try:
            return self._layouts[oid]
        except KeyError:
            raise Malformed(f"relation {oid} was not announced") from None

    def _filtered(self) -> None:
        """An ordinal of a filtered row: ordinals count before the filter."""
        self.rows.append((self._unit, FILTERED, self._ordinal, *_NOTHING))
        self._ordinal += 1

    def _explain(self, at: int, stop: int, layout: RowLayout) -> Diagnosis:
        start = at - self._body + _MESSAGE
        try:
            message = decode_message(self._data[start:stop], streamed=self._streamed)
        except Malformed as error:
            return Diagnosis("broken-row", error)
        return explain(message, layout)

    def _broken(self, index: int, at: int, stop: int, layout: RowLayout) -> None:
        """The next row can't be read."""
        found = self._explain(at, stop, layout)
        if self._poison is None:
            raise found.error from None
        self.rows.append(
            self._poison.row(
                (self._unit, index, self._ordinal),
                found,
                self._data[at - self._body : stop],
                constants=self.constants,
                layout=layout,
                tenant=self._owner({}),
            )
        )

    def _control(self, data: bytes) -> None:
        try:
            message: Message = decode_message(data, streamed=self._streamed)
        except Malformed as error:
            self._unreadable(data, error)
            return
        match message:
            case Begin():
                self._begin(message.final_lsn, message.xid, message.committed_at)
            case Commit():
                self._commit(message.commit_lsn)
            case Relation():
                self._announce(data[:1] + data[5:] if self._streamed else data)
            case Truncate():
                self._truncate(message)
            case LogicalMessage():
                self._message(message)
            case OriginMessage() | Type():
                pass
            case (
                StreamStart() | StreamStop() | StreamCommit() | StreamAbort() | StreamPrepare()
                | BeginPrepare() | Prepare() | CommitPrepared() | RollbackPrepared()
            ):  # fmt: skip
                raise Malformed(f"a page has a {type(message).__name__} message")
            case Insert() | Update() | Delete():
                raise Malformed("a row message came the wrong way")
            case _:
                assert_never(message)

    def _unreadable(self, data: bytes, error: Malformed) -> None:
        """A message that is no row and can't be decoded. Its names are not UTF-8, in a database
        that accepts any bytes; whatever else it is ends the page."""
        if self._poison is None:
            raise error
        message = decode_message(data, streamed=self._streamed, lenient=True)
        match message:
            case Relation():
                self._announce(data[:1] + data[5:] if self._streamed else data)
            case LogicalMessage():
                unit, ordinal = self._place(message)
                self.rows.append(
                    self._poison.row(
                        (unit, NO_RELATION, ordinal),
                        Diagnosis("not-utf8", error),
                        data_frame(data),
                        constants=self.constants,
                        layout=None,
                        tenant=self._owner({}),
                    )
                )
            case OriginMessage() | Type():
                pass
            case _:
                raise error

    def _begin(self, lsn: int, xid: int, committed_at: int) -> None:
        if self._unit >= 0 or self._streamed:
            raise Malformed("a transaction begins inside another")
        self._enter(lsn, xid, committed_at, 0)

    def _enter(self, lsn: int, xid: int, committed_at: int, ordinal: int) -> None:
        self._unit = self.constants.add_unit(lsn, xid, committed_at)
        self._commit_lsn = lsn
        self._ordinal = ordinal

    def _commit(self, lsn: int) -> None:
        if self._unit < 0 or lsn != self._commit_lsn:
            raise Malformed("a transaction commits that did not begin")
        self._unit = -1

    def _announce(self, raw: bytes) -> None:
        layout = self._resolve(raw)
        self._layouts[layout.relation.oid] = self.constants.add_relation(layout), layout

    def _truncate(self, message: Truncate) -> None:
        for oid in message.relations:
            index, _ = self._layout(oid)
            tenant = self._owner({})
            self.rows.append((self._unit, index, self._ordinal, "TRUNCATE", tenant, *_NOTHING[2:]))
            self._ordinal += 1

    def _message(self, message: LogicalMessage) -> None:
        if message.prefix == HEARTBEAT_PREFIX:
            return
        unit, ordinal = self._place(message)
        self.rows.append((
            unit, NO_RELATION, ordinal, "MESSAGE", self._owner({}), message.prefix,
            None, None, None, self._pack(self._content(message)), NO_COLUMNS,
        ))  # fmt: skip

    def _place(self, message: LogicalMessage) -> tuple[int, int]:
        """The unit and the ordinal of a logical message."""
        unit, ordinal = self._unit, self._ordinal
        if not message.transactional:
            if not message.lsn:
                raise Malformed("a logical message has no LSN")
            # Its LSN is its record's end, where the next commit may be: see lsn.message_cursor.
            return self.constants.add_unit(message.lsn - 1, None, None), 0
        if unit < 0:
            raise Malformed("a transactional message comes outside of a transaction")
        self._ordinal += 1
        return unit, ordinal

    def _content(self, message: LogicalMessage) -> dict[str, Any]:
        content = message.content
        try:
            return {"prefix": message.prefix, "content": content.decode()}
        except UnicodeDecodeError:
            data = as_base64(content) if self._text_images else content
            return {"prefix": message.prefix, "content": data, "binary": True}


# operation, tenant, collection, document_id, key, before, after, unchanged
_NOTHING: tuple[Any, ...] = ("", None, None, None, None, None, None, NO_COLUMNS)
