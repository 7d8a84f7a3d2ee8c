"""What a pipeline file may say about a DynamoDB table. Reading it does no I/O."""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from penstock.feeds import At
from penstock.feeds.shared import PolledSettings
from penstock.model.settings import Duration, Secret, Start

_ARN = re.compile(r"arn:[^:]+:dynamodb:[^:]*:[^:]*:table/([^/]+)/stream/(.+)")


class DynamodbSettings(PolledSettings):
    """The stream of one DynamoDB table."""

    words: ClassVar[Mapping[str, At]] = {
        "trim_horizon": "beginning",
        "beginning": "beginning",
        "latest": "now",
        "snapshot": "now",
        "now": "now",
    }
    expected: ClassVar[str] = "trim_horizon, latest, snapshot"

    type: Literal["dynamodb"] = "dynamodb"
    table: str = ""
    """The table. Its newest stream is followed, also after the stream was enabled again."""
    stream: str = ""
    """Instead of `table`: the ARN of one stream."""
    region: str | None = None
    """Without it boto3's own rules: AWS_DEFAULT_REGION, then the profile's."""
    endpoint: str | None = Field(None, pattern=r"^https?://[^/]")
    """Where another server than AWS is: http://127.0.0.1:8000."""
    profile: str | None = None
    """A profile of ~/.aws/config."""
    access_key: Secret | None = None
    """With `secret_key`; without both boto3's chain: environment, profile, role of the machine."""
    secret_key: Secret | None = None
    """With `access_key`."""
    session_token: Secret | None = None
    """Of keys that are for a while."""
    start: Start = "trim_horizon"
    """Of a first start: `trim_horizon` (as far back as the stream goes: 24 hours), `latest`,
    `snapshot` (latest, and once a snapshot of the table's items), a time with a zone, or a
    token."""
    on_gap: Literal["fail", "continue", "resnapshot"] = "fail"
    """When changes are lost (trimmed after 24 hours, the stream was disabled and enabled): stop
    this backend and say so, or go on after the gap and say so; `resnapshot` then takes a snapshot
    of the table."""
    tenant: str = Field("none", pattern=r"^(none|field:.+)$")
    """What fills the column `tenant`: `none`, or `field:<attribute>` of the item."""
    reads: int = Field(5, ge=1)
    """Most reads a second and shard. AWS allows five, from all readers together."""
    look_ups: float = Field(1.0, gt=0, le=1)
    """Which part of 8 DescribeStream and 4 ListStreams calls a second this backend may make. AWS
    allows 10 and 5 for an account. The backends of this type in one file share them equally."""
    scan_units: float = Field(500.0, ge=1)
    """Read capacity units a second that each connection of a snapshot uses at most: 500 are 2 MB of
    items."""
    timeout: Duration = Field(30.0, gt=0)
    """Seconds without one byte of an answer, after which a call counts as failed."""

    @field_validator("stream")
    @classmethod
    def _is_an_arn(cls, value: str) -> str:
        if value and not _ARN.fullmatch(value):
            raise ValueError(
                "not the ARN of a stream: arn:aws:dynamodb:REGION:ACCOUNT:table/NAME/stream/LABEL"
            )
        return value

    @model_validator(mode="after")
    def _is_complete(self) -> "DynamodbSettings":
        if bool(self.table) == bool(self.stream):
            raise ValueError("write `table`, or `stream` with the ARN of one of its streams")
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("`access_key` and `secret_key` belong together")
        return self

    @property
    def table_name(self) -> str:
        """The table, also where only a stream is given."""
        found = _ARN.fullmatch(self.stream)
        return found[1] if found else self.table

    @property
    def followed(self) -> tuple[str, str]:
        """See `PolledSettings`: a table has no database, and its backend stands for one."""
        return self.name, self.table_name
