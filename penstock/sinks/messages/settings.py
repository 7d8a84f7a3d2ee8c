"""Settings of sinks that send messages: what bodies look like."""

from typing import Literal

from pydantic import model_validator

from penstock.model.errors import SettingsError
from penstock.process.plugins import plugin
from penstock.sinks.settings import SinkSettings

Encoding = Literal["msgpack", "json", "arrow"]
Packing = Literal["change", "batch"]


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
        return self
