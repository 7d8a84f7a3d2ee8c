"""Which tables a replica may have: the bucket `schemas`, with every version that it keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.consumer.mirror.target_table import TargetTable
from penstock.model.errors import SettingsError
from penstock.model.formats import verify_format
from penstock.nats.api import JetStream
from penstock.nats.buckets import Bucket, read_map
from penstock.nats.connection import Connection

BUCKET = "schemas"
_HINT = "the pipeline makes it when it starts, if its source has snapshots; is it another account?"


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a table's key; its document is None where the table left the bucket."""

    revision: int
    document: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as its key in the bucket and the document under it have it."""

    key: str
    document: Mapping[str, Any]
    revision: int = 0

    @property
    def pipeline(self) -> str:
        """Which pipeline publishes it; "" if the document does not say it."""
        return str(self.document.get("pipeline") or "")

    @property
    def backend(self) -> str:
        """What its name begins with, where the pipeline has several backends; else ""."""
        return str(self.document.get("backend") or "")

    @property
    def layout(self) -> str:
        """What it is published in, if that is for consumers other than replicas; else ""."""
        return str(self.document.get("layout") or "")

    @property
    def name(self) -> tuple[str, ...]:
        """What subjects call it: as the key, with the table's and its schema's own names."""
        table, schema, backend = self.document["table"], self.document["schema"], self.backend
        parts = [backend] if backend else []
        if len(self.key.split(".")) > len(parts) + 1:
            parts.append(schema)
        return (*parts, table)

    @property
    def names(self) -> tuple[str, ...]:
        """What a user may call it."""
        table, schema = self.document["table"], self.document["schema"]
        return ".".join(self.name), self.key, f"{schema}.{table}", table

    def mirrored(self) -> TargetTable:
        """A table of a replica, of which nothing is there yet: its own name, with the schema before
        it outside `public`, and the backend where there are several. Raises SettingsError."""
        if self.layout:
            raise SettingsError(
                f"{self.key} is published in the layout {self.layout}, which a replica cannot"
                " follow: it has no positions, and other values",
                "consumer.layout-foreign",
                hint="publish it with sink.layout: penstock (penstock bridge --layout penstock),"
                " into a stream of its own",
            )
        table, schema, backend = self.document["table"], self.document["schema"], self.backend
        has_schema = len(self.name) > 1 + bool(backend)
        is_alone = not has_schema if self.document.get("documents") else schema == "public"
        parts = [backend, "" if is_alone else schema, table]
        return TargetTable(
            name=self.key, backend=backend, schema=schema, table=table,
            target="_".join(part for part in parts if part),
        )  # fmt: skip


class Catalog:
    """The tables that pipelines announce, or one `pipeline`, over an open connection. `tables`: by
    their keys, as they were `read` last. Everything raises Unavailable, SettingsError."""

    def __init__(self, connection: Connection, pipeline: str = "") -> None:
        self.tables: Mapping[str, PublishedTable] = {}
        self._api, self._bucket = JetStream(connection), Bucket(connection, BUCKET)
        self._revision, self._pipeline = -1, pipeline

    @property
    def revision(self) -> int:
        """A number that changes when a table does."""
        if (found := self._api.stream(self._bucket.stream)) is None:
            raise SettingsError(
                f"there is no bucket {BUCKET!r}", "consumer.bucket-missing", hint=_HINT
            )
        return int(found["state"]["last_seq"])

    @property
    def is_outdated(self) -> bool:
        """Whether a table changed since."""
        return self.revision != self._revision

    def read(self) -> Mapping[str, PublishedTable]:
        """Reads all tables that there are now."""
        self._revision = self.revision
        found = {each.key: (_read(each.value), each.revision) for each in self._bucket.entries()}
        every = [PublishedTable(key, one, number) for key, (one, number) in found.items() if one]
        self.tables = {
            each.key: each for each in every
            if not self._pipeline or each.pipeline in ("", self._pipeline)
        }  # fmt: skip
        return self.tables

    def history(self, key: str) -> list[Revision]:
        """All that the bucket has of a table, the oldest first."""
        return [Revision(each.revision, _read(each.value)) for each in self._bucket.history(key)]

    def version(self, key: str, version: str) -> Mapping[str, Any] | None:
        """The document of one version of a table; None if the bucket does not have it."""
        found = (each.document for each in reversed(self.history(key)))
        return next((one for one in found if one and one["version"] == version), None)


def is_past(document: Mapping[str, Any] | None) -> bool:
    """Whether the table was otherwise already when it was stored."""
    return document is not None and not document.get("current", True)


def chosen(
    names: Sequence[str], tables: Mapping[str, PublishedTable]
) -> tuple[list[PublishedTable], dict[str, SettingsError]]:
    """The tables that users call so; and why there is none of a name, with those that there are."""
    found, missing = [], {}
    for name in names:
        exact = [table for table in tables.values() if name in table.names[:2]]
        those = exact or [table for table in tables.values() if name in table.names]
        if len(those) != 1:
            there = ", ".join(sorted(".".join(each.name) for each in those or tables.values()))
            what = "may be one of several tables" if those else "is no table that is published"
            missing[name] = SettingsError(
                f"{name} {what}", "consumer", hint=f"there are: {there or 'none'}"
            )
        else:
            found.append(those[0])
    return found, missing


def _read(value: bytes | None) -> dict[str, Any] | None:
    """The document; None if penstock did not write it."""
    found = read_map(value)
    verify_format(found.get("format"), f"a document of the bucket {BUCKET}")
    return found if found.keys() >= {"table", "schema", "version", "columns"} else None
