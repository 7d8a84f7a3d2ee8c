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
    """Where the source names the trace of a change; both empty: nowhere."""

    message: str = ""
    """The prefix of PostgreSQL's logical message that names it, for the changes after the message
    in its transaction."""
    field: str = ""
    """The column or field of a row that names it, for that row's change."""

    def __bool__(self) -> bool:
        return bool(self.message or self.field)


class MessageSettings(SinkSettings):
    """What the shelf understands for a sink of messages."""

    encoding: Encoding = "msgpack"
    """The encoding of a body."""
    layout: str = "penstock"
    """The fields of a body: `penstock`, `bridge`, `debezium`, `puller`, `cloudevents`, or a
    plug-in."""
    messages: Packing = "change"
    """Whether a message has one change, or a batch of several of one kind."""
    compression: Literal["none", "zstd"] = "none"
    """The compression of bodies that become smaller by it."""
    traceparent: TraceparentSettings = TraceparentSettings()
    """The source of the header `traceparent`."""
    connector: str = ""
    """Debezium's name for the source (`source.connector`); `penstock run` sets it by the feed."""

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
