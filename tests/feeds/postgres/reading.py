"""A slot on a real server, and a reader that decodes what it says."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from penstock.feeds import Following
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.model.change import WHOLE
from penstock.model.errors import Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.model.table_schema import TableSchema
from tests.servers import Database

Row = dict[str, Any]


class Recorded(list[TableSchema]):
    """Announced schemas: a `feeds.AnnouncedSchemas` that has these documents from before."""

    def __init__(self, *documents: Mapping[str, Any]) -> None:
        super().__init__()
        self._documents = documents

    def record(self, schema: TableSchema) -> None:
        self.append(schema)

    def history(self, schema: str, table: str) -> Sequence[Mapping[str, Any]]:
        return self._documents


class Reader:
    """Follows the slot of one database; `rows` and `pages` are all that came so far."""

    def __init__(self, database: Database, **settings: Any) -> None:
        self.database = database
        self.slot = PartitionId(f"s_{database.name}")
        self.settings = PostgresSettings(
            slot=self.slot,
            **{
                "connection": database.url,
                "publication": "p",
                "create_publication": True,
                "silence": 60,
                **settings,
            },
        )
        self.feed = PostgresFeed(self.settings)
        self.pages: list[Page] = []
        self.rows: list[Row] = []
        self._following: Following | None = None
        self._decoder = self.feed.decoder("json")

    @property
    def following(self) -> Following:
        """The one we read; follows from the last change read when there is none."""
        if self._following is None:
            self._following = self.follow(self.pages[-1].last if self.pages else None)
        return self._following

    def follow(self, after: Place | None, seconds: float = 60.0) -> Following:
        """Follows, once the server has noticed that the reader before is gone."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.feed.follow(self.slot, Bookmark(after))
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def prepare(self, *statements: str) -> "Reader":
        """Executes these, then makes slot and publication."""
        for statement in statements:
            self.database.execute(statement)
        self.feed.begin()
        return self

    def decode(self, pages: list[Page]) -> list[Row]:
        """The changes of these pages, images parsed."""
        rows: list[Row] = []
        for page in pages:
            before = len(rows)
            for batch in self._decoder.decode(page):
                rows += [_parsed(row) for row in batch.to_pylist()]
            found = [Place(row["cursor"], row["ordinal"]) for row in rows[before:]]
            if len(found) == page.count:
                assert (found[0], found[-1]) == (page.first, page.last)
        return rows

    def take(self, count: int, seconds: float = 60.0) -> list[Row]:
        """The next `count` changes, and whatever came with them."""
        taken: list[Row] = []
        deadline = time.monotonic() + seconds
        while len(taken) < count:
            assert time.monotonic() < deadline, f"{len(taken)} of {count} changes came"
            pages = list(self.following.read(0.5))
            self.pages += pages
            taken += self.decode(pages)
        self.rows += taken
        return taken

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Reads until the condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            pages = list(self.following.read(0.1))
            self.pages += pages
            self.rows += self.decode(pages)

    def nothing(self, seconds: float = 0.5) -> None:
        """Reads, and nothing comes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.following.read(0.1) == []

    def confirmed(self) -> int:
        """The slot's confirmed_flush_lsn."""
        return self.lsn(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", self.slot
        )

    def lsn(self, query: str, *parameters: Any) -> int:
        """An LSN that the server says, as a number."""
        ((text,),) = self.database.execute(query, parameters)
        high, low = text.split("/")
        return int(high, 16) << 32 | int(low, 16)

    def close(self) -> None:
        """Closes the following; the next use follows again, from the last change read."""
        if self._following is not None:
            self._following.close()
            self._following = None


def _parsed(row: Row) -> Row:
    images = {name: row[name] and orjson.loads(row[name]) for name in ("key", "before", "after")}
    return row | images


def whole_pages(reader: Reader, cursor: str) -> list[bool]:
    """Of the pages whose last change is of a transaction: whether it ends there."""
    decoder = reader.feed.decoder("text")
    return [
        batch.schema.metadata == WHOLE
        for page in reader.pages if page.last.cursor == cursor
        for batch in decoder.decode(page)
    ]  # fmt: skip
