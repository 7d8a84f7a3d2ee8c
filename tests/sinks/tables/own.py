"""A database of somebody's own, as another package brings it."""

from typing import Any

from penstock import table_sink
from penstock.tables.database import Owner
from penstock.tables.sqlite_database import SqliteDatabase


class OwnDatabase(SqliteDatabase):
    """Counts who connects."""

    owners: list[Owner] = []  # noqa: RUF012

    @classmethod
    def of_own_url(cls, url: str) -> "OwnDatabase":
        return cls(url.removeprefix("own://"))

    def connect(self, owner: Owner = "sink") -> Any:
        self.owners.append(owner)
        return super().connect(owner)


PLUGIN = table_sink(OwnDatabase.of_own_url)
