"""A collector: it takes OTLP over HTTP, and keeps what it got."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.servers.http import HttpHandler, HttpStandIn

_REQUESTS: Mapping[str, type[Message]] = {
    "/v1/logs": ExportLogsServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/traces": ExportTraceServiceRequest,
}


class _Handler(HttpHandler):
    def do_POST(self) -> None:
        request = _REQUESTS[self.path]()
        request.ParseFromString(self.body())
        self.stand_in.requests.append(request)
        self.stand_in.headers.append(dict(self.headers.items()))
        self.send(200, b"", {"Content-Type": "application/x-protobuf"})


class Collector(HttpStandIn):
    handler = _Handler

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []

    @property
    def resources(self) -> list[dict[str, Any]]:
        return [
            attributes(each.resource)
            for request in list(self.requests)
            for field in ("resource_logs", "resource_metrics", "resource_spans")
            for each in getattr(request, field, ())
        ]

    @property
    def metrics(self) -> dict[str, Any]:
        """The latest of each name."""
        return {each.name: each for each in self._found("metrics", "metrics")}

    @property
    def logs(self) -> list[Any]:
        return self._found("logs", "log_records")

    @property
    def spans(self) -> list[Any]:
        return self._found("spans", "spans")

    def _found(self, kind: str, items: str) -> list[Any]:
        return [
            item
            for request in list(self.requests)
            for resource in getattr(request, f"resource_{kind}", ())
            for scope in getattr(resource, f"scope_{kind}")
            for item in getattr(scope, items)
        ]


def attributes(of: Any) -> dict[str, Any]:
    """Of a resource, a record, a span or a point."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in of.attributes}


def points(metric: Any) -> Sequence[Any]:
    found: Sequence[Any] = getattr(metric, metric.WhichOneof("data")).data_points
    return found
