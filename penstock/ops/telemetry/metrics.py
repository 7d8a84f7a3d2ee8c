"""The families of /metrics as OTLP metrics; pure.

The reports are sums already, so no instrument of the SDK counts anything here. Names are those of
/metrics without `_total`: a collector that writes Prometheus adds it again.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import core

_UNITS = {"_seconds": "s", "_bytes": "By", "_percent": "%"}
_CUMULATIVE = AggregationTemporality.CUMULATIVE


def metrics_data(
    families: Iterable[core.Metric],
    resource: Resource,
    scope: InstrumentationScope,
    *,
    started: int,
    now: int,
) -> MetricsData:
    """`started` and `now` are nanoseconds since 1970 UTC."""
    metrics = [_metric(each, started, now) for each in families if each.samples]
    scoped = ScopeMetrics(scope=scope, metrics=metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource, [scoped], schema_url="")])


def _metric(family: core.Metric, started: int, now: int) -> Metric:
    data: Gauge | Histogram | Sum
    if family.type in ("histogram", "summary"):
        data = Histogram(list(_histograms(family.samples, started, now)), _CUMULATIVE)
    else:
        points = [
            NumberDataPoint(each.labels, started, now, each.value) for each in family.samples
        ]  # fmt: skip
        is_sum = family.type == "counter"
        data = Sum(points, _CUMULATIVE, is_monotonic=True) if is_sum else Gauge(points)
    unit = next((unit for end, unit in _UNITS.items() if family.name.endswith(end)), "")
    return Metric(family.name, family.documentation, unit, data)


def _histograms(
    samples: Sequence[core.Sample], started: int, now: int
) -> Iterator[HistogramDataPoint]:
    """A point for each set of labels. A summary without quantiles is a histogram of one bucket."""
    sums: dict[frozenset[tuple[str, str]], dict[str, float]] = defaultdict(dict)
    buckets: dict[frozenset[tuple[str, str]], dict[float, float]] = defaultdict(dict)
    for sample in samples:
        labels = frozenset(item for item in sample.labels.items() if item[0] != "le")
        if "le" in sample.labels:
            buckets[labels][float(sample.labels["le"])] = sample.value
        else:
            sums[labels][sample.name.rpartition("_")[2]] = sample.value
    for labels, found in sums.items():
        count = int(found["count"])
        bounds = sorted(buckets[labels])  # the last is infinity
        below = [0, *(int(buckets[labels][bound]) for bound in bounds)] if bounds else [0, count]
        yield HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=started,
            time_unix_nano=now,
            count=count,
            sum=found["sum"],
            bucket_counts=[upper - lower for lower, upper in pairwise(below)],
            explicit_bounds=bounds[:-1],
            min=None,  # type: ignore[arg-type] # not known; the encoder leaves it out
            max=None,  # type: ignore[arg-type]
        )
