"""What a request for a snapshot may ask for: a part of the table, and the size of chunks."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from penstock.config import SnapshotSettings
from penstock.feeds import RowSelection
from penstock.model.errors import SettingsError
from penstock.model.problems import dotted, nearest, problems_of, refuse
from penstock.model.settings import Settings, Size
from penstock.snapshots.followed_tables import FollowedTable


class SnapshotOptions(Settings):
    """Options as they are sent, in JSON. None: what the pipeline file says, and the whole table."""

    where: str | None = Field(default=None, min_length=1, max_length=10_000)
    columns: tuple[str, ...] | None = Field(default=None, min_length=1)
    chunk_rows: int | None = Field(default=None, ge=1)
    chunk_bytes: Size | None = Field(default=None, ge=4096)
    reload: bool | None = None  # whether mirrors that have the table load it from this snapshot

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "SnapshotOptions":
        """The options of a document. Raises SettingsError, with every mistake."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            lines = [f"{dotted(one.path)}: {one.text}" for one in problems_of(error, cls)]
            raise refuse(lines, hint="these are options of the request") from None

    def of(self, table: FollowedTable, settings: SnapshotSettings) -> "SnapshotOptions":
        """The same options, in the form that equal requests share: `columns` in the table's order,
        nothing that the settings have. Raises SettingsError for what the table does not take."""
        if self.where and not settings.where:
            raise SettingsError(
                "requests may not have a condition (`where`): it is SQL, which the role of the"
                " pipeline runs",
                "snapshots",
                hint="set snapshot.where: true in the pipeline file if all who may publish to"
                " snapshot.request.> may read what that role may read",
            )
        wanted = self._columns(table)
        own = settings.chunk_rows, settings.chunk_bytes
        sizes = (self.chunk_rows, self.chunk_bytes)
        rows, size = (None if one == usual else one for one, usual in zip(sizes, own, strict=True))
        found = SnapshotOptions(
            where=self.where, columns=wanted, chunk_rows=rows, chunk_bytes=size,
            reload=self.reload or None,
        )  # fmt: skip
        if not found.selection.is_whole and not table.source.feed.selects_rows:
            raise SettingsError(
                f"snapshots of the backend {table.source.backend} are of whole tables",
                "snapshots",
                hint="only PostgreSQL has where and columns: leave them out",
            )
        return found

    def _columns(self, table: FollowedTable) -> tuple[str, ...] | None:
        if self.columns is None:
            return None
        there = [column["name"] for column in table.schema.columns]
        text = ".".join(table.name)
        if unknown := [name for name in self.columns if name not in there]:
            raise SettingsError(
                f"{text} has no column {unknown[0]!r}{nearest(unknown[0], there)}", "snapshots"
            )
        key = [column["name"] for column in table.schema.columns if column["key"]]
        if missing := [name for name in key if name not in self.columns]:
            raise SettingsError(
                f"the key of {text} is missing in `columns`: {', '.join(missing)}",
                "snapshots",
                hint="changes are applied to rows by their key: add it",
            )
        chosen = tuple(name for name in there if name in self.columns)
        return None if len(chosen) == len(there) else chosen

    @property
    def given(self) -> dict[str, Any]:
        """Plain JSON, without what was not given."""
        return self.model_dump(mode="json", exclude_none=True)

    @property
    def selection(self) -> RowSelection:
        return RowSelection(where=self.where or "", columns=self.columns or ())

    def settings(self, usual: SnapshotSettings) -> SnapshotSettings:
        own = self.model_dump(include={"chunk_rows", "chunk_bytes"}, exclude_none=True)
        return usual.model_copy(update=own)


USUAL = SnapshotOptions()
