"""Which encoder the settings ask for."""

from penstock.sinks.encoding.arrow import Tabular
from penstock.sinks.encoding.cloudevents import CloudEvents
from penstock.sinks.encoding.debezium import Debezium
from penstock.sinks.encoding.dialect import dialect
from penstock.sinks.encoding.encode import Encoder, Singles
from penstock.sinks.encoding.layout import Layout, Penstock
from penstock.sinks.encoding.puller import Puller
from penstock.sinks.encoding.several import Several
from penstock.sinks.settings import SinkSettings
from penstock.sinks.subject import Template

__all__ = ["encoder"]


def encoder(settings: SinkSettings, template: Template, *, ids: bool, limit: int) -> Encoder:
    """`limit`: bytes that a message may have; `ids`: whether the server shall look at them."""
    most, largest = settings.batch.max_size, settings.batch.max_bytes
    if settings.encoding == "arrow":
        return Tabular(template, ids=ids, limit=limit, most=most, largest=largest)
    layout = _layout(settings)
    if settings.messages == "batch":
        return Several(template, layout, ids=ids, limit=limit, most=most, largest=largest)
    return Singles(template, layout, ids=ids, limit=limit)


def _layout(settings: SinkSettings) -> Layout:
    assert settings.encoding != "arrow"
    one = dialect(settings.encoding)
    match settings.layout:
        case "debezium":
            return Debezium(one)
        case "cloudevents":
            return CloudEvents(one, many=settings.messages == "batch")
        case "puller":
            return Puller(one)
        case "penstock":
            return Penstock(one)
