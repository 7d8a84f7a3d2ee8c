"""A collection's documents, read while it is written to, after a place of the change stream.

MongoDB can't read a large collection as of one moment (`snapshot` reads end after five minutes,
`minSnapshotHistoryWindowInSeconds`). So the place comes first: a cluster time that the primary has
reached. Every read waits for that time (`afterClusterTime`): a change from before it is in the
documents, and the stream gives each later one (`TableSnapshot.is_exact`). To the decoder of changes
each document is the event of its insertion.
"""

import struct
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference
from pymongo.read_concern import ReadConcern

from penstock.feeds.mongodb.cluster import collections, stamp_of, time_of
from penstock.feeds.mongodb.connect import Client, address, connect
from penstock.feeds.mongodb.failures import translating
from penstock.feeds.mongodb.losses import era_of_bookmark
from penstock.feeds.mongodb.settings import MongoSettings
from penstock.feeds.shared import DocumentRowSource
from penstock.model.errors import Malformed, SettingsError, Unavailable
from penstock.model.page import Decoder, Page
from penstock.model.position import START, Bookmarks, PartitionId, Place
from penstock.model.table_schema import TableSchema
from penstock.process.closing import closing_on_failure
from penstock.wire.changestream.decoder import ChangeStreamDecoder
from penstock.wire.changestream.events import RAW, cursor_of, element
from penstock.wire.document_lines import document_lines

