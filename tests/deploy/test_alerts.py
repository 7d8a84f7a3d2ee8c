"""The alerts: for each a case in which it fires, and one in which it does not; where it leads."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.deploy.programs import prometheus_program
from tests.docs.pages import ROOT, linked
from tests.docs.test_pages import anchors

FILE = ROOT / "deploy" / "prometheus" / "alerts.yaml"
RULES: Mapping[str, Any] = {
    rule["alert"]: rule for rule in yaml.safe_load(FILE.read_text())["groups"][0]["rules"]
}


class Case(NamedTuple):
    """Series by the minute, and whether the alert fires at minute 20."""

    alert: str
    series: dict[str, str]
    fires: bool


INFO = {"penstock_info{job='penstock'}": "1x30"}
RUNS = {"penstock_snapshot_bytes_per_second{backend='a', table='t'}": "5x30"}
CASES: dict[str, Case] = {
    "a target that answers": Case("Down", {"up{job='my-penstock'}": "1x30", **INFO}, False),
    "a target that does not": Case("Down", {"up{job='my-penstock'}": "1x9 0x30", **INFO}, True),
    "another job": Case("Down", {"up{job='node'}": "0x30", **INFO}, False),
    "no target": Case("Down", {"up{job='node'}": "1x30"}, True),
    "degraded": Case("Stopped", {"penstock_health{state='degraded'}": "1x30"}, False),
    "unhealthy": Case("Stopped", {"penstock_health{state='unhealthy'}": "0x9 1x30"}, True),
    "unhealthy, and ok again": Case(
        "Stopped", {"penstock_health{state='unhealthy'}": "0x9 1x5 0x30"}, False
    ),
    "an owner and a standby": Case(
        "NoOwner",
        {
            "penstock_health{job='p', instance='1', state='ok'}": "1x30",
            "penstock_health{job='p', instance='2', state='ok'}": "0x30",
            "penstock_health{job='p', instance='2', state='standby'}": "1x30",
        },
        False,
    ),
    "standbys only": Case(
        "NoOwner",
        {
            "penstock_health{job='p', instance='2', state='ok'}": "0x30",
            "penstock_health{job='p', instance='2', state='standby'}": "1x30",
        },
        True,
    ),
    "a few seconds behind": Case(
        "Behind",
        {"penstock_lag_seconds{backend='a'}": "9x30", "penstock_lag_bytes{backend='a'}": "9x30"},
        False,
    ),
    "ten minutes behind": Case("Behind", {"penstock_lag_seconds{backend='a'}": "600x30"}, True),
    "2 GB behind": Case(
        "Behind",
        {"penstock_lag_seconds{backend='a'}": "0x30", "penstock_lag_bytes{backend='a'}": "2e9x30"},
        True,
    ),
    "a source that is well": Case("AtRisk", {"penstock_source_ok{backend='a'}": "1x30"}, False),
    "a source at risk": Case("AtRisk", {"penstock_source_ok{backend='a'}": "1x9 0x30"}, True),
    "mended": Case("Stale", {"penstock_partition_stale{partition='p'}": "0x30"}, False),
    "stale": Case("Stale", {"penstock_partition_stale{partition='p'}": "1x30"}, True),
    "the first gap": Case(
        "Gap", {"penstock_gaps_total{backend='a', partition='p', cause='x'}": "_x12 1x30"}, True
    ),
    "another gap": Case(
        "Gap", {"penstock_gaps_total{backend='a', partition='p', cause='x'}": "1x12 2x30"}, True
    ),
    "an old gap, after a takeover": Case(
        "Gap",
        {
            "penstock_gaps_total{instance='1', cause='x'}": "1x12",
            "penstock_gaps_total{instance='2', cause='x'}": "_x12 1x30",
        },
        False,
    ),
    "the first letter": Case(
        "DeadLetters", {"penstock_dead_letters_total{sink='s', reason='too-large'}": "_x12 1x30"},
        True,
    ),
    "one more letter": Case(
        "DeadLetters", {"penstock_dead_letters_total{sink='s', reason='too-large'}": "1x12 2x30"},
        True,
    ),
    "old letters": Case(
        "DeadLetters", {"penstock_dead_letters_total{sink='s', reason='too-large'}": "3x30"}, False
    ),
    "no suspended table": Case(
        "TableSuspended",
        {
            "penstock_suspended_tables{backend='a'}": "0x30",
            "penstock_table_state{backend='a', sid='s', table='t', state='live'}": "1x30",
        },
        False,
    ),
    "a suspended table": Case(
        "TableSuspended", {"penstock_suspended_tables{backend='a'}": "1x30"}, True
    ),
    "a table that waits": Case(
        "TableSuspended",
        {
            "penstock_suspended_tables{backend='a'}": "0x30",
            "penstock_table_state{backend='a', sid='s', table='t', state='waiting'}": "1x30",
        },
        True,
    ),
    "slow": Case(
        "BackPressure",
        {
            "penstock_sink_pressure_state{sink='s', state='slow'}": "1x30",
            "penstock_sink_pressure_state{sink='s', state='critical'}": "0x30",
            "penstock_sink_breaker_state{sink='s', state='open'}": "0x30",
        },
        False,
    ),
    "critical": Case(
        "BackPressure", {"penstock_sink_pressure_state{sink='s', state='critical'}": "1x30"}, True
    ),
    "an open breaker": Case(
        "BackPressure", {"penstock_sink_breaker_state{sink='s', state='open'}": "1x30"}, True
    ),
    "positions are saved": Case(
        "PositionsNotSaved", {"penstock_checkpoint_errors_total{backend='a'}": "4x30"}, False
    ),
    "positions are not saved": Case(
        "PositionsNotSaved", {"penstock_checkpoint_errors_total{backend='a'}": "0+1x30"}, True
    ),
    "a snapshot that moves": Case(
        "SnapshotStuck", {**RUNS, "penstock_snapshot_chunks_total{backend='a'}": "0+1x30"}, False
    ),
    "a snapshot that stands still": Case(
        "SnapshotStuck", {**RUNS, "penstock_snapshot_chunks_total{backend='a'}": "7x30"}, True
    ),
    "no snapshot": Case(
        "SnapshotStuck", {"penstock_snapshot_chunks_total{backend='a'}": "7x30"}, False
    ),
}  # fmt: skip


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [prometheus_program("promtool"), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def firing(case: Case) -> dict[str, Any]:
    """A test of promtool."""
    name = f"Penstock{case.alert}"
    return {
        "interval": "1m",
        "input_series": [{"series": key, "values": each} for key, each in case.series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)',
                "eval_time": "20m",
                "exp_samples": [{"value": int(case.fires)}],
            }
        ],
    }


def test_the_file_is_one_of_rules() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", FILE)


@pytest.mark.parametrize("name", CASES)
def test_it_fires_when_it_should(name: str, tmp_path: Path) -> None:
    file = tmp_path / "test.yaml"
    tests = {"rule_files": [str(FILE)], "tests": [firing(CASES[name])]}
    file.write_text(json.dumps(tests))
    promtool("test", "rules", file)


def test_every_alert_has_both_cases() -> None:
    tried = {(f"Penstock{case.alert}", case.fires) for case in CASES.values()}
    assert tried == {(name, fires) for name in RULES for fires in (True, False)}


@pytest.mark.parametrize("name", RULES)
def test_it_has_a_remedy_and_leads_to_a_page(name: str) -> None:
    rule = RULES[name]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert len(rule["annotations"]["description"].split()) > 15
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    found = linked(ROOT, page)
    assert found and found.exists()
    assert not anchor or anchor in anchors(found)
    assert f"`{name}`" in (ROOT / "docs/how-to/deploy.md").read_text()
