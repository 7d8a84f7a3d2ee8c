"""One page's payload, message by message, into rows: the decoder's loop."""

import struct
from collections.abc import Callable
from typing import Any, assert_never

from penstock.model.errors import Malformed
from penstock.model.images import base64_of
from penstock.wire.pgoutput.batch import FILTERED, NO_RELATION, Constants
from penstock.wire.pgoutput.context import HEARTBEAT_PREFIX, Context
from penstock.wire.pgoutput.frames import from_pg_time
from penstock.wire.pgoutput.layout import DecoderSettings, RowLayout
from penstock.wire.pgoutput.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OriginMessage,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
    TwoPhase,
    Type,
    Update,
    decode_message,
)
from penstock.wire.pgoutput.rows import (
    BROKEN,
    NO_COLUMNS,
    Diagnosis,
    Poison,
    data_frame,
    explain,
    read_tuple,
)

# A row and its layout (no columns: None) -> its tenant.
Tenant = Callable[[dict[str, Any], RowLayout | None], str | None]
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


def tenant_of(settings: DecoderSettings) -> Tenant | None:
    if settings.tenant == "none":
        return None
    if settings.tenant == "database":
        return lambda _, __: settings.database
    column = settings.tenant_column or ""

    def of_field(row: dict[str, Any], layout: RowLayout | None) -> str | None:
        value = row.get(column)
        return None if value is None or layout is None else layout.text_of({column: value})

    return of_field


