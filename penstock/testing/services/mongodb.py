"""A MongoDB replica set or cluster: a scratch database."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure

from penstock.feeds import Feed, GapPolicy
from penstock.model.errors import PositionLost
from penstock.model.position import Bookmark
from penstock.stream.opening import feed_of
from penstock.testing.claims import NotTried
from penstock.testing.living import Document
from penstock.testing.losses import LostHistory
from penstock.testing.services import Loss, SourceService

_WAIT = 10_000  # milliseconds for finding a server


class MongoService(SourceService):
    """See above."""

    kind = "MongoDB"
    drivers = ("pymongo",)
    makes = "the database {}"
    stays = "an election or a chunk that moves is for the whole cluster to bear"
    needs = "a replica set or a sharded cluster, and a user with readWriteAnyDatabase"

    def __init__(self, url: str, given: Mapping[str, str]) -> None:
        super().__init__(url, given)
        self.collection = (self.name, "one")

    @contextmanager
    def _client(self) -> Iterator[MongoClient[dict[str, Any]]]:
        with MongoClient[dict[str, Any]](
            self.url, serverSelectionTimeoutMS=_WAIT, serverMonitoringMode="poll"
        ) as client:
            yield client

    def make(self) -> None:
        with self._client() as client:
            for name in ("one", "two"):
                client[self.name].create_collection(name)

    def version(self) -> str:
        with self._client() as client:
            return str(client.server_info()["version"])

    def remove(self) -> None:
        with self._client() as client:
            client.drop_database(self.name)

    def reader(self, policy: GapPolicy = "fail") -> Feed:
        return feed_of("mongodb", {
            "name": "prove", "connection": self.url, "database": self.name, "page_rows": 3,
            "on_gap": policy,
        })  # fmt: skip

    def id_of(self, image: Document) -> str:
        return str(image["_id"])

    def insert(self, ids: Sequence[str]) -> None:
        with self._client() as client:
            for each in ids:
                client[self.name]["one"].insert_one({"_id": each, "text": "x"})

    def workload(self) -> Sequence[tuple[str, str]]:
        first = [f"a{n:02}" for n in range(12)]
        with self._client() as client:
            one, two = client[self.name]["one"], client[self.name]["two"]
            one.insert_many([{"_id": each, "text": "row"} for each in first])
            one.update_many({"_id": {"$in": first[:3]}}, {"$set": {"text": "y"}})
            one.delete_one({"_id": "a11"})
            with client.start_session() as session, session.start_transaction():
                two.insert_many([{"_id": each} for each in ("c", "d")], session=session)
                one.update_one({"_id": "a03"}, {"$unset": {"text": 1}}, session=session)
            with client.start_session() as session:
                session.start_transaction()
                two.insert_one({"_id": "never"}, session=session)
                session.abort_transaction()
            one.replace_one({"_id": "a05"}, {"text": "long " * 2000})
            two.delete_many({})
        return [
            *((each, "INSERT") for each in first),
            *((each, "UPDATE") for each in first[:3]),
            ("a11", "DELETE"), ("c", "INSERT"), ("d", "INSERT"), ("a03", "UPDATE"),
            ("a05", "REPLACE"), ("c", "DELETE"), ("d", "DELETE"),
        ]  # fmt: skip

    def refusal(self) -> PositionLost:
        """ChangeStreamHistoryLost, which the oplog has to confirm."""
        with self._client() as client:
            try:
                readable = client.local["oplog.rs"].find_one()
            except OperationFailure:  # a mongos, or no right to read it
                readable = None
        if not readable:
            raise NotTried("the oplog, which a refusal is compared with, cannot be read")
        error = PositionLost("refused", "testing.refused")
        error.__cause__ = OperationFailure("refused", 286)
        return error

    @contextmanager
    def lost(self) -> Iterator[LostHistory]:
        """A token that no oplog has."""
        (partition,) = self.reader().begin("now")
        unknown = Bookmark(mark={"token": {"_data": "00FF00FF00FF00FF"}})
        yield Loss(self.reader, partition, unknown, ["token_"], self.insert)


build = MongoService
