"""A reader of batches with images `text`, by the letter of COPY and of `change.schema`."""

import json
from typing import Any

import pyarrow as pa

from penstock.model.change import images_of

Row = dict[str, Any]
_LETTERS = dict(zip("bfnrtv\\", "\b\f\n\r\t\v\\", strict=True))


def cells(line: str) -> list[str | None]:
    r"""The values of a line; ... for `\U`, typed as a text."""
    return [_value(cell) for cell in line.split("\t")]


def _value(cell: str) -> Any:
    if cell in ("\\N", "\\U"):
        return None if cell == "\\N" else ...
    parts = cell.split("\\")
    found, escaped = parts[0], iter(parts[1:])
    for part in escaped:
        found += _LETTERS[part[0]] + part[1:] if part else "\\" + next(escaped)
    return found


class Lines:
    """Keeps the last description of each relation and version. Images become maps without what
    was not sent."""

    def __init__(self) -> None:
        self.relations: dict[tuple[int, str], Any] = {}

    def read(self, batch: pa.RecordBatch) -> list[Row]:
        assert images_of(batch.schema) == "text"
        return [self._row(row) for row in batch.to_pylist()]

    def _row(self, row: Row) -> Row:
        known = row["relation_id"], row["schema_version"]
        if row["delta"] is not None:
            self.relations[known] = json.loads(row["delta"])
        if row["operation"] not in ("INSERT", "UPDATE", "DELETE"):
            return row | {"after": row["after"] and json.loads(row["after"])}
        columns = self.relations[known]["columns"]
        whole = [column["name"] for column in columns]
        key = [column["name"] for column in columns if column["key"]]
        images = {"key": key, "before": whole, "after": whole}
        return row | {name: self._image(row[name], some) for name, some in images.items()}

    @staticmethod
    def _image(line: str | None, names: list[str]) -> Row | None:
        if line is None:
            return None
        values = cells(line) if names else []
        found = dict(zip(names, values, strict=True))
        return {name: value for name, value in found.items() if value is not ...}
