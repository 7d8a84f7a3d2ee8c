"""What a pipeline file may say about a MongoDB source. Reading it does no I/O."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from penstock.feeds.shared import BackendSettings, Names
from penstock.model.settings import Duration, Secret, Size

# In place of a database's name.
ALL = "*"
# The collection of positions, in any database, unless they are given another.
POSITIONS = "penstock_lease"

_WORDS = ("now", "snapshot", "beginning")  # of `start`
_TENANT = re.compile(r"none|database|collection_prefix|field:[^.]+(\.[^.]+)*")
_TOKEN = re.compile(r"[0-9A-Fa-f]{16,}")
_DATABASE = re.compile(r"[^/\\. \"$*\0]{1,63}")


def _word(value: Any) -> Any:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


def _database_of(url: str) -> str:
    """What a URL has as its path, but not `admin`, where users are: it has no change stream."""
    path = url.partition("://")[2].rpartition("@")[2].partition("?")[0].partition("/")[2]
    name = unquote(path).partition(".")[0]
    return "" if name == "admin" else name


class MongoSettings(BackendSettings):
    """One or all databases of a MongoDB replica set or sharded cluster, read by one change
    stream."""

    type: Literal["mongodb"] = "mongodb"
    connection: Secret
    """`mongodb://user:password@host:port,host:port/?replicaSet=...` or `mongodb+srv://...`, with
    every option of PyMongo as `?key=value`."""
    database: str = Field("", validate_default=True)
    """The database; `*` for all databases of the cluster. Default: the database that the URL
    names."""
    collections: Names = ()
    """Only these collections; with `database: "*"` as DATABASE.COLLECTION. The server filters."""
    exclude_collections: Names = ()
    """All collections but these, in the same form."""
    full_document: Annotated[
        Literal["update_lookup", "required", "when_available", "off"], BeforeValidator(_word)
    ] = "update_lookup"
    """The `after` of an update: the document that the server finds by a look-up (`update_lookup`),
    the document right after the update (a post-image, which the collection must keep: `required`,
    or `when_available`), or nothing (`off`). `delta` has what changed."""
    before: Annotated[Literal["off", "when_available", "required"], BeforeValidator(_word)] = "off"
    """The `before` of updates, replaces and deletes: nothing (`off`), or the pre-image, which the
    collection must keep."""
    start: str = "now"
    """Where a first start begins: `now`, `snapshot` (now, and a snapshot of each collection's
    documents once), `beginning` (as far back as the oplog goes), a time with a zone, or the `_data`
    of a resume token."""
    tenant: str = "none"
    """The value of the column `tenant`: `none`, `database`, `collection_prefix` (the collection's
    name up to its first underscore) or `field:PATH` of the document."""
    flatten: bool = False
    """Whether nested documents become dotted columns (`address.city`) of the images."""
    on_gap: Literal["fail", "continue", "resnapshot"] = "fail"
    """When changes are lost (the oplog rolled over, or the cluster is another one), penstock
    reports the gap. `fail` then stops this backend, `continue` reads on at the oldest entry of the
    oplog, and `resnapshot` also takes a snapshot of each collection."""
    page_size: Size = Field(512 * 2**10, ge=1)
    """Bytes after which a page is cut."""
    page_rows: int = Field(2_000, ge=1)
    """Changes after which a page is cut, and the most that penstock asks the server for at a
    time."""
    page_wait: Duration = Field(0.005, ge=0)
    """The least seconds between two requests while replies are small: a page of one change costs
    nearly as much as a page of a hundred."""
    connect_timeout: Duration = Field(10.0, gt=0)
    """Seconds for finding a server and connecting to it."""
    silence: Duration = Field(30.0, ge=2)
    """Seconds that an answer may take. penstock repeats a request that scans a long oplog with
    twice the time, up to ten minutes. `connect_timeout` detects a hanging server sooner."""

    @field_validator("connection")
    @classmethod
    def _is_a_url(cls, value: Secret) -> Secret:
        text = value.get_secret_value()
        fine = text.startswith(("mongodb://", "mongodb+srv://"))
        if text.startswith("mongodb://"):
            try:
                parse_uri(text, warn=False)
            except (PyMongoError, ValueError):
                fine = False  # the message may repeat parts of the URL
        if not fine:
            raise ValueError("not a URL of the form mongodb://user:password@host:port/")
        return value

    @field_validator("database")
    @classmethod
    def _is_a_database(cls, value: str, info: ValidationInfo) -> str:
        if not value and "connection" in info.data:
            value = _database_of(info.data["connection"].get_secret_value())
            if not value:
                raise ValueError('is missing: name a database, or "*" for all')
        if value and value != ALL and not _DATABASE.fullmatch(value):
            raise ValueError('write the name of a database, or "*" for all')
        return value

    @field_validator("start", mode="before")
    @classmethod
    def _is_a_beginning(cls, value: Any) -> Any:
        if value in _WORDS or (isinstance(value, str) and _TOKEN.fullmatch(value)):
            return value
        try:
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        except (TypeError, ValueError):
            moment = None
        if moment is None or moment.tzinfo is None:
            raise ValueError(
                "write now, snapshot, beginning, a time with a zone such as 2026-11-22T10:00:00Z,"
                " or the _data of a resume token"
            )
        return moment.astimezone(UTC).isoformat()

    @field_validator("tenant")
    @classmethod
    def _is_a_rule(cls, value: str) -> str:
        if not _TENANT.fullmatch(value):
            raise ValueError("write none, database, collection_prefix or field:PATH")
        return value

    @model_validator(mode="after")
    def _is_complete(self) -> "MongoSettings":
        if self.collections and self.exclude_collections:
            raise ValueError("write `collections` or `exclude_collections`, not both")
        for each in (*self.collections, *self.exclude_collections):
            if self.database == ALL and "." not in each.strip("."):
                raise ValueError(f'with database "*" write {each!r} as DATABASE.COLLECTION')
        if self.start == "snapshot" or self.on_gap == "resnapshot":
            self.refuse_deltas()
        return self

    @property
    def only(self) -> str:
        """The one database that is followed, as marks have it: `NAME/`; "" for all of them."""
        return "" if self.database == ALL else f"{self.database}/"

    def takes(self, database: str, collection: str) -> bool:
        """Whether a collection of a database that is followed is."""
        name = f"{database}.{collection}" if self.database == ALL else collection
        if collection == POSITIONS:
            return False
        if self.collections:
            return name in self.collections
        return name not in self.exclude_collections

    def refuse_deltas(self) -> None:
        """Raises ValueError where an update may come without its document."""
        if self.full_document in ("off", "when_available"):
            raise ValueError(
                f"with full_document: {self.full_document} an update may have no document, and a"
                " snapshot could not be gone on with: write update_lookup, or required"
            )

    @property
    def namespace(self) -> str:
        """See `DocumentSettings`."""
        return "" if self.database == ALL else self.database

    def following(self, tables: Sequence[tuple[str, str]]) -> "MongoSettings":
        """See `DocumentSettings`: without collections of its own it follows these."""
        self.refuse_deltas()
        if self.collections or self.exclude_collections:
            for each in tables:
                if not self.takes(*each):
                    raise ValueError(f"it does not follow {'.'.join(each)}: see `collections`")
            return self
        names = [".".join(each) if self.database == ALL else each[1] for each in tables]
        return self.model_copy(update={"collections": tuple(names)})

    @property
    def begins_at(self) -> datetime | str:
        """`start`, with a time as one."""
        text = "now" if self.start == "snapshot" else self.start
        is_time = text not in _WORDS and not _TOKEN.fullmatch(text)
        return datetime.fromisoformat(text) if is_time else text
