"""Which encoder the settings ask for."""

from penstock.sinks.jetstream.encoding.arrow import Tabular
from penstock.sinks.jetstream.encoding.cloudevents import CloudEvents
from penstock.sinks.jetstream.encoding.debezium import Debezium
from penstock.sinks.jetstream.encoding.dialect import dialect
from penstock.sinks.jetstream.encoding.encode import Encoder, Singles
from penstock.sinks.jetstream.encoding.layout import Layout, Penstock
from penstock.sinks.jetstream.encoding.several import Several
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.jetstream.subject import Template

__all__ = ["encoder"]


def encoder(settings: JetStreamSettings, template: Template, *, ids: bool, limit: int) -> Encoder:
    """`limit`: bytes that a message may have; `ids`: whether the server shall look at them."""
    most, largest = settings.batch.max_size, settings.batch.max_bytes
    if settings.encoding == "arrow":
        return Tabular(template, ids=ids, limit=limit, most=most, largest=largest)
    layout = _layout(settings)
    if settings.messages == "batch":
        return Several(template, layout, ids=ids, limit=limit, most=most, largest=largest)
    return Singles(template, layout, ids=ids, limit=limit)


def _layout(settings: JetStreamSettings) -> Layout:
    assert settings.encoding != "arrow"
    one = dialect(settings.encoding)
    match settings.layout:
        case "debezium":
            return Debezium(one)
        case "cloudevents":
            return CloudEvents(one, many=settings.messages == "batch")
        case "penstock":
            return Penstock(one)
