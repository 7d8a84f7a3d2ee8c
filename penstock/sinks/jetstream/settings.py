"""The JetStream sink's settings: the `sink:` block of a pipeline file, and Spark's options."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from penstock.change import OnError
from penstock.errors import SettingsError
from penstock.settings import Duration, Secret, Settings, Size
from penstock.sinks.jetstream.subject import parse_template

__all__ = [
    "LEAST_WINDOW",
    "USUAL_WINDOW",
    "Batch",
    "BreakerSettings",
    "Delivery",
    "Durability",
    "Encoding",
    "JetStreamSettings",
    "LayoutName",
    "Packing",
    "PressureSettings",
]  # fmt: skip

Delivery = Literal["auto", "exactly-once", "deduplicated", "at-least-once"]
Durability = Literal["default", "fsync"]
Encoding = Literal["msgpack", "json", "arrow"]
Packing = Literal["change", "batch"]
LayoutName = Literal["penstock", "debezium", "cloudevents"]

# Seconds that a server remembers message ids: its own default, and the least that it takes.
USUAL_WINDOW, LEAST_WINDOW = 120.0, 0.1


class Batch(Settings):
    """When a batch goes out: whichever limit is reached first.

    The limits stop gathering. Under `exactly-once` they also bound what is sent as one, with one
    exception: where `max_size` or `max_bytes` has its default, a backlog goes in batches of up to
    1,000 changes or 4 MiB, which is what servers do fastest.
    """

    max_size: int = Field(default=500, ge=1, le=1000)  # changes; 1,000 is the server's limit
    max_wait: Duration = Field(default=0.1, ge=0)  # seconds that a change may wait for company
    max_bytes: Size = Field(default=256 * 1024, ge=1)  # a larger single change goes alone


class PressureSettings(Settings):
    """When the server counts as slow. Seconds that it takes to acknowledge what is its turn;
    exactly at a threshold counts as above it."""

    slow_threshold: Duration = Field(default=0.1, gt=0)  # smaller batches, longer waits
    critical_threshold: Duration = Field(default=0.5, gt=0)  # pause, and alert
    pause: Duration = Field(default=1, ge=0)  # seconds

    @model_validator(mode="after")
    def _rising(self) -> "PressureSettings":
        if self.critical_threshold < self.slow_threshold:
            raise ValueError("critical_threshold must not be below slow_threshold")
        return self


class BreakerSettings(Settings):
    """When a server that fails is left alone, and for how long."""

    threshold: int = Field(default=5, ge=1)  # failures in a row
    timeout: Duration = Field(default=30, gt=0)  # seconds until a probe


class JetStreamSettings(Settings):
    """Where changes go, as what, and how surely.

    `replicas`, `storage`, `max_age`, `max_bytes` and `duplicate_window` shape the stream when it
    is made; one that exists is verified and never changed.
    """

    type: Literal["jetstream"] = "jetstream"
    url: Secret  # nats://[user:password@|token@]host[:4222], tls://...; several, by commas
    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    nkey: Secret | None = None  # the seed, SU...
    credentials: str | None = None  # path of a .creds file: a JWT and its seed
    tls_ca: str | None = None  # path of PEM; the system's authorities without it
    tls_cert: str | None = None
    tls_key: str | None = None
    stream: str = Field(default="CDC", pattern=r"^[^\s.*>/\\]+$")
    subject: str = "cdc.{collection}.{operation}"
    events: str = Field(default="PENSTOCK_EVENTS", pattern=r"^[^\s.*>/\\]+$")
    encoding: Encoding = "msgpack"
    layout: LayoutName = "penstock"
    messages: Packing = "change"  # what a message is: a change, or several of one route
    batch: Batch = Batch()
    pressure: PressureSettings = PressureSettings()
    breaker: BreakerSettings = BreakerSettings()
    delivery: Delivery = "auto"
    durability: Durability = "default"
    monitoring: str | None = None  # http://host:8222 of each server of the stream, by commas
    assume_synced: bool = False  # the operator's word, where no monitoring can be asked
    replicas: int = Field(default=1, ge=1, le=5)
    storage: Literal["file", "memory"] = "file"
    max_age: Duration = Field(default=0, ge=0)  # seconds; 0 keeps for ever
    max_bytes: Size = Field(default=0, ge=0)  # of the whole stream; 0 is unlimited
    # Seconds; costs ~190 bytes of server per id. None: as `remembers` says.
    duplicate_window: Duration | None = Field(default=None, ge=LEAST_WINDOW)
    timeout: Duration = Field(
        default=5, gt=0
    )  # seconds without an answer until the server counts as gone
    window: int = Field(default=8000, ge=1)  # messages in flight; exactly-once has 4 batches
    window_bytes: Size = Field(default=8 * 1024 * 1024, ge=1)  # bytes in flight

    # What becomes of a change that cannot be encoded or stored, or came as an ERROR; `penstock run`
    # has one for each backend instead.
    on_error: OnError = "stop"
    # Changes of one table in a row that are too large, until the table is suspended.
    suspend_after: int = Field(default=10, ge=1)

    @field_validator("subject")
    @classmethod
    def _subject(cls, value: str) -> str:
        try:
            parse_template(value)
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _body(self) -> "JetStreamSettings":
        if self.layout != "penstock" and self.encoding != "json":
            raise ValueError(f"layout {self.layout} is JSON: set encoding: json")
        if self.encoding == "arrow" and self.messages != "batch":
            raise ValueError("encoding arrow is for several changes: set messages: batch")
        return self

    @model_validator(mode="after")
    def _window(self) -> "JetStreamSettings":
        if self.max_age and self.duplicate_window and self.max_age < self.duplicate_window:
            raise ValueError("max_age must not be shorter than duplicate_window")
        return self

    def remembers(self, *, exact: bool) -> float:
        """Seconds for which a stream that we make remembers message ids. `exact`: where it shall
        take exactly-once, which needs none: a server that holds a million of them in memory looks
        at each whenever it collects garbage, and lets messages wait for 0.1 s meanwhile."""
        if self.duplicate_window is not None:
            return self.duplicate_window
        usual = LEAST_WINDOW if exact else USUAL_WINDOW
        return min(usual, self.max_age or usual)

    @model_validator(mode="after")
    def _durable(self) -> "JetStreamSettings":
        if self.durability == "fsync" and self.storage == "memory":
            raise ValueError("durability fsync needs storage: file")
        for url in (self.monitoring or "").split(","):
            if url.strip() and not url.strip().startswith(("http://", "https://")):
                raise ValueError("monitoring must be http:// or https:// URLs, with commas")
        return self
