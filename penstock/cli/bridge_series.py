"""What the users of the CDC bridge have dashboards, alerts and parsers for: its series, its
fields of /status and its line. Same names and units, our numbers."""

import resource
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.ops.metrics import Additions
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
    ("bridge_wal_confirmed_lag_bytes", "gauge", "Log between its end and the confirmed LSN."),
    ("bridge_cpu_seconds_total", "counter", "CPU time of the service's own process."),
    ("bridge_max_rss_bytes", "gauge", "Most memory that the service's own process had."),
    ("bridge_refused_tables", "gauge", "Tables that are suspended."),
    ("bridge_refused_events_dropped_total", "counter", "Changes set aside as dead letters."),
)  # fmt: skip


def bridge_series(status: Status) -> Iterator[Metric]:
    backends, found = status.backends, bridge_status(status)
    own, lag = resource.getrusage(resource.RUSAGE_SELF), found["wal_lag_bytes"]
    reconnects, connected = found["reconnect_count"], found["is_connected"]
    latency = _latency(status)
    confirmed = [float(backend.details.get("confirmed_lsn") or 0) for backend in backends]
    used = [backend.buffer_percent or 0.0 for backend in backends]
    values = {
        "bridge_uptime_seconds": found["uptime_seconds"],
        "bridge_wal_messages_received_total": found["wal_messages_received"],
        "bridge_cdc_events_published_total": found["cdc_events_published"],
        "bridge_last_ack_lsn": min(confirmed, default=0.0),
        "bridge_connected": connected,
        "bridge_pg_reconnects_total": reconnects,
        "bridge_reconnects_total": reconnects,
        "bridge_nats_reconnects_total": found["nats_reconnect_count"],
        "bridge_slot_active": connected,
        "bridge_wal_lag_bytes": lag,
        "bridge_wal_confirmed_lag_bytes": lag,
        "bridge_cpu_seconds_total": own.ru_utime + own.ru_stime,
        "bridge_max_rss_bytes": own.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "bridge_refused_tables": sum(table.state == "suspended" for table in status.tables),
        "bridge_refused_events_dropped_total": sum(
            sum(sink.dead_letters.values()) for sink in status.sinks
        ),
        "bridge_queue_usage_percent": max(used, default=0.0),
        "bridge_last_processing_time_us": latency * 1000,
    }
    for name, kind, text in BRIDGE_SERIES:
        family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        yield family(name, text, value=values[name])


def bridge_status(status: Status) -> Mapping[str, Any]:
    """The twelve fields of the bridge's /status."""
    backends, sinks = status.backends, status.sinks
    connected = bool(backends) and all(backend.connected for backend in backends)
    ends = [int(backend.details.get("current_lsn") or 0) for backend in backends]
    end, lag = max(ends, default=0), sum(backend.lag_bytes or 0 for backend in backends)
    return {
        "status": "connected" if connected else "disconnected",
        "uptime_seconds": int(status.uptime_seconds),
        "wal_messages_received": sum(backend.events for backend in backends),
        "cdc_events_published": sum(sink.acknowledged for sink in sinks),
        "current_lsn": f"{end >> 32:x}/{end & 0xFFFFFFFF:x}",
        "is_connected": connected,
        "reconnect_count": sum(backend.reconnects for backend in backends),
        "nats_reconnect_count": sum(sink.reconnects for sink in sinks),
        "last_processing_time_us": round(_latency(status) * 1000),
        "slot_active": connected,
        "wal_lag_bytes": lag,
        "wal_lag_mb": lag // 2**20,
    }


# The line's words, in its order, and the fields of /status that they are.
_WORDS = {
    "uptime": "uptime_seconds", "wal_messages": "wal_messages_received",
    "cdc_events": "cdc_events_published", "lsn": "current_lsn", "connected": "is_connected",
    "reconnects": "reconnect_count", "nats_reconnects": "nats_reconnect_count",
    "lag_bytes": "wal_lag_bytes", "slot_active": "slot_active",
}  # fmt: skip


def bridge_line(status: Status) -> str:
    """The bridge's METRICS line."""
    found = bridge_status(status)
    values = {word: found[field] for word, field in _WORDS.items()}
    return "METRICS " + " ".join(
        f"{word}={int(value) if isinstance(value, bool) else value}"
        for word, value in values.items()
    )


def _latency(status: Status) -> float:
    """Milliseconds."""
    return max((sink.latency_p50_ms or 0.0 for sink in status.sinks), default=0.0)


SERIES = Additions(metrics=bridge_series)
BRIDGE = Additions(metrics=bridge_series, status=bridge_status, line=bridge_line)
