"""The JetStream sink's settings: the `sink:` block of a pipeline file, and Spark's options."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from penstock.model.change import Images
from penstock.model.errors import SettingsError
from penstock.model.settings import Duration, Size
from penstock.nats.settings import NatsSettings
from penstock.process.plugins import plugin
from penstock.sinks.messages.settings import MessageSettings
from penstock.sinks.subject import parse_template

Delivery = Literal["auto", "exactly-once", "deduplicated", "at-least-once"]
Durability = Literal["default", "fsync"]

# Seconds that a server keeps message ids: its own default, and the least that it takes.
USUAL_WINDOW, LEAST_WINDOW = 120.0, 0.1


class JetStreamSettings(NatsSettings, MessageSettings):
    """Where changes go, as what, and how surely.

    `replicas`, `storage`, `retention`, `max_age`, `max_bytes` and `duplicate_window` shape the
    stream when it is made; one that exists is verified and never changed.
    """

    type: Literal["jetstream"] = "jetstream"
    stream: str = Field(default="CDC", pattern=r"^[^\s.*>/\\]+$")
    """The stream; made if missing."""
    subject: str = "cdc.{collection}.{operation}"
    """The subject of a message, with names of the change's columns in braces."""
    letter_source: bool | None = None
    """Whether the dead letter of a change that cannot be read has the source's bytes of the row,
    which no statement of `transform` has seen. Default: false with a `transform`, else true."""
    events: str = Field(default="PENSTOCK_EVENTS", pattern=r"^[^\s.*>/\\]+$")
    """The stream of events of the pipeline itself: gaps."""
    dictionaries: bool = False
    """Whether the sink compresses bodies with their tables' dictionaries."""
    delivery: Delivery = "auto"
    """`exactly-once`: each change is stored once. `deduplicated`: for `duplicate_window` the server
    drops a repeated change by its id. `at-least-once`: changes may be repeated. `auto`: the first
    of these that the server and the stream allow."""
    durability: Durability = "default"
    """`fsync`: start only if the server writes to the disk before it acknowledges."""
    monitoring: str | None = None
    """`http://host:8222` of each server of the stream, with commas. The sink asks there whether the
    servers sync each message."""
    assume_synced: bool = False
    """Your declaration that the servers do, if the sink can ask no monitoring endpoint."""
    replicas: int = Field(default=1, ge=1, le=5)
    """Replicas of a stream that the sink makes."""
    storage: Literal["file", "memory"] = "file"
    """Storage of a stream that the sink makes."""
    retention: Literal["limits", "interest"] = "limits"
    """Retention of a stream that the sink makes. `interest`: the server removes a message when
    every consumer has acknowledged it."""
    max_age: Duration = Field(default=0.0, ge=0)
    """Seconds that a stream that the sink makes keeps a message; 0: for ever."""
    max_bytes: Size = Field(default=0, ge=0)
    """Most bytes of a stream that the sink makes; 0: no limit."""
    duplicate_window: Duration | None = Field(default=None, ge=LEAST_WINDOW)
    """Seconds that a stream that the sink makes keeps message ids, at some 190 bytes each. Default:
    two minutes, and 0.1 s for exactly-once delivery, which needs none."""
    window: int = Field(default=8000, ge=1)
    """Most messages in flight; exactly-once has 4 batches in flight."""
    window_bytes: Size = Field(default=8 * 1024 * 1024, ge=1)
    """Most bytes in flight."""

    @field_validator("subject")
    @classmethod
    def _subject(cls, value: str) -> str:
        try:
            parse_template(value)
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "JetStreamSettings":
        if self.dictionaries and self.compression != "zstd":
            raise ValueError("dictionaries are for compression: zstd")
        if self.max_age and self.duplicate_window and self.max_age < self.duplicate_window:
            raise ValueError("max_age must not be shorter than duplicate_window")
        if self.retention != "limits" and self.delivery == "exactly-once":
            raise ValueError(
                "delivery exactly-once needs retention: limits (the stream's last message is the"
                " record of what is stored); use delivery: deduplicated"
            )
        if self.durability == "fsync" and self.storage == "memory":
            raise ValueError("durability fsync needs storage: file")
        if not all(url.startswith(("http://", "https://")) for url in self.monitoring_urls):
            raise ValueError("monitoring must be http:// or https:// URLs, with commas")
        return self

    @property
    def images(self) -> Images:
        # JSON has documents as such; in MessagePack they are text.
        maps = plugin("layouts", self.layout).values == "bridge"
        return "json" if maps or self.encoding == "json" else "msgpack"

    @property
    def monitoring_urls(self) -> list[str]:
        return [url.strip() for url in (self.monitoring or "").split(",") if url.strip()]

    def remembers(self, *, exact: bool) -> float:
        """Seconds for which a stream that we make keeps message ids. `exact`: where it shall
        take exactly-once, which needs none: a server that holds a million of them in memory looks
        at each whenever it collects garbage, and lets messages wait for 0.1 s meanwhile."""
        if self.duplicate_window is not None:
            return self.duplicate_window
        usual = LEAST_WINDOW if exact else USUAL_WINDOW
        return min(usual, self.max_age or usual)
