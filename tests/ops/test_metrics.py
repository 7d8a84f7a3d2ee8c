"""The exposition: every series with HELP and TYPE, and the right numbers."""

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from penstock.cli.bridge_series import BRIDGE_SERIES, bridge_series
from penstock.ops.metrics import metrics_text
from penstock.ops.partitions import PartitionStatus
from penstock.ops.reports import GapReport, SnapshotsReport, TableStatus
from penstock.ops.status import BackendStatus, BatchStatus, SinkStatus, Status

BACKEND = BackendStatus(
    name="a",
    connected=True,
    current="0/16B3748",
    confirmed="00000001/00000010",
    lag={"bytes": 5, "changes": 2},
    lag_bytes=5,
    lag_seconds=0.5,
    window_seconds=86_400.0,
    window_left_seconds=80_000.0,
    events=7,
    pages=2,
    batches=3,
    buffered_events=1,
    buffered_bytes=99,
    reconnects=4,
    restarts=8,
    partition_count=3,
    partition_states={"reading": 2, "ended": 1},
    batch=BatchStatus(id=1, rows=6, duration_ms=12.5),
    snapshots=SnapshotsReport(
        runs={"done": 2},
        chunks=4,
        rows=300,
        bytes=5000,
        current=[
            {"table": "t", "bytes_per_second": 50, "seconds_left": 2.5},
            {"table": "u", "bytes_per_second": None, "seconds_left": None},
        ],
    ),
    buffer_percent=25,
    details={"slot": "s", "server_version": 160_000, "confirmed_lsn": 0x100000010},
    detail_series=("confirmed_lsn",),
)
SINK = SinkStatus(
    name="jetstream",
    connected=True,
    published=9,
    acknowledged=8,
    duplicates=1,
    dead_letters={"too-large": 4},
    errors=2,
    reconnects=3,
    latency_p50_ms=1.5,
    latency_p99_ms=20,
    answer_ms=250,
    pressure="slow",
    pressure_transitions=3,
    breaker="half-open",
    breaker_transitions=2,
    commits={"0": 3, "1": 1},
    commit_seconds={"0": 0.5, "1": 0.25},
)
STATUS = Status(
    name="shop",
    version="1.0",
    uptime_seconds=12.5,
    health="degraded",
    reasons=("x",),
    backends=(BACKEND, BackendStatus(name='b"\\')),
    sinks=(SINK,),
    last_batch=None,
    tables=(
        TableStatus(backend="a", table="public.t", state="suspended"),
        TableStatus(backend="a", table="public.u", state="following"),
        TableStatus(
            backend="a",
            table="public.t",
            state="live",
            sid="eu",
            rows_loaded=5,
            rows_to_come=0,
            applied={"insert": 3, "delete": 1},
            letters=2,
            held=4,
            lag_seconds=0.5,
        ),
    ),
)

Samples = dict[tuple[str, tuple[str, ...]], float]


def samples(status: Status = STATUS, *, bridge: bool = False) -> Samples:
    text = metrics_text(status, *([bridge_series] if bridge else [])).decode()
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_series_has_help_and_type() -> None:
    text = metrics_text(STATUS, bridge_series).decode()
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    helped = {
        line.split()[2]
        for line in text.splitlines()
        if line.startswith("# HELP") and len(line.split()) > 3
    }
    named = {line.split("{")[0].split()[0] for line in text.splitlines() if line[0] != "#"}
    parts = {f"{name}{end}" for name in families for end in ("_sum", "_count")}
    assert named - parts <= families == helped


def test_every_series_of_ours_starts_with_our_name() -> None:
    assert all(name.startswith("penstock_") for name, _ in samples())


