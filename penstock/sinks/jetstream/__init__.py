"""The JetStream sink: each change is one message, stored once.

`settings` says what it can do, `message` what a message looks like, `atomic` and `individual` how
messages are published, `stream` what it asks of a stream.
"""

from penstock.sinks import SinkPlugin
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.jetstream.sink import JetStreamSink

__all__ = ["PLUGIN", "JetStreamSettings", "JetStreamSink"]

PLUGIN = SinkPlugin(settings=JetStreamSettings, build=JetStreamSink)
