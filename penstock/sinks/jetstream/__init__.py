"""The JetStream sink: each change is one message, stored once.

A batch passes `sink`, `write`, `quarantine`, `encoding` and `publishing`. `poison` is where
the rest is kept, `replays` brings it back; `stream` is what we ask of a stream.
"""

from penstock.consumer.tail.reader import TailReader
from penstock.nats.settings import NatsSettings
from penstock.sinks import SinkPlugin
from penstock.sinks.jetstream.owners import OwnersStore
from penstock.sinks.jetstream.server import JetStreamServer
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.jetstream.sink import JetStreamSink

__all__ = ["PLUGIN", "JetStreamSettings", "JetStreamSink"]


def _reader(settings: JetStreamSettings, url: str | None) -> TailReader:
    server = settings if url is None else NatsSettings.model_validate({"url": url})
    return TailReader(server, settings.stream)


PLUGIN = SinkPlugin(
    settings=JetStreamSettings, build=JetStreamSink, reader=_reader, server=JetStreamServer,
    leases=OwnersStore,
)  # fmt: skip