def test_numbers_of_a_backend() -> None:
    found = samples()
    assert {name: found[f"penstock_{name}", ("a",)] for name in (
        "connected", "restarts_total", "lag_bytes", "lag_seconds", "events_total",
        "pages_total", "batches_total", "buffered_events", "buffered_bytes", "reconnects_total",
        "batch_rows", "batch_duration_seconds", "window_seconds", "window_left_seconds",
    )} == {
        "connected": 1, "restarts_total": 8, "lag_bytes": 5,
        "lag_seconds": 0.5, "events_total": 7, "pages_total": 2, "batches_total": 3,
        "buffered_events": 1, "buffered_bytes": 99, "reconnects_total": 4, "batch_rows": 6,
        "batch_duration_seconds": 0.0125, "window_seconds": 86_400, "window_left_seconds": 80_000,
    }  # fmt: skip


def test_numbers_of_a_sink() -> None:
    found = samples()
    assert found["penstock_published_total", ("jetstream",)] == 9
    assert found["penstock_acknowledged_total", ("jetstream",)] == 8
    assert found["penstock_duplicates_total", ("jetstream",)] == 1
    assert found["penstock_sink_errors_total", ("jetstream",)] == 2
    assert found["penstock_sink_reconnects_total", ("jetstream",)] == 3
    assert found["penstock_latency_seconds", ("0.99", "jetstream")] == 0.02


def test_numbers_of_poison() -> None:
    found = samples()
    assert found["penstock_dead_letters_total", ("too-large", "jetstream")] == 4
    assert found["penstock_suspended_tables", ("a",)] == 1


def test_numbers_of_a_sink_of_tables() -> None:
    found, of = samples(), ("a", "eu", "public.t")
    assert found["penstock_table_state", ("a", "eu", "live", "public.t")] == 1
    assert found["penstock_table_rows_loaded", of] == 5
    assert found["penstock_table_rows_to_come", of] == 0
    assert found["penstock_table_held", of] == 4
    assert found["penstock_table_dead_letters_total", of] == 2
    assert found["penstock_table_lag_seconds", of] == 0.5
    assert found["penstock_table_changes_total", ("a", "insert", "eu", "public.t")] == 3
    assert found["penstock_sink_commits_total", ("jetstream", "0")] == 3
    assert found["penstock_sink_commit_seconds_count", ("jetstream", "1")] == 1
    assert found["penstock_sink_commit_seconds_sum", ("jetstream", "1")] == 0.25
    unknown = TableStatus(backend="a", table="public.u", state="loading", sid="eu")
    tables = samples(replace(STATUS, tables=(unknown,)))
    named = {name for name, of in tables if "public.u" in of}
    assert named == {"penstock_table_state"}, "what is not known has a sample"


def test_each_state_of_a_sink_has_a_sample_and_one_is_1() -> None:
    found = samples()
    for machine, states in (
        ("pressure", {"normal": 0, "slow": 1, "critical": 0}),
        ("breaker", {"closed": 0, "open": 0, "half-open": 1}),
    ):
        name = f"penstock_sink_{machine}_state"
        assert {state: found[name, ("jetstream", state)] for state in states} == states
    assert found["penstock_sink_pressure_transitions_total", ("jetstream",)] == 3
    assert found["penstock_sink_breaker_transitions_total", ("jetstream",)] == 2
    assert found["penstock_sink_answer_seconds", ("jetstream",)] == 0.25


def test_a_sink_without_such_machines_has_no_states() -> None:
    other = replace(STATUS, sinks=(SinkStatus(name="memory"),), tables=())
    assert not [key for key in samples(other) if key[0].endswith("_state")]


def test_the_pipelines_own_numbers() -> None:
    found = samples()
    assert found["penstock_uptime_seconds", ()] == 12.5
    assert found["penstock_info", ("shop", "1.0")] == 1
    assert [found["penstock_health", (state,)] for state in ("ok", "degraded", "unhealthy")] == [
        0,
        1,
        0,
    ]


def test_what_is_not_known_has_no_sample() -> None:
    found = samples()
    assert ("penstock_connected", ('b"\\',)) in found
    assert ("penstock_lag_bytes", ('b"\\',)) not in found
    assert ("penstock_batch_rows", ('b"\\',)) not in found


def test_the_sources_own_numbers_have_one_series() -> None:
    found = {key[1][1]: value for key, value in samples().items() if "detail" in key[0]}
    assert found == {"confirmed_lsn": 0x100000010}


