"""Pages of pgoutput -> batches of changes. Pure and CPU only; runs in Spark's tasks.

Where the contract is silent: a logical message has its prefix as collection, no namespace, and
the image {"prefix", "content"}; content that is not UTF-8 is bytes (base64 in JSON), and then
"binary" is true. Its key and document id are null. A non-transactional one has no transaction
and no commit time, and its own LSN as cursor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.model.change import Images, OnError
from penstock.model.errors import Malformed, SettingsError
from penstock.model.page import Page
from penstock.wire.pgoutput.batch import assemble
from penstock.wire.pgoutput.context import Context
from penstock.wire.pgoutput.images import key_text, packer
from penstock.wire.pgoutput.kernel import Kernel, Unfit
from penstock.wire.pgoutput.layout import RowLayout
from penstock.wire.pgoutput.poison import Poison
from penstock.wire.pgoutput.scan import Scan, Tenant
from penstock.wire.pgoutput.stepped import Stepped

# A table that changes its shape this often shall not fill the memory.
_LAYOUTS = 10_000
_FIELD = "field:"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSettings:
    """What a decoder must know besides its pages.

    `tenant` is a rule: `none`, `database`, or `field:<column>` (that column of the new row, of the
    old one for a delete; null where there is none). `tables` narrows to these (schema, table).
    `on_error`: with `stop` a change that can't be read makes its page Malformed; else it is a
    change of its own, with the operation ERROR, and all others are as ever.
    """

    backend: str
    database: str
    tenant: str = "none"
    tables: frozenset[tuple[str, str]] | None = None
    images: Images = "json"
    on_error: OnError = "stop"

    def __post_init__(self) -> None:
        if self.tenant not in ("none", "database") and not (
            self.tenant.startswith(_FIELD) and len(self.tenant) > len(_FIELD)
        ):
            raise SettingsError(
                f"{self.tenant!r} is no rule for tenants", hint="none, database or field:<column>"
            )


class _Known(NamedTuple):
    """A page's context, and what its Relation messages mean under it."""

    packed: bytes
    context: Context
    layouts: dict[bytes, RowLayout]


class PgoutputDecoder:
    """A `page.Decoder`. Pickles as its settings; keeps what it learned of relations, and in
    `unknown_types` the names of the types that it delivered as text because they are unknown."""

    def __init__(self, settings: DecoderSettings) -> None:
        self.settings = settings
        self.unknown_types: set[str] = set()
        self._layouts: dict[bytes, RowLayout] = {}
        # The last page's: between transactions they are mostly all the same.
        self._last = _Known(b"", Context(), {})
        self._tenant = _tenant(settings)
        self._kernel = Kernel.of(
            backend=settings.backend,
            database=settings.database,
            tenant=settings.tenant,
            images=settings.images,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return PgoutputDecoder, (self.settings,)

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """One batch of the page's changes, or none if the tables filter drops them all."""
        batch = self._quickly(page, self._known(page.context))
        return [] if batch is None else [batch]

    def _known(self, packed: bytes) -> _Known:
        known = self._last
        if packed != known.packed or len(known.layouts) > _LAYOUTS:
            known = self._last = _Known(packed, Context.unpack(packed), {})
        return known

    def _quickly(self, page: Page, known: _Known) -> pa.RecordBatch | None:
        if self._kernel is None:
            return self._thoroughly(page, known)
        try:
            return self._kernel.decode(page, Stepped(known.context, **self._ways(known)))
        except (Unfit, Malformed):
            # Python is the reference for error handling.
            return self._thoroughly(page, known)

    def _thoroughly(self, page: Page, known: _Known) -> pa.RecordBatch | None:
        settings = self.settings
        scan = Scan(page.payload, known.context, **self._ways(known))
        scan.run()
        return assemble(
            page,
            scan.rows,
            scan.constants,
            backend=settings.backend,
            database=settings.database,
            images=settings.images,
        )

    def _ways(self, known: _Known) -> dict[str, Any]:
        """How a scan decodes."""
        context = known.context
        pack, text_images = packer(self.settings.images), self.settings.images == "json"
        tolerant = self.settings.on_error != "stop"
        return {
            "resolve": lambda raw: self._resolve(raw, known),
            "tenant": self._tenant,
            "pack": pack,
            "text_images": text_images,
            "poison": Poison(context, pack=pack, text_images=text_images) if tolerant else None,
        }

    def _resolve(self, raw: bytes, known: _Known) -> RowLayout:
        layout = known.layouts.get(raw)
        if layout is None:
            layout = known.layouts[raw] = self._checked(raw, known.context)
        return layout

    def _checked(self, raw: bytes, context: Context) -> RowLayout:
        layout = self._layouts.get(raw)
        if layout is None or not layout.holds(context.types, context.keys):
            if len(self._layouts) >= _LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[raw] = self._read(raw, context)
            self.unknown_types |= layout.unknown
        return layout

    def _read(self, raw: bytes, context: Context) -> RowLayout:
        settings = self.settings
        keys, images, tables = context.keys, settings.images, settings.tables
        try:
            return RowLayout.of(raw, types=context.types, keys=keys, images=images, tables=tables)
        except Malformed as fault:
            if settings.on_error == "stop":
                raise
            return RowLayout.undecodable(raw, fault, keys=keys, images=images, tables=tables)


def _tenant(settings: DecoderSettings) -> Tenant | None:
    if settings.tenant == "none":
        return None
    if settings.tenant == "database":
        return lambda _: settings.database
    column = settings.tenant.removeprefix(_FIELD)

    def of_field(row: dict[str, Any]) -> str | None:
        value = row.get(column)
        return None if value is None else key_text([value])

    return of_field
