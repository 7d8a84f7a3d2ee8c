"""A change that can't be read, as a row of its own: it has its place, and everything that is
needed to decode it later. See `change.Operation.ERROR`.
"""

import struct
from typing import Any

from penstock.wire.pgoutput.batch import Constants
from penstock.wire.pgoutput.context import Context
from penstock.wire.pgoutput.images import Pack
from penstock.wire.pgoutput.layout import RowLayout
from penstock.wire.pgoutput.lsn import parse_lsn
from penstock.wire.pgoutput.rows import NO_COLUMNS, Diagnosis
from penstock.wire.pgoutput.values.binary import as_base64

_HEADER = struct.Struct(">cIc24x")


def data_frame(message: bytes) -> bytes:
    """One pgoutput message as a page's payload has it: CopyData with XLogData, of no time."""
    return _HEADER.pack(b"d", 4 + 25 + len(message), b"w") + message


class Poison:
    """Makes the rows of one page's unreadable changes; `context` is the page's."""

    def __init__(self, context: Context, *, pack: Pack, text_images: bool) -> None:
        self._context = context
        self._pack = pack
        self._text_images = text_images

    def row(
        self,
        place: tuple[Any, ...],
        diagnosis: Diagnosis,
        raw: bytes,
        *,
        constants: Constants,
        layout: RowLayout | None,
        tenant: str | None,
    ) -> tuple[Any, ...]:
        """A row shaped like `batch.Row`. `place` is its unit, relation and ordinal; `raw` the
        change's own CopyData message."""
        context = self._alone(place, constants, layout).pack()
        image = {
            "reason": diagnosis.reason,
            "error": str(diagnosis.error),
            "raw": as_base64(raw) if self._text_images else raw,
            "context": as_base64(context) if self._text_images else context,
        }
        rest = (None, None, None, None, self._pack(image), NO_COLUMNS)
        return (*place, "ERROR", tenant, *rest)

    def _alone(
        self, place: tuple[Any, ...], constants: Constants, layout: RowLayout | None
    ) -> Context:
        """The context of a page that holds this change only."""
        unit, _, ordinal = place
        page, xid = self._context, constants.transactions[unit]
        inside = xid is not None
        key = page.keys.get(layout.relation.oid) if layout is not None else None
        return Context(
            streamed=page.streamed,
            commit_lsn=parse_lsn(constants.cursors[unit]) if inside else 0,
            committed_at=constants.committed_at[unit] or 0,
            xid=int(xid or 0),
            ordinal=ordinal if inside else 0,
            relations=(layout.raw,) if layout is not None else (),
            types=page.types if layout is not None else {},
            keys={layout.relation.oid: key} if layout is not None and key else {},
        )
