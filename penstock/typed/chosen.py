"""Some of the columns of a change."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.model.change import Images


@dataclass(frozen=True)
class ChosenColumns:
    """Leaves the other columns of changes out. Pickles."""

    schema: pa.Schema
    images: Images

    def of_page(
        self, page: Iterable[pa.RecordBatch], kept: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """See `TypedRows`."""
        return (batch.select(self.schema.names) for batch in kept)
