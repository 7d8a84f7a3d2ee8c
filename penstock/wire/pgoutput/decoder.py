"""Pages of pgoutput -> batches of changes. Pure and CPU only; runs in Spark's tasks.

Where the contract is silent: a logical message has its prefix as collection, no namespace, and
the image {"prefix", "content"}; content that is not UTF-8 is bytes (base64 in JSON), and then
"binary" is true. Its key and document id are null. A non-transactional one has no transaction
and no commit time, and its own LSN as cursor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.model.change import COLUMNS, WHOLE, Passed
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.native.batch import Batch, arrow
from penstock.wire.pgoutput.batch import assemble
from penstock.wire.pgoutput.context import Context
from penstock.wire.pgoutput.kernel import Kernel, Opening, Unfit
from penstock.wire.pgoutput.layout import DecoderSettings, RowLayout
from penstock.wire.pgoutput.scan import Scan

__all__ = ["DecoderSettings", "PgoutputDecoder"]

# A table that changes its shape this often shall not fill the memory.
_LAYOUTS = 10_000
_MARK = COLUMNS.index("mark")


@dataclass(slots=True)
class _Known:
    packed: bytes
    context: Context
    layouts: dict[bytes, RowLayout]
    opening: Opening | None = None  # made with the first page that the kernel is for


class PgoutputDecoder:
    """A `page.Decoder`. Pickles as its settings; keeps what it learned of relations, and in
    `unknown_types` the names of the types that it delivered as text because they are unknown."""

    def __init__(self, settings: DecoderSettings) -> None:
        self.settings = settings
        self.unknown_types: set[str] = set()
        self._layouts: dict[bytes, RowLayout] = {}
        # The last page's: between transactions they are mostly all the same.
        self._last = _Known(b"", Context(), {})
        self._kernel = Kernel.of(settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return PgoutputDecoder, (self.settings,)

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """One batch of the page's changes, or none if the tables filter drops them all. Lines end
        with what the filter dropped after them."""
        return [arrow(changes) for changes in self.decode_natively(page)]

    def decode_natively(self, page: Page) -> Sequence[Batch]:
        """See `NativeDecoder`."""
        known = self._known(page.context)
        changes = self._quickly(page, known)
        if self.settings.images != "text":
            return [] if changes is None else [changes]
        found = [] if changes is None else [arrow(changes)]
        if len(changes or ()) < page.count:
            passed = Passed(self.settings.backend, page.partition, page.last, known.context.mark)
            found.append(passed.batch)
        return found

    def _known(self, packed: bytes) -> _Known:
        known = self._last
        if packed != known.packed or len(known.layouts) > _LAYOUTS:
            known = self._last = _Known(packed, Context.unpack(packed), {})
        return known

    def _quickly(self, page: Page, known: _Known) -> Batch | None:
        if self._kernel is None:
            return self._thoroughly(page, known)
        try:
            if known.opening is None:
                known.opening = self._kernel.opening(self._scan(b"", known))
            begin = partial(self._scan, b"", known)
            batch, ends = self._kernel.decode(page, known.opening, begin, known.context.mark)
        except (Unfit, Malformed):
            # Python is the reference for error handling.
            return self._thoroughly(page, known)
        if batch is None or self.settings.images != "text":
            return batch
        return self._ended(batch.batch, ends, known)

    def _thoroughly(self, page: Page, known: _Known) -> pa.RecordBatch | None:
        scan = self._scan(page.payload, known)
        scan.run()
        batch, mark = assemble(page, scan.rows, scan.constants, self.settings), known.context.mark
        if batch is not None and mark:
            same: Any = pa.repeat(pa.scalar(mark, pa.string()), len(batch))
            batch = batch.set_column(_MARK, batch.schema.field(_MARK), same)
        return None if batch is None else self._ended(batch, scan.unit < 0, known)

    def _ended(self, batch: pa.RecordBatch, ends: bool, known: _Known) -> pa.RecordBatch:
        """A batch of lines says whether its last transaction ends with it."""
        if not (ends or known.context.ends) or self.settings.images != "text":
            return batch
        return batch.replace_schema_metadata(WHOLE)

    def _scan(self, payload: bytes, known: _Known) -> Scan:
        resolve = partial(self._resolve, known)
        return Scan(payload, known.context, settings=self.settings, resolve=resolve)

    def _resolve(self, known: _Known, raw: bytes) -> RowLayout:
        if (layout := known.layouts.get(raw)) is None:
            layout = known.layouts[raw] = self._checked(raw, known.context)
        return layout

    def _checked(self, raw: bytes, context: Context) -> RowLayout:
        if (layout := self._layouts.get(raw)) is None or not layout.holds(context):
            if len(self._layouts) >= _LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[raw] = RowLayout.of(raw, context, self.settings)
            self.unknown_types |= layout.unknown
        return layout
