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
    """The table. penstock follows its newest stream, also after the stream was enabled again."""
    stream: str = ""
    """Instead of `table`: the ARN of one stream."""
    region: str | None = None
    """The region. Default: boto3's rules (AWS_DEFAULT_REGION, then the profile's region)."""
    endpoint: str | None = Field(None, pattern=r"^https?://[^/]")
    """The address of another server than AWS: http://127.0.0.1:8000."""
    profile: str | None = None
    """A profile of ~/.aws/config."""
    access_key: Secret | None = None
    """Together with `secret_key`. Without both, boto3's chain applies: environment, profile, role
    of the machine."""
    secret_key: Secret | None = None
    """Together with `access_key`."""
    session_token: Secret | None = None
    """The token of temporary credentials."""
    start: Start = "trim_horizon"
    """Where a first start begins: `trim_horizon` (as far back as the stream goes: 24 hours),
    `latest`, `snapshot` (latest, and a snapshot of the table's items once), a time with a zone, or
    a token."""
    on_gap: Literal["fail", "continue", "resnapshot"] = "fail"
    """When changes are lost (trimmed after 24 hours, or the stream was disabled and enabled),
    penstock reports the gap. `fail` then stops this backend, `continue` reads on after the gap, and
    `resnapshot` also takes a snapshot of the table."""
    tenant: str = Field("none", pattern=r"^(none|field:.+)$")
    """The value of the column `tenant`: `none`, or `field:<attribute>` of the item."""
    reads: int = Field(5, ge=1)
    """Most reads a second and shard. AWS allows five, from all readers together."""
    look_ups: float = Field(1.0, gt=0, le=1)
    """This backend's part of 8 DescribeStream and 4 ListStreams calls a second. AWS allows 10 and 5
    for an account. The backends of this type in one file share the calls equally."""
    scan_units: float = Field(500.0, ge=1)
    """Most read capacity units a second of each connection of a snapshot: 500 are 2 MB of items."""
    timeout: Duration = Field(30.0, gt=0)
    """Seconds without a byte of an answer, after which a call fails."""

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