def test_partitions_are_counted_by_state_and_lag_by_unit() -> None:
    found = samples()
    assert found["penstock_partitions", ("a", "reading")] == 2
    assert found["penstock_partitions", ("a", "ended")] == 1
    assert found["penstock_lag", ("a", "bytes")] == 5
    assert found["penstock_lag", ("a", "changes")] == 2


def test_no_series_is_named_twice() -> None:
    lines = metrics_text(STATUS, bridge_series).decode().splitlines()
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(names)) == len(names)


def test_the_bridges_series_come_only_when_asked_for() -> None:
    assert not any(name.startswith("bridge_") for name, _ in samples())
    names = {name for name, _ in samples(bridge=True) if name.startswith("bridge_")}
    assert names == {name for name, _, _ in BRIDGE_SERIES}


def test_the_bridges_series_mean_what_they_mean_there() -> None:
    found: dict[str, float] = {
        name.removeprefix("bridge_"): value
        for (name, _), value in samples(replace(STATUS, backends=(BACKEND,)), bridge=True).items()
        if name.startswith("bridge_")
    }
    assert found.pop("cpu_seconds_total") > 0
    assert found.pop("max_rss_bytes") > 2**20
    assert found == {
        "uptime_seconds": 12,
        "wal_messages_received_total": 7,
        "cdc_events_published_total": 8,
        "last_ack_lsn": 0x100000010,
        "connected": 1,
        "pg_reconnects_total": 4,
        "nats_reconnects_total": 3,
        "slot_active": 1,
        "wal_lag_bytes": 5,
        "queue_usage_percent": 25,
        "reconnects_total": 4,
        "last_processing_time_us": 1500,
        "wal_confirmed_lag_bytes": 5,
        "refused_tables": 1,
        "refused_events_dropped_total": 4,
    }


def test_a_pipeline_that_knows_nothing_yet_has_metrics() -> None:
    empty = replace(STATUS, backends=(), sinks=())
    assert samples(empty, bridge=True)["bridge_connected", ()] == 0


def test_gaps_are_counted_by_cause_and_staleness_is_told() -> None:
    row = GapReport(stale=True, counts={"slot_lost": 2, "diverged": 1})
    mended = GapReport(stale=False, counts={"slot_lost": 1})
    backend = BackendStatus(name="a", gaps={"p": row, "q": mended})
    text = metrics_text(replace(STATUS, backends=(backend,))).decode()
    labels = 'backend="a",cause="{}",partition="{}"'
    for cause, partition, count in (
        ("slot_lost", "p", 2),
        ("diverged", "p", 1),
        ("slot_lost", "q", 1),
    ):
        assert f"penstock_gaps_total{{{labels.format(cause, partition)}}} {count}.0" in text
    assert 'penstock_partition_stale{backend="a",partition="p"} 1.0' in text
    assert 'penstock_partition_stale{backend="a",partition="q"} 0.0' in text


def test_the_lag_of_partitions_is_told_where_it_is_known() -> None:
    rows = (
        PartitionStatus(partition="p", lag_seconds=2.5),
        PartitionStatus(partition="q"),
    )
    text = metrics_text(replace(STATUS, backends=(BackendStatus(name="a", partitions=rows),)))
    lags = [line for line in text.decode().splitlines() if "partition_lag_seconds{" in line]
    assert lags == ['penstock_partition_lag_seconds{backend="a",partition="p"} 2.5']


def test_snapshots_have_totals_and_how_far_each_table_is() -> None:
    lines = metrics_text(STATUS).decode().splitlines()
    found = [line for line in lines if line.startswith("penstock_snapshot")]
    assert found == [
        'penstock_snapshot_runs_total{backend="a",state="done"} 2.0',
        'penstock_snapshot_chunks_total{backend="a"} 4.0',
        'penstock_snapshot_rows_total{backend="a"} 300.0',
        'penstock_snapshot_bytes_total{backend="a"} 5000.0',
        'penstock_snapshot_bytes_per_second{backend="a",table="t"} 50.0',
        'penstock_snapshot_seconds_left{backend="a",table="t"} 2.5',
    ]
