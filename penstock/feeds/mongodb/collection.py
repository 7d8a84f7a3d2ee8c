"""A collection's documents as they are now, to compare them with a stream."""

from collections.abc import Iterator, Mapping
from typing import Any

from pymongo.read_concern import ReadConcern

from penstock.feeds.mongodb.connect import connect
from penstock.feeds.mongodb.failures import translating
from penstock.feeds.mongodb.settings import MongoSettings
from penstock.model.errors import SettingsError
from penstock.model.images import untyped
from penstock.wire.changestream.values import CODEC, document_text, flat, plain


class MongoCollection:
    """A `feeds.Collection`. A document's values are those of messages."""

    def __init__(self, settings: MongoSettings, name: str) -> None:
        self._settings = settings
        database, _, collection = name.partition(".")
        if settings.database != "*":
            database, collection = settings.database, name
        self.namespace, self.name = database, collection

    def identity(self, change: Mapping[str, Any]) -> str:
        known = change.get("document_id")
        return str(known) if known is not None else document_text(untyped(change["key"]["_id"]))

    def key_of(self, image: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """See `feeds.Collection`. Of a sharded collection, too, the `_id` alone."""
        if "_id" in image:
            return {"_id": image["_id"]}
        if any(name.startswith("_id.") for name in image):
            raise SettingsError(
                "an _id that is a document cannot be found in flattened images",
                "mongodb",
                hint="compare with sink.layout: penstock, or without flatten",
            )
        return None

    def count(self) -> int:
        with connect(self._settings) as client, translating("counting documents"):
            return int(self._of(client).count_documents({}))

    def rows(self, most: int | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
        with connect(self._settings) as client, translating("reading a collection"):
            found = self._of(client)
            by_chance = [{"$sample": {"size": most}}]
            for document in found.find() if most is None else found.aggregate(by_chance):
                row = plain(document)
                shown = flat(row) if self._settings.flatten else row
                yield document_text(document["_id"]), shown

    def _of(self, client: Any) -> Any:
        return client[self.namespace].get_collection(
            self.name, codec_options=CODEC, read_concern=ReadConcern("majority")
        )
