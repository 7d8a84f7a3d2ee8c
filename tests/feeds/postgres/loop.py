"""A framer with everything around it, and small streams for it."""

from penstock.feeds.postgres.collecting import Collector, KnownRelation, PageLimits
from penstock.feeds.postgres.framing import Framer
from penstock.feeds.postgres.progress import LogProgress
from penstock.feeds.postgres.streams import Streams
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from tests.wire.pages import begin, commit, frame, insert, relation

INT = {"id": 23}
TABLE, OTHER, THIRD = 20_001, 20_002, 20_003


class Loop:
    """A framer with everything around it, and what it returned so far."""

    def __init__(
        self, after: Place | None = None, rows: int = 2000, size: int = 2**18, memory: int = 2**20
    ) -> None:
        self.progress = LogProgress()
        self.streams = Streams(memory=memory)
        self.described: list[bytes] = []
        self.framer = Framer(
            Collector(
                PartitionId("s"),
                after=after,
                limits=PageLimits(size=size, rows=rows),
                describe=self._describe,
            ),
            progress=self.progress,
            streams=self.streams,
        )
        self.pages: list[Page] = []

    def _describe(self, raw: bytes, *_: object) -> KnownRelation:
        self.described.append(raw)
        return KnownRelation(raw=raw)

    def feed(self, *parts: bytes) -> "Loop":
        for part in parts:
            self.framer.feed(part)
            self.pages += self.framer.scan(1.0)
            while self.framer.busy:
                self.pages += self.framer.scan(1.0)
        return self

    def all(self) -> list[Page]:
        self.pages += self.framer.flush(1.0)
        return self.pages


def framed(*messages: bytes) -> bytes:
    return b"".join(frame(message) for message in messages)


def transaction(lsn: int, *rows: int) -> bytes:
    return framed(begin(lsn), *(insert(TABLE, [row]) for row in rows), commit(lsn))


def changes(pages: list[Page]) -> list[tuple[str, int, str, str | None]]:
    """(cursor, ordinal, operation, after) of every change, by the real decoder."""
    decoder = PgoutputDecoder(DecoderSettings(backend="b", database="d"))
    return [
        (row["cursor"], row["ordinal"], row["operation"], row["after"])
        for page in pages
        for batch in decoder.decode(page)
        for row in batch.to_pylist()
    ]


ANNOUNCED = framed(relation(TABLE, INT, key=["id"]))
