"""Changes of one table as rows with its own columns, or those of a schema."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute

from penstock.feeds import Feed, ListsTables, NativeRecord, RecordReader
from penstock.model.change import OnError, Operation
from penstock.model.errors import SettingsError
from penstock.model.page import Page
from penstock.stream.records import rows_in
from penstock.typed import OnMisfit, TypedRows
from penstock.typed.columns import schema_of
from penstock.typed.document_rows import DocumentRows
from penstock.typed.line_rows import LineRows

pc: Any = pyarrow.compute


def typed_rows(
    feed: Feed, of: str | None, schema: pa.Schema | None, on_misfit: OnMisfit
) -> TypedRows:
    """What makes the rows. Does I/O where the table's own columns are meant, or tables have lines;
    raises SettingsError, Unavailable."""
    if isinstance(feed, ListsTables):
        known = {f"{each.schema}.{each.table}": each for each in feed.schemas_there()}
        if of not in known:
            raise SettingsError(
                f"{feed.backend} has no table {of}" if of else "no table is named",
                "stream.table-missing",
                hint='name one with its schema: of="public.orders"',
            )
        return LineRows(table=of, schema=schema_of(known[of], schema), on_misfit=on_misfit)
    if schema is None:
        raise SettingsError(
            f"the documents of {feed.backend} have no columns of their own",
            "stream.no-schema",
            hint="give the columns that you want: schema=pyarrow.schema(...)",
        )
    return DocumentRows(schema, on_misfit)


def typed_reader(feed: Feed, rows: TypedRows, of: str | None, on_error: OnError) -> RecordReader:
    """As `row_reader`: what makes such rows of the feed's pages, without messages, and without
    changes of other tables or collections than `of`, if given."""
    decoder = feed.decoder(rows.images, on_error)

    def read(page: Page) -> Iterator[NativeRecord]:
        whole = decoder.decode(page)
        kept = [each.filter(_meant(each, of)) for each in whole]
        places = (place for batch in kept for place in rows_in(batch))
        for batch in rows.of_page(whole, kept):
            for row in range(batch.num_rows):
                yield next(places)._replace(record={"batch": batch, "row": row})

    return read


def _meant(batch: pa.RecordBatch, of: str | None) -> Any:
    is_row = pc.not_equal(batch.column("operation"), Operation.MESSAGE.value)
    if of is None:
        return is_row
    schema, _, table = of.rpartition(".")
    is_meant = pc.equal(batch.column("collection"), table)
    if schema:
        names = pc.coalesce(batch.column("namespace"), batch.column("database"))
        is_meant = pc.and_(is_meant, pc.equal(names, schema))
    return pc.and_(is_row, is_meant).fill_null(False)