class Scan:
    """The state of reading one page. `rows` are tuples shaped like `batch.ROW`, `fresh` the
    relations that were announced, each with its index and by its OID.

    The payload may come whole (`run`), or a message at a time (`step`): those that the native
    kernel leaves to Python. Between two steps the kernel may have moved on: `unit`, `ordinal` and
    `commit_lsn` are then to be set, and units to be added to `constants`.
    """

    def __init__(
        self, payload: bytes, context: Context, *, settings: DecoderSettings, resolve: Resolve
    ) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.constants = Constants()
        self.streamed = context.streamed
        self.unit = -1  # outside of a transaction
        self.commit_lsn = 0  # of the transaction that `unit` is; the end must repeat it
        self.ordinal = 0  # of the next change of the transaction
        self.fresh: list[tuple[int, RowLayout]] = []
        self._data = payload + PADDING
        self._settings, self._resolve = settings, resolve
        self._tenant, self._pack = tenant_of(settings), settings.pack
        # Without it a change that can't be read is Malformed.
        self._poison = Poison(context, settings) if settings.on_error != "stop" else None
        self._layouts: dict[int, tuple[int, RowLayout]] = {}  # the last of each relation
        for raw in context.relations:
            self._announce(raw)
        if context.commit_lsn:
            self._enter(context.commit_lsn, context.xid, context.committed_at, context.ordinal)

    def step(self, message: bytes) -> None:
        """One whole CopyData message; adds to `rows`. Raises Malformed."""
        self._data = message + PADDING
        self.run()

    @property
    def _body(self) -> int:
        """From a frame's start to its row's first tuple."""
        return (_STREAMED_FRAME if self.streamed else _FRAME).size

    def run(self) -> None:
        """Fills `rows` and `constants`; raises Malformed."""
        data, body, end = self._data, self._body, len(self._data) - len(PADDING)
        frame = (_STREAMED_FRAME if self.streamed else _FRAME).unpack_from
        at = 0
        while at < end:
            copy, length, kind, tag, oid = frame(data, at)
            stop = at + 1 + length
            if copy != _COPY_DATA or stop > end:
                raise Malformed(
                    f"byte {at} of a payload does not start a whole CopyData message", "wire"
                )
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
                raise Malformed(f"byte {at} of a payload holds no replication message", "wire")
            at = stop

    def _new(self, operation: str, at: int, stop: int, oid: int) -> None:
        index, layout = self._layout(oid)
        if index == FILTERED:
            return self._filtered()
        try:
            end, row, unchanged = read_tuple(self._data, at, _NEW, layout.columns)
            if end != stop or layout.fault is not None or (unchanged and operation == "INSERT"):
                raise ValueError
            key, document_id = layout.identify(row)
            self.rows.append((
                self.unit, index, self.ordinal, operation, self._owner(row, layout), None,
                document_id, key, None, layout.images.row(row), unchanged,
            ))  # fmt: skip
        except BROKEN:
            self._broken(index, at, stop, layout)
        self.ordinal += 1
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
                self.unit, index, self.ordinal, "UPDATE", self._owner(whole, layout), None,
                document_id, key, layout.images.row(old), layout.images.row(row), unchanged,
            ))  # fmt: skip
        except BROKEN:
            self._broken(index, at, stop, layout)
        self.ordinal += 1
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
                self.unit, index, self.ordinal, "DELETE", self._owner(old, layout), None,
                document_id, key, layout.images.row(old), None, NO_COLUMNS,
            ))  # fmt: skip
        except BROKEN:
            self._broken(index, at, stop, layout)
        self.ordinal += 1
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

    def _owner(self, row: dict[str, Any], layout: RowLayout | None = None) -> str | None:
        return self._tenant(row, layout) if self._tenant else None

    def _layout(self, oid: int) -> tuple[int, RowLayout]:
        if self.unit < 0:
            raise Malformed("a change comes outside of a transaction", "wire")
        try:
            return self._layouts[oid]
        except KeyError:
            raise Malformed(f"relation {oid} was not announced", "wire") from None

    def _filtered(self) -> None:
        """An ordinal of a filtered row: ordinals count before the filter."""
        self.rows.append((self.unit, FILTERED, self.ordinal, *_NOTHING))
        self.ordinal += 1

    def _explain(self, at: int, stop: int, layout: RowLayout) -> Diagnosis:
        start = at - self._body + _MESSAGE
        try:
            message = decode_message(self._data[start:stop], streamed=self.streamed)
        except Malformed as error:
            return Diagnosis("broken-row", error)
        return explain(message, layout)

    def _broken(self, index: int, at: int, stop: int, layout: RowLayout) -> None:
        found = self._explain(at, stop, layout)
        if self._poison is None:
            raise found.error from None
        place, raw = (self.unit, index, self.ordinal), self._data[at - self._body : stop]
        self.rows.append(self._poison.row(place, found, raw, self.constants, layout))

    def _control(self, data: bytes) -> None:
        try:
            message: Message = decode_message(data, streamed=self.streamed)
        except Malformed as error:
            self._unreadable(data, error)
            return
        match message:
            case Begin():
                self._begin(message.final_lsn, message.xid, message.committed_at)
            case Commit():
                self._commit(message.commit_lsn)
            case Relation():
                self._announce(data[:1] + data[5:] if self.streamed else data)
            case Truncate():
                self._truncate(message)
            case LogicalMessage():
                self._message(message)
            case OriginMessage() | Type():
                pass
            case StreamStart() | StreamStop() | StreamCommit() | StreamAbort():
                raise Malformed(f"a page has a {type(message).__name__} message", "wire")
            case TwoPhase(name):
                raise Malformed(f"a page has a {name} message", "wire")
            case Insert() | Update() | Delete():
                raise Malformed("a row message came the wrong way", "wire")
            case _:
                assert_never(message)

    def _unreadable(self, data: bytes, error: Malformed) -> None:
        """A message that is no row and can't be decoded. Its names are not UTF-8, in a database
        that accepts any bytes; whatever else it is ends the page."""
        if self._poison is None:
            raise error
        message = decode_message(data, streamed=self.streamed, lenient=True)
        match message:
            case Relation():
                self._announce(data[:1] + data[5:] if self.streamed else data)
            case LogicalMessage():
                unit, ordinal = self._place(message)
                place, found = (unit, NO_RELATION, ordinal), Diagnosis("not-utf8", error)
                raw = data_frame(data)
                self.rows.append(self._poison.row(place, found, raw, self.constants, None))
            case OriginMessage() | Type():
                pass
            case _:
                raise error

    def _begin(self, lsn: int, xid: int, committed_at: int) -> None:
        if self.unit >= 0 or self.streamed:
            raise Malformed("a transaction begins inside another", "wire")
        self._enter(lsn, xid, committed_at, 0)

    def _enter(self, lsn: int, xid: int, committed_at: int, ordinal: int) -> None:
        self.unit = self.constants.add_unit(lsn, xid, committed_at)
        self.commit_lsn = lsn
        self.ordinal = ordinal

    def _commit(self, lsn: int) -> None:
        if self.unit < 0 or lsn != self.commit_lsn:
            raise Malformed("a transaction commits that did not begin", "wire")
        self.unit = -1

    def _announce(self, raw: bytes) -> None:
        layout = self._resolve(raw)
        known = self._layouts[layout.relation.oid] = self.constants.add_relation(layout), layout
        self.fresh.append(known)

    def _truncate(self, message: Truncate) -> None:
        for oid in message.relations:
            index, _ = self._layout(oid)
            tenant = self._owner({})
            self.rows.append((self.unit, index, self.ordinal, "TRUNCATE", tenant, *_NOTHING[2:]))
            self.ordinal += 1

    def _message(self, message: LogicalMessage) -> None:
        if message.prefix == HEARTBEAT_PREFIX:
            return
        unit, ordinal = self._place(message)
        self.rows.append((
            unit, NO_RELATION, ordinal, "MESSAGE", self._owner({}), message.prefix,
            None, None, None, self._pack(self._content(message)), NO_COLUMNS,
        ))  # fmt: skip

    def _place(self, message: LogicalMessage) -> tuple[int, int]:
        unit, ordinal = self.unit, self.ordinal
        if not message.transactional:
            if not message.lsn:
                raise Malformed("a logical message has no LSN", "wire")
            # Its LSN is its record's end, where the next commit may be: see lsn.message_cursor.
            return self.constants.add_unit(message.lsn - 1, None, None), 0
        if unit < 0:
            raise Malformed("a transactional message comes outside of a transaction", "wire")
        self.ordinal += 1
        return unit, ordinal

    def _content(self, message: LogicalMessage) -> dict[str, Any]:
        content = message.content
        try:
            return {"prefix": message.prefix, "content": content.decode()}
        except UnicodeDecodeError:
            data = content if self._settings.images == "msgpack" else base64_of(content)
            return {"prefix": message.prefix, "content": data, "binary": True}


# operation, tenant, collection, document_id, key, before, after, unchanged
_NOTHING: tuple[Any, ...] = ("", None, None, None, None, None, None, NO_COLUMNS)
