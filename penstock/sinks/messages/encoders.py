"""Which encoder the settings ask for."""

from typing import Any

from penstock.nats.compression import Dictionaries
from penstock.process.plugins import plugin
from penstock.sinks.messages.compression import Compression
from penstock.sinks.messages.dialect import dialect
from penstock.sinks.messages.encode import Bodies, Encoder, Singles
from penstock.sinks.messages.layout import Layout
from penstock.sinks.messages.message import Framing, Headers
from penstock.sinks.messages.settings import MessageSettings
from penstock.sinks.messages.several import Several, Tabular
from penstock.sinks.messages.traces import Traces
from penstock.sinks.subject import Template


def encoder(
    settings: MessageSettings,
    template: Template,
    framing: Framing,
    dictionaries: Dictionaries | None = None,
    traces: Traces | None = None,
) -> Encoder:
    """Of messages for a system that asks for `framing`. `traces`: of the sink, if it asks for
    them."""
    compression = Compression(dictionaries) if settings.compression == "zstd" else None
    limits: dict[str, Any] = {
        "most": settings.batch.max_size, "largest": settings.batch.max_bytes,
        "compression": compression,
    }  # fmt: skip
    if settings.encoding == "arrow":
        return Tabular(template, framing, **limits)
    layout: Layout = plugin("layouts", settings.layout)
    many, chosen = settings.messages == "batch", dialect(settings.encoding)
    # The layout `penstock` came first: its versions have no name.
    name = "" if settings.layout == "penstock" else f"{settings.layout}-"
    headers = Headers(
        framing, version=f"{name}{layout.version}".encode(), counted=many,
        content_type=layout.content_type(chosen, many=many),
    )  # fmt: skip
    bodies = Bodies(layout, chosen, settings.connector, template, element=many)
    if many:
        return Several(template, layout, chosen, bodies, headers, **limits)
    return Singles(template, bodies, headers, compression, traces)
