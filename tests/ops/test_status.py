"""Health follows progress: a table of named cases, and what the status shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from jsonschema import Draft202012Validator

from penstock.ops.board import Board, Snapshot
from penstock.ops.health import Health
from penstock.ops.partitions import at_risk
from penstock.ops.reports import KINDS, SinkReport, SourceReport
from penstock.ops.status import Status, assess, status_schema
from penstock.ops.thresholds import Thresholds
from tests.waiting import Clock

LIMITS = Thresholds(stalled_after=30, lag_limit=1000)
FINE: Mapping[str, Any] = {
    "connected": True,
    "lag_bytes": 0,
    "buffered_events": 0,
    "confirmed": "0/1",
}


@dataclass(frozen=True)
class Case:
    """Reports at times in seconds since the start, and the health expected at `at`."""

    name: str
    reports: list[tuple[float, str, str, Mapping[str, Any]]]
    at: float
    health: Health
    reason: str = ""


def source(at: float, **fields: Any) -> tuple[float, str, str, Mapping[str, Any]]:
    return at, "source", "a", {**FINE, **fields}


def query(at: float, **fields: Any) -> tuple[float, str, str, Mapping[str, Any]]:
    fine = {"begun": True, "blocked": "", "restarts": 0, "last_error": ""}
    return at, "query", "a", fine | fields


def gap(at: float, *, stale: bool) -> tuple[float, str, str, Mapping[str, Any]]:
    return at, "gap", "a/p", {"stale": stale, "counts": {"slot_lost": 1}, "gaps": []}


def sink(at: float, **fields: Any) -> tuple[float, str, str, Mapping[str, Any]]:
    return at, "sink", "s", fields


def partition(at: float, **fields: Any) -> tuple[float, str, str, Mapping[str, Any]]:
    return at, "partition", "a/p", fields


def table(at: float, state: str) -> tuple[float, str, str, Mapping[str, Any]]:
    fields = {"backend": "a", "table": "public.t", "state": state, "reason": "no-key"}
    return at, "table", "a/public.t", fields | {"since": "2026-11-21", "skipped": 3}


def each(first: int, last: int, **fields: Any) -> list[tuple[float, str, str, Mapping[str, Any]]]:
    return [source(float(at), **fields) for at in range(first, last + 1, 5)]


CASES = [
    Case("idle and caught up", each(0, 600), 600, "ok"),
    Case("starting", [], 5, "degraded", "a: has not reported for 5 s since the start"),
    Case("just not starting any more", [], 119.9, "degraded", "since the start"),
    Case("never started", [], 120, "unhealthy", "has not reported for 120 s since the start"),
    Case("silent", [source(0)], 15, "degraded", "has not reported for 15 s"),
    Case("not silent yet", [source(0)], 14.9, "ok"),
    Case("silent for long", [source(0)], 30, "unhealthy", "has not reported for 30 s"),
    Case("stopped", [source(0, stopped=True)], 1, "unhealthy", "has stopped"),
    Case("a takeover takes a while", [source(5, unowned=3), source(30, unowned=3)], 30, "ok", ""),
    Case("partitions without an owner",
         [source(0), source(5, unowned=0), source(9, unowned=3), source(40, unowned=3)], 40,
         "degraded", "3 partitions have had no owner for 31 s"),
    Case("partitions without an owner for long", [source(9, unowned=3), source(140, unowned=3)],
         140, "unhealthy", "3 partitions have had no owner for 131 s"),
    Case("history lost, and to be acted on", [source(0), query(0, blocked="the slot is gone")], 1,
         "unhealthy", "backend a: stands still: the slot is gone"),
    Case("has begun", [source(0), query(0)], 1, "ok"),
    Case("begins", [query(5, begun=False)], 6, "degraded", "a: has not begun for 1 s"),
    Case("begins, for a long time because Spark takes it",
         [query(0, begun=False), query(31, begun=False)], 31, "degraded",
         "a: has not begun for 31 s"),
    Case("can't begin, because its database is away",
         [query(0, begun=False), query(31, begun=False, last_error="refused")], 31, "unhealthy",
         "a: has not begun for 31 s: refused"),
    Case("joined a pipeline that runs", [query(500)], 510, "degraded",
         "a: has not reported for 10 s since the start"),
    Case("begun, and not read yet", [query(0)], 5, "degraded",
         "a: has not reported for 5 s since the start"),
    Case("history lost, and gone on", [source(0), gap(0, stale=True)], 1, "degraded",
         "partition p is stale: it has lost changes (slot_lost)"),
    Case("history lost, and mended", [source(0), gap(0, stale=False)], 1, "ok"),
    Case("history in danger", [source(0, at_risk="so far behind that its slot may be lost")], 1,
         "degraded", "a: so far behind that its slot may be lost"),
    Case("a position near the end of the source's history",
         [source(0, window_seconds=86_400, window_left_seconds=21_599)], 1, "degraded",
         "a: at_risk: the changes after the stored position leave the source's history in 6.0 h"
         " (it reaches back 24.0 h): bring the sink or the pipeline up to speed"),
    Case("a position at a quarter of the source's history",
         [source(0, window_seconds=86_400, window_left_seconds=21_600)], 1, "ok"),
    Case("a history that has just begun", [source(0, window_seconds=59, window_left_seconds=0)], 1,
         "ok"),
    Case("a history whose length is not known",
         [source(0, window_seconds=None, window_left_seconds=None)], 1, "ok"),
    Case("a source that is disabled",
         [source(0, source_state="disabled", source_message="the stream of t is disabled")], 1,
         "degraded", "a: the stream of t is disabled"),
    Case("a source that is throttled", [source(0, source_state="throttled")], 1, "degraded",
         "a: the source is throttled"),
    Case("reconnecting shortly",
         [*each(0, 100), *each(101, 111, connected=False, last_error="refused")], 111, "degraded",
         "a: disconnected for 10 s: refused"),
    Case("reconnecting long", [*each(0, 100), *each(101, 131, connected=False)], 131, "unhealthy",
         "a: disconnected for 30 s"),
    Case("reconnected", [*each(0, 100), *each(101, 131, connected=False), source(132)], 132, "ok"),
    Case("a first event after hours of idleness", [*each(0, 3600), source(3601, buffered_events=1)],
         3602, "ok"),
    Case("a buffer that does not empty", [*each(0, 100), *each(101, 131, buffered_events=5)], 131,
         "unhealthy", "a: behind, and has not moved for 30 s"),
    Case("nearly a buffer that does not empty", [*each(0, 100), *each(101, 126, buffered_events=5)],
         130.9, "ok"),
    Case("a buffer that stays full under load, while the position moves",
         [report for at in range(100)
          for report in (source(at, buffered_events=500), partition(at, place=f"{at}:0"))],
         100, "ok"),
    Case("a buffer that stays full under load, while the confirmed LSN moves",
         [source(at, buffered_events=500, confirmed=f"0/{at}") for at in range(100)], 100, "ok"),
    Case("a slow sink that stores",
         [report for at in range(0, 100, 5)
          for report in (source(at, buffered_events=500), sink(at, acknowledged=at))],
         100, "ok"),
    Case("a sink that hangs and is still connected", [source(0), *each(1, 41, buffered_events=500),
         sink(1, connected=True, acknowledged=5)], 41, "unhealthy",
         "a: behind, and has not moved for 40 s"),
    Case("far behind and moving",
         [source(at, lag_bytes=5000, confirmed=f"0/{at}") for at in range(50)], 50, "degraded",
         "a: 5000 bytes behind the source"),
    Case("exactly at the bound of the lag", each(0, 1, lag_bytes=1000), 1, "degraded", "1000"),
    Case("a table is suspended", [source(0), table(0, "suspended")], 1, "degraded",
         "backend a: table public.t is suspended since 2026-11-21 (no-key)"),
    Case("a table that will resume", [source(0), table(0, "resuming")], 1, "ok"),
    Case("a table that was suspended", [source(0), table(0, "suspended"), table(1, "following")], 2,
         "ok"),
    Case("a little behind", each(0, 600, lag_bytes=999), 600, "ok"),
    Case("far behind and not moving", [*each(0, 100), *each(101, 131, lag_bytes=5000)], 131,
         "unhealthy", "a: behind, and has not moved for 30 s"),
    Case("a burst after hours of a small lag",
         [*each(0, 3600, lag_bytes=500), source(3601, lag_bytes=5000)], 3602, "degraded",
         "5000 bytes behind"),
    Case("a sink that is away shortly",
         [source(5), sink(0, connected=True), sink(1, connected=False, last_error="no route")], 6,
         "degraded", "sink s: disconnected for 5 s: no route"),
    Case("a sink that is away for long", [source(30), sink(1, connected=False)], 31, "unhealthy",
         "sink s: disconnected for 30 s"),
    Case("back-pressure",
         [*each(0, 600), sink(600, pressure="slow", pressure_reason="it takes long")], 605,
         "degraded", "sink s: back-pressure is slow for 5 s: it takes long"),
    Case("back-pressure is never unhealthy while changes flow",
         [*each(0, 600), *[sink(at, pressure="slow") for at in range(0, 600, 5)]], 600, "degraded",
         "back-pressure is slow for 600 s"),
    Case("a pause", [*each(0, 60), sink(55, pressure="critical")], 60, "degraded",
         "back-pressure is critical for 5 s"),
    Case("a pause that does not end",
         [*each(0, 60), *[sink(at, pressure="critical") for at in range(30, 61, 5)]], 60,
         "unhealthy", "back-pressure is critical for 30 s"),
    Case("back-pressure of a sink that has had nothing to do for long",
         [*each(0, 600), sink(10, pressure="slow"), sink(10, connected=True)], 600, "ok"),
    Case("an open breaker", [*each(0, 60), sink(55, breaker="open", breaker_reason="no route")], 60,
         "degraded", "sink s: the circuit breaker is open for 5 s: no route"),
    Case("a breaker that stays open",
         [*each(0, 600), sink(10, breaker="open", breaker_reason="no route")], 600, "unhealthy",
         "the circuit breaker is open for 590 s: no route"),
    Case("a breaker that is closed", [*each(0, 60), sink(1, breaker="closed")], 60, "ok"),
    Case("a sink that was silent, because there was nothing to do",
         [sink(0, connected=True), *each(0, 600)], 600, "ok"),
]  # fmt: skip


def status(case_reports: list[tuple[float, str, str, Mapping[str, Any]]], at: float) -> Status:
    clock = Clock(0.0)
    board = Board("/nowhere", clock=clock, bounds=LIMITS.bounds)
    for now, kind, name, fields in sorted(case_reports, key=lambda report: report[0]):
        clock.now = now
        board.post(name, KINDS[kind](**fields))
    return judge(board.snapshot(), at)


def judge(snapshot: Snapshot, at: float, *backends: str) -> Status:
    return assess(
        snapshot,
        name="shop",
        version="1",
        backends=backends or ("a",),
        started=0.0,
        now=at,
        thresholds=LIMITS,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_health(case: Case) -> None:
    found = status(case.reports, case.at)
    assert (found.health, bool(found.reasons)) == (case.health, case.health != "ok")
    assert case.reason in "; ".join(found.reasons)


@pytest.mark.parametrize(
    ("reports", "at", "starting"),
    [
        ([], 5, True),
        ([], 120, False),
        ([query(0, begun=False)], 6, True),
        ([query(0, begun=False, last_error="refused")], 6, False),
        ([query(0), source(1, connected=False)], 6, True),
        ([query(0), source(1, connected=False, last_error="refused")], 6, False),
        ([query(0), source(1, connected=False)], 60, False),
        ([query(0), source(1), source(2, connected=False)], 6, False),
        ([query(0), source(1), source(2)], 6, False),
    ],
)
def test_what_starts_is_told_from_what_is_wrong(
    reports: list[Any], at: float, *, starting: bool
) -> None:
    assert status(reports, at).starting is starting


def test_it_warms_up_until_a_task_has_connected_the_sink() -> None:
    begun = [query(0), source(1)]
    assert not status([], 2).warming_up, "it is not ready"
    assert status(begun, 2).warming_up
    assert not status([*begun, sink(2, connected=True)], 2).warming_up
    assert not status([query(0), source(1, host="h")], 2).warming_up, "a processor has no sink"


def test_one_backend_is_enough_to_be_unhealthy() -> None:
    clock = Clock(0.0)
    board = Board("/nowhere", clock=clock)
    board.post("a", SourceReport(**FINE))
    board.post("b", SourceReport(**FINE, stopped=True))
    found = judge(board.snapshot(), 1.0, "a", "b")
    assert (found.health, found.reasons) == ("unhealthy", ("backend b: has stopped",))


def test_a_shared_sink_that_moves_does_not_excuse_a_backend_that_does_not() -> None:
    clock = Clock(0.0)
    board = Board("/nowhere", clock=clock)
    for now in range(40):
        clock.now = float(now)
        board.post("a", SourceReport(**{**FINE} | {"buffered_events": 5}))
        board.post("b", SourceReport(**{**FINE} | {"confirmed": f"0/{now}"}))
        board.post("s", SinkReport(acknowledged=now))
    found = judge(board.snapshot(), 40.0, "a", "b")
    assert found.reasons == ("backend a: behind, and has not moved for 40 s",)


def test_a_reader_that_ended_is_not_connected_until_its_successor_reports() -> None:
    reports = [source(1), query(1), query(5, restarts=1, last_error="no publication")]
    assert not status(reports, 6).backends[0].connected
    assert status(reports, 6).backends[0].last_error == "no publication"
    assert status([*reports, source(6)], 6).backends[0].connected


def test_everything_reported_is_shown() -> None:
    found = status(
        [
            source(1, events=5, reconnects=1, lag_seconds=0.5, details={"slot": "s"}),
            (2, "batch", "a", {"id": 7, "rows": 9, "timings": {"triggerExecution": 12.5}}),
            sink(3, published=4, acknowledged=3, delivery="deduplicated", details={"server": "x"}),
        ],
        4,
    )
    backend, stored = found.backends[0], found.sinks[0]
    assert (backend.events, backend.lag_seconds) == (5, 0.5)
    assert (backend.details, backend.age_seconds) == ({"slot": "s"}, 3)
    assert found.last_batch == backend.batch
    assert found.last_batch is not None
    assert (found.last_batch.id, found.last_batch.rows) == (7, 9)
    assert (found.last_batch.duration_ms, found.last_batch.age_seconds) == (12.5, 2)
    assert (stored.published, stored.acknowledged, stored.delivery) == (4, 3, "deduplicated")
    assert stored.details == {"server": "x"}


def test_a_table_of_a_sink_of_tables_shows_what_is_known() -> None:
    fields = {"backend": "a", "sid": "eu", "table": "public.t", "state": "loading", "place": None}
    reports = [
        (1.0, "table", "a/eu/public.t", {**fields, "applied": {"insert": 3}, "rows_loaded": 5})
    ]
    reports.append((1.0, "table", "a/eu/public.u", {"backend": "a", "table": "public.u"}))
    (table,) = status([source(1), *reports], 6).to_json()["tables"]
    assert 0 < table.pop("rate") < 3
    assert table == {
        "backend": "a", "sid": "eu", "table": "public.t", "state": "loading", "reason": "",
        "error": "", "since": "", "rows_loaded": 5, "applied": {"insert": 3},
        "last_change_seconds": 5,
    }  # fmt: skip


def test_many_tables_that_wait_are_counted() -> None:
    fields = {"backend": "a", "sid": "eu", "state": "waiting", "error": "no target"}
    reports: list[tuple[float, str, str, Mapping[str, Any]]] = [
        (1.0, "table", f"a/eu/t{number:02}", {**fields, "table": f"t{number:02}", "since": "now"})
        for number in range(13)
    ]
    found = status([source(1), *reports], 1)
    assert found.health == "degraded"
    assert found.reasons[0] == "backend a: table t00 of eu waits since now (no target)"
    assert (len(found.reasons), found.reasons[-1]) == (11, "backend a: 3 more tables wait")


def test_a_backend_that_never_reported_is_listed() -> None:
    assert [backend.name for backend in status([], 1).backends] == ["a"]


def test_a_batch_report_without_a_batch_is_none() -> None:
    assert status([source(0), (0, "batch", "a", {})], 1).last_batch is None


def test_a_status_is_plain_json() -> None:
    found = status([source(1), (2, "batch", "a", {"id": 1}), sink(1)], 2)
    assert orjson.loads(orjson.dumps(found.to_json()))["backends"][0]["batch"]["id"] == 1


def test_an_instance_on_standby_is_that_and_nothing_else() -> None:
    status = assess(
        Snapshot(),
        name="p",
        version="1",
        backends=["a"],
        started=0,
        now=1000,
        thresholds=LIMITS,
        standby="another instance owns the pipeline",
    )
    assert (status.health, status.standby) == ("standby", "another instance owns the pipeline")
    assert status.reasons == ("another instance owns the pipeline",)


def test_the_window_is_in_the_status_and_may_be_judged_otherwise() -> None:
    reports = [source(0, window_seconds=1000.0, window_left_seconds=90.0)]
    reports.append((0, "partition", "a/p", {"window_seconds": 1000.0, "window_left_seconds": 90.0}))
    found = status(reports, 1).backends[0]
    assert (found.window_seconds, found.window_left_seconds) == (1000.0, 90.0)
    assert found.partitions[0].window_left_seconds == 90.0
    assert "in 90 s (it reaches back 17 min)" in found.at_risk
    assert not found.source_ok
    report = SourceReport(**reports[0][3])
    assert not at_risk(report, 0.05)
    assert not at_risk(report, 0.0)


def test_a_sources_own_terms_are_told_once() -> None:
    reports = [source(1, partition_count=1, details={"slot": "s"})]
    found = status([*reports, partition(1, details={"slot": "s"})], 1).backends[0]
    assert (found.details, found.partitions[0].details) == ({"slot": "s"}, {})


def test_the_schema_describes_what_the_status_has() -> None:
    schema = status_schema()
    found = status([source(1), partition(1), sink(1), gap(1, stale=True), table(1, "live")], 1)
    shown = orjson.loads(orjson.dumps(found.to_json()))
    Draft202012Validator(schema).validate(shown)
    assert schema["properties"].keys() == shown.keys()
    assert "Log" in schema["$defs"]["BackendStatus"]["properties"]["lag_bytes"]["description"]


def test_tables_that_have_no_state_are_shown_if_they_are_busy_and_the_others_together() -> None:
    reports = [
        (1.0, "table", f"a/t{number:03}",
         {"backend": "a", "table": f"t{number:03}", "applied": {"insert": number, "delete": 1}})
        for number in range(1, 251)
    ]  # fmt: skip
    reports.append(
        (1.0, "table", "a/other", {"backend": "a", "table": "other", "applied": {"insert": 9}})
    )
    shown = {table.table: table for table in status([source(1), *reports], 11).tables}
    assert shown.keys() == {"other", *(f"t{number:03}" for number in range(51, 251))}
    assert shown["t250"].applied == {"insert": 250, "delete": 1}
    assert shown["t250"].rate == pytest.approx(251 / 10 / 2.71828, rel=1e-3)
    assert (shown["t250"].state, shown["t250"].last_change_seconds) == ("following", 10)
    assert shown["other"].applied == {"insert": 9 + sum(range(1, 51)), "delete": 50}