_LENGTH = struct.Struct("<i")
_ID = b"_id\0"
_STRING = 2
# BSON types of a fixed size that an `_id` usually has.
_SIZES = {1: 8, 7: 12, 8: 1, 9: 8, 16: 4, 17: 8, 18: 8, 19: 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPages:
    """What all pages of a snapshot have in common. `place`: the first one after the snapshot;
    `time`: its cluster time."""

    partition: PartitionId
    place: Place
    time: int
    database: str
    collection: str
    taken_at: int

    def pages(self, batches: Iterator[bytes], rows: int, size: int) -> Iterator[Page]:
        """Pages of at most `rows` documents and about `size` bytes of these, which come in runs."""
        parts: list[bytes] = []
        head, total = self._head(), 0
        for batch in batches:
            for document in documents(batch):
                if len(parts) >= rows or (parts and total + len(document) > size):
                    yield self._page(parts)
                    parts, total = [], 0
                parts.append(element(_event(head, document)))
                total += len(document)
        if parts:
            yield self._page(parts)

    def _head(self) -> bytes:
        event = {
            "_id": {"_data": "00"},
            "operationType": "insert",
            "clusterTime": stamp_of(self.time),
            "ns": {"db": self.database, "coll": self.collection},
        }
        return bson.encode(event)[4:-1]

    def _page(self, parts: list[bytes]) -> Page:
        return Page(
            partition=self.partition,
            first=self.place,
            last=self.place._replace(ordinal=len(parts) - 1),
            count=len(parts),
            captured_at=self.taken_at,
            context=b"",
            payload=b"".join(parts),
        )


def documents(batch: bytes) -> Iterator[bytes]:
    """The documents of a run of them. Raises Malformed."""
    at = 0
    while at < len(batch):
        stop = at + (_LENGTH.unpack_from(batch, at)[0] if at + 5 <= len(batch) else 0)
        if not at + 5 <= stop <= len(batch):
            raise Malformed(f"a batch of documents is broken at byte {at}", "mongodb")
        yield batch[at:stop]
        at = stop


def _event(head: bytes, document: bytes) -> bytes:
    key = id_element(document)
    body = b"".join((head, b"\x03documentKey\0", _document(key), b"\x03fullDocument\0", document))
    return _document(body)


def _document(elements: bytes) -> bytes:
    return _LENGTH.pack(len(elements) + 5) + elements + b"\0"


def id_element(document: bytes) -> bytes:
    """A document's `_id`, which the server stores as the first element. Raises Malformed."""
    kind = document[4]
    if document.startswith(_ID, 5):
        if size := _SIZES.get(kind):
            return document[4 : 9 + size]
        if kind == _STRING:
            return document[4 : 13 + _LENGTH.unpack_from(document, 9)[0]]
    found: Any = RawBSONDocument(document, RAW).get("_id", ...)
    if found is ...:
        raise Malformed("a document has no _id", "mongodb")
    return bson.encode({"_id": found})[4:-1]


_BATCH = 1000  # documents that the server is asked for at a time, at most
_SAMPLED = 20  # documents of the sample to a range, about
_LEAST, _MOST = 200, 50_000  # documents of a sample
_SHARE = 25  # less than a document in twenty: else the server reads them all ($sample)
_CONFIRMING = 10.0  # seconds for the primary to prove that it is
_MAJORITY = ReadConcern("majority")

# `after` (inclusive) and `to` (exclusive): `{"_id": ...}` as base64 of BSON.
IdRange = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A cluster time, and the document `$clusterTime` that lets a server accept it."""

    time: int
    gossip: Mapping[str, Any] | None

    @contextmanager
    def session(self, client: Client) -> Iterator[Any]:
        """Whose reads wait until their server has everything up to this time."""
        with client.start_session(causal_consistency=True) as session:
            if self.gossip:
                session.advance_cluster_time(self.gossip)
            session.advance_operation_time(stamp_of(self.time))
            yield session


@dataclass(frozen=True, slots=True, kw_only=True)
class MongoRowSource(DocumentRowSource):
    """A `feeds.RowSource`."""

    settings: MongoSettings
    pin: Pin
    rows: DocumentPages

    def line_decoder(self) -> Decoder:
        flatten = self.settings.flatten
        return document_lines(
            lambda form: ChangeStreamDecoder("", flatten=flatten, images=form), "text", "_id"
        )

    @contextmanager
    def opened(
        self, is_stopped: Callable[[], bool]
    ) -> Iterator[Callable[[IdRange, int, int], Iterator[Page]]]:
        what = f"reading documents of {self.rows.database}.{self.rows.collection}"
        with closing(connect(self.settings)) as client, self.pin.session(client) as session:

            def batches(part: IdRange, most: int) -> Generator[bytes, None, None]:
                # Bounds of the index: `$gt` finds only values of its bound's own type.
                bounds = {
                    name: _value(part[key])
                    for name, key in (("min", "after"), ("max", "to"))
                    if key in part
                }
                found = _of(client, self.rows).find_raw_batches(
                    hint=[("_id", 1)], batch_size=min(most, _BATCH), session=session, **bounds
                )
                with translating(what), closing(found):
                    for batch in found:
                        if is_stopped():
                            raise Unavailable(
                                f"{what}: the snapshot was stopped before all ranges were read",
                                "mongodb",
                            )
                        yield batch

            def pages(part: IdRange, rows: int, size: int) -> Iterator[Page]:
                with closing(batches(part, rows)) as found:
                    yield from self.rows.pages(found, rows, size)

            yield pages


class MongoSnapshot:
    """A `feeds.TableSnapshot`. Nothing is kept at the server for it."""

    counted = None
    is_exact = False

    def __init__(
        self,
        settings: MongoSettings,
        partition: PartitionId,
        name: tuple[str, str],
        known: Bookmarks | None,
        *,
        patience: float,
    ) -> None:
        self._settings, self._partition, self._patience = settings, partition, patience
        self._name, self._known = name, known
        self._era = self._era_of(known or {})

    def __enter__(self) -> Self:
        settings, name = self._settings, self._name
        try:
            settings.refuse_deltas()
        except ValueError as error:
            raise SettingsError(str(error), "mongodb") from None
        if self._known is not None and self._partition not in self._known:
            raise Unavailable(
                "no position is saved yet: changes after the snapshot would be missing",
                "mongodb",
                hint="start the pipeline first",
            )
        found = {(one.schema, one.table): one for one in schemas_of(settings)}
        if name not in found:
            raise SettingsError(
                f"there is no collection {'.'.join(name)}",
                "mongodb.collection-missing",
                hint="name one that is followed; a view and a time series have no changes",
            )
        self.schema: TableSchema = found[name]
        self._client = connect(settings)
        with closing_on_failure(self._client):
            pin = self._pinned()
        self.lsn = cursor_of(pin.time)
        place = Place(self._era + self.lsn, 0)
        self.position = str(place)
        rows = DocumentPages(
            partition=self._partition, place=place, time=pin.time, database=name[0],
            collection=name[1], taken_at=round(time.time() * 1_000_000),
        )  # fmt: skip
        self.source = MongoRowSource(settings=settings, pin=pin, rows=rows)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _pinned(self) -> Pin:
        """A linearizable read proves, by a write to a majority, that the primary is the one of now:
        no change that was published already has a later time."""
        with translating(f"asking the primary of {address(self._settings)}"):
            database, collection = self._name
            reply = self._client[database].command(
                "find",
                collection,
                limit=1,
                projection={"_id": 1},
                readConcern={"level": "linearizable"},
                maxTimeMS=max(1, round(min(self._patience, _CONFIRMING) * 1000)),
                codec_options=RAW,
                read_preference=ReadPreference.PRIMARY,
            )
        gossip = reply.get("$clusterTime")
        known = max(time_of(reply.get("operationTime")), time_of(gossip and gossip["clusterTime"]))
        if not known:
            raise SettingsError(
                f"{address(self._settings)} has no cluster time",
                "mongodb.no-replica-set",
                hint="snapshots need a replica set or a sharded cluster",
            )
        return Pin(time=known, gossip=bson.decode(gossip.raw) if gossip else None)

    @property
    def mark(self) -> str:
        """See `feeds.TableSnapshot`: an `_id` never changes."""
        return f"by-id {self._era}"

    def written_since(self, ranges: Sequence[IdRange], mark: str) -> Sequence[IdRange] | None:
        """See `feeds.TableSnapshot`: what was written since, the changes have whole."""
        return () if mark == self.mark else None

    def plan(self, rows: int, size: int) -> Sequence[IdRange]:
        """See `feeds.TableSnapshot`: by a sample, whose order and sizes are the server's."""
        with (
            translating(f"cutting {'.'.join(self._name)} into ranges"),
            self.source.pin.session(self._client) as session,
        ):
            collection = _of(self._client, self.source.rows)
            count = collection.estimated_document_count()
            wanted = min(max(_SAMPLED * count // rows, _LEAST), _MOST, count // _SHARE)
            if wanted < 1:
                return [{}]
            stages: list[dict[str, Any]] = [
                {"$sample": {"size": wanted}},
                {"$project": {"size": {"$bsonSize": "$$ROOT"}}},
                {"$sort": {"_id": 1}},
            ]
            sample = list(collection.aggregate(stages, session=session, allowDiskUse=True))
        found = [(_text(one), int(one["size"])) for one in sample]
        return list(id_ranges(found, count=count, rows=rows, size=size))

    def verify(self, known: Bookmarks) -> None:
        if self._era_of(known) != self._era:
            raise Unavailable(
                "changes go on in another history since the snapshot began",
                "mongodb",
                hint="ask for another snapshot",
            )

    def _era_of(self, known: Bookmarks) -> str:
        saved = known.get(self._partition, START)
        return era_of_bookmark(saved.place, saved.mark)


def sample(
    settings: MongoSettings, partition: PartitionId, name: tuple[str, str], most: int
) -> Iterator[Page]:
    """Some documents of a collection. They have no place in the stream: nothing goes on after
    them, and the primary need not prove that it is one."""
    now = int(time.time())
    rows = DocumentPages(
        partition=partition, place=Place(cursor_of(now << 32), 0), time=now << 32,
        database=name[0], collection=name[1], taken_at=now * 1_000_000,
    )  # fmt: skip
    with closing(connect(settings)) as client, translating(f"reading {'.'.join(name)}"):
        found = _of(client, rows).find_raw_batches(limit=most)
        with closing(found):
            yield from rows.pages(found, most, sys.maxsize)


def schemas_of(settings: MongoSettings) -> Sequence[TableSchema]:
    """The schemas of all followed collections: a document has an `_id`, and whatever else."""
    found = collections(settings)
    names = [name for _, name in found]
    version = blake2b(b"documents by _id", digest_size=8).hexdigest()
    column = {
        "name": "_id", "position": 1, "data_type": "bson", "is_nullable": False,
        "column_default": None, "key": True,
    }  # fmt: skip
    return [
        TableSchema(
            schema=database, table=name, version=version, columns=(column,), is_of_documents=True,
            name=(name,) if names.count(name) == 1 else (database, name),
        )
        for database, name in found
    ]  # fmt: skip


def id_ranges(
    sample: Sequence[tuple[str, int]], *, count: int, rows: int, size: int
) -> Iterator[IdRange]:
    """Ranges of `count` documents at values of a sorted sample (with the documents' sizes): of
    about `rows` documents or `size` bytes each. Pure."""
    mean = max(1.0, sum(one for _, one in sample) / max(1, len(sample)))
    step = max(1, round(min(rows, size / mean) * len(sample) / max(1, count)))
    before = ""
    for bound, _ in sample[step::step]:
        if bound == before:  # a random walk may find a document twice
            continue
        yield {"after": before, "to": bound} if before else {"to": bound}
        before = bound
    yield {"after": before} if before else {}


def _of(client: Client, rows: DocumentPages) -> Any:
    return client[rows.database].get_collection(
        rows.collection, codec_options=RAW, read_concern=_MAJORITY
    )


def _text(document: Any) -> str:
    return b64encode(bson.encode({"_id": document["_id"]})).decode()


def _value(text: str) -> Any:
    return bson.decode(b64decode(text), RAW)
