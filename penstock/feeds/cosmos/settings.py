"""What a pipeline file may say about a Cosmos DB container. Reading it does no I/O."""

import base64
import binascii
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Literal

import orjson
from pydantic import Field, model_validator

from penstock.feeds import At, GapPolicy
from penstock.feeds.shared import PolledSettings
from penstock.model.settings import Duration, Secret, Start


class CosmosSettings(PolledSettings):
    """The change feed of one container (API for NoSQL)."""

    words: ClassVar[Mapping[str, At]] = {"beginning": "beginning", "now": "now"}
    expected: ClassVar[str] = "beginning, now"

    type: Literal["cosmos"] = "cosmos"
    endpoint: str = Field(pattern=r"^https?://[^/]")
    """The account: https://ACCOUNT.documents.azure.com:443/."""
    key: Secret | None = None
    """The account's key; a read-only key is enough. Without a key penstock uses Microsoft Entra ID,
    by azure-identity's DefaultAzureCredential (environment, managed identity, `az login`)."""
    database: str = Field(min_length=1)
    """The database's id."""
    container: str = Field(min_length=1)
    """The container's id."""
    mode: Literal["latest_version", "all_versions_and_deletes"] = "latest_version"
    """`latest_version`: the current state of each item, without deletes.
    `all_versions_and_deletes`: every change in the period of the account's continuous backup."""
    start: Start = ""
    """Where a first start begins: `beginning` (the default in latest-version mode), `now`, a time
    with a zone (changes after it), or a token: an iterator's, or the SDK's continuation."""
    on_gap: GapPolicy = "fail"
    """When changes are lost (older than the retention, or another container has this name),
    penstock reports the gap. `fail` then stops this backend, `continue` reads on after the gap, and
    `resnapshot` also takes a snapshot of the container."""
    tenant: str = Field("none", pattern=r"^(none|field:.+)$")
    """The value of the column `tenant`: `none`, or `field:<property>` of the item."""
    system_properties: bool = False
    """Whether images keep _rid, _self, _etag, _attachments, _ts and _lsn."""
    page_items: int = Field(1000, ge=1)
    """Most items of a page; a transaction is never cut. penstock halves the number while the
    service refuses a page as too large."""
    timeout: Duration = Field(65.0, gt=0)
    """Seconds without a byte of an answer, after which a call fails."""

    @model_validator(mode="after")
    def _mode_has_the_start(self) -> "CosmosSettings":
        if self.every and (self.at == "beginning" or isinstance(self.at, datetime)):
            raise ValueError(
                "the mode all_versions_and_deletes starts at `now` or with a token: the service"
                " gives neither its beginning nor a time"
            )
        return self

    @property
    def path(self) -> str:
        """`database/container`, for people."""
        return f"{self.database}/{self.container}"

    @property
    def followed(self) -> tuple[str, str]:
        """See `PolledSettings`."""
        return self.database, self.container

    @property
    def every(self) -> bool:
        """Whether all versions and deletes are read."""
        return self.mode == "all_versions_and_deletes"

    @property
    def at(self) -> At:
        """`start` as `Feed.begin` takes it; None for a continuation of the SDK."""
        if not self.start:
            return "now" if self.every else "beginning"
        return self.begins_at(self.start)

    @classmethod
    def begins_at(cls, start: str | dict[str, Any]) -> At:
        if not start or (isinstance(start, str) and sdk_token(start) is not None):
            return None
        return super().begins_at(start)

    @property
    def continuation(self) -> dict[str, Any] | None:
        """The SDK's continuation in `start`, decoded."""
        return sdk_token(self.start) if isinstance(self.start, str) else None


def sdk_token(text: str) -> dict[str, Any] | None:
    """The SDK's continuation as JSON: base64 of a document with `"v": "v2"`; None if it is none."""
    try:
        found = orjson.loads(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("v") == "v2" else None
