"""Rows with the columns of a table or of a user's schema, as Arrow. Pure: no I/O, no pyspark.

`lines` reads lines of COPY, `documents` documents; `line_rows` and `document_rows` make batches of
typed rows of batches of changes with either; `columns` has what tells of a row. `chosen`: rows
with some of a change's own columns.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, Protocol

import pyarrow as pa

from penstock.model.change import Images

# What becomes of a value that its column's type cannot hold: an error, or null.
OnMisfit = Literal["FAILFAST", "PERMISSIVE"]


class TypedRows(Protocol):
    """Makes rows of `schema` from changes whose images are of the form `images`. Pickles."""

    @property
    def images(self) -> Images: ...
    @property
    def schema(self) -> pa.Schema: ...

    def of_page(
        self, page: Iterable[pa.RecordBatch], kept: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of those changes of a page that are `kept`. Raises SettingsError for a value
        that its column cannot hold."""
        ...
