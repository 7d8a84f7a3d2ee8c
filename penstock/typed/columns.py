"""Columns of typed rows that are not the table's own."""

import pyarrow as pa

from penstock.model.position import Place

# What tells of a row; a table may have no column of these names.
META = ("_operation", "_sequence", "_committed_at", "_unsent", "_key_before", "_rest")

# Those of a row of a snapshot.
ROW = pa.schema([("_operation", pa.string()), ("_sequence", pa.string())])


def sequence(place: Place) -> str:
    """Text that sorts as the changes of one source do."""
    return f"{place.cursor}:{place.ordinal:010}"


def row_sequence(position: str) -> str:
    """Of a row of a snapshot at this place: before that of the first change after it."""
    return Place.parse(position).cursor
