"""The JetStream sink: each change is one message, stored once.

A batch passes `sink`, `write`, `cleaning`, `encoding`, `publishing` and `client`. `poison` is where
the rest is kept, `mending` brings it back; `stream` is what we ask of a stream.
"""

from penstock.sinks import SinkPlugin
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.jetstream.sink import JetStreamSink

__all__ = ["PLUGIN", "JetStreamSettings", "JetStreamSink"]

PLUGIN = SinkPlugin(settings=JetStreamSettings, build=JetStreamSink)
