"""The series of the CDC bridge that its users have dashboards for: same names and units, our
numbers."""

from collections.abc import Iterator
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.ops.status import Status

# The bridge serves one slot and no labels. Its later versions renamed one series and replaced
# another (`queue_usage_percent` for `last_processing_time_us`): both old names are served too.
BRIDGE_SERIES: tuple[tuple[str, Literal["counter", "gauge"], str], ...] = (
    ("bridge_uptime_seconds", "gauge", "Seconds since the start."),
    ("bridge_wal_messages_received_total", "counter", "Changes read from the log."),
    ("bridge_cdc_events_published_total", "counter", "Changes acknowledged by JetStream."),
    ("bridge_last_ack_lsn", "gauge", "Confirmed LSN, as a number."),
    ("bridge_connected", "gauge", "1 while PostgreSQL is connected."),
    ("bridge_pg_reconnects_total", "counter", "Connections to PostgreSQL made again."),
    ("bridge_nats_reconnects_total", "counter", "Connections to NATS made again."),
    ("bridge_slot_active", "gauge", "1 while we read the slot."),
    ("bridge_wal_lag_bytes", "gauge", "Log between its end and the confirmed LSN, in bytes."),
    ("bridge_queue_usage_percent", "gauge", "How full the buffer is, 0 to 100."),
    ("bridge_reconnects_total", "counter", "Connections to PostgreSQL made again."),
    ("bridge_last_processing_time_us", "gauge",
     "Median latency of the last batch, in microseconds."),
)  # fmt: skip


def bridge_series(status: Status) -> Iterator[Metric]:
    backends = status.backends
    connected = bool(backends) and all(backend.connected for backend in backends)
    reconnects = sum(backend.reconnects for backend in backends)
    latency = max((sink.latency_p50_ms or 0.0 for sink in status.sinks), default=0.0)
    confirmed = [float(backend.details.get("confirmed_lsn") or 0) for backend in backends]
    used = [backend.buffer_percent or 0.0 for backend in backends]
    values = {
        "bridge_uptime_seconds": int(status.uptime_seconds),
        "bridge_wal_messages_received_total": sum(backend.events for backend in backends),
        "bridge_cdc_events_published_total": sum(sink.acknowledged for sink in status.sinks),
        "bridge_last_ack_lsn": min(confirmed, default=0.0),
        "bridge_connected": connected,
        "bridge_pg_reconnects_total": reconnects,
        "bridge_reconnects_total": reconnects,
        "bridge_nats_reconnects_total": sum(sink.reconnects for sink in status.sinks),
        "bridge_slot_active": connected,
        "bridge_wal_lag_bytes": sum(backend.lag_bytes or 0 for backend in backends),
        "bridge_queue_usage_percent": max(used, default=0.0),
        "bridge_last_processing_time_us": latency * 1000,
    }
    for name, kind, text in BRIDGE_SERIES:
        family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        yield family(name, text, value=values[name])
