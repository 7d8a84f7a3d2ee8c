"""Settings of sinks that send messages: what bodies look like."""

from typing import Literal

from pydantic import model_validator

from penstock.model.errors import SettingsError
from penstock.model.settings import Settings
from penstock.process.plugins import plugin
from penstock.sinks.settings import SinkSettings

Encoding = Literal["msgpack", "json", "arrow"]
Packing = Literal["change", "batch"]


class TraceparentSettings(Settings):
    """Where the source says of which trace a change is; both empty: nowhere."""

    message: str = ""
    """The prefix of the logical message of PostgreSQL that holds it, for the changes of its
    transaction after it."""
    field: str = ""
    """The column or field of a row that holds it, for that row's change."""

    def __bool__(self) -> bool:
        return bool(self.message or self.field)


class MessageSettings(SinkSettings):
    """What the shelf understands for a sink of messages."""

    encoding: Encoding = "msgpack"
    """How a body is written."""
    layout: str = "penstock"
    """What a body looks like: `penstock`, `bridge`, `debezium`, `puller`, `cloudevents`, or a
    plug-in."""
    messages: Packing = "change"
    """What a message is: a change, or a batch of several of one kind."""
    compression: Literal["none", "zstd"] = "none"
    """Of bodies that become smaller by it."""
    traceparent: TraceparentSettings = TraceparentSettings()
    """What becomes the header `traceparent`."""
    connector: str = ""
    """What Debezium calls the source (`source.connector`); `penstock run` sets it by the feed."""

    @model_validator(mode="after")
    def _body(self) -> "MessageSettings":
        try:
            encodings = plugin("layouts", self.layout).encodings
        except SettingsError as error:
            raise ValueError(str(error)) from None
        if self.encoding not in encodings:
            raise ValueError(
                f"layout {self.layout} has no {self.encoding}: set encoding: "
                + " or ".join(encodings)
            )
        if self.encoding == "arrow" and self.messages != "batch":
            raise ValueError("encoding arrow is for several changes: set messages: batch")
        if self.traceparent and self.messages != "change":
            raise ValueError("traceparent is of one change: set messages: change")
        return self
