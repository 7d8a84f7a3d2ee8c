"""Debian's Prometheus scrapes the pipeline of the compose file, and ops servers that report
everything wrong.

It knows each series and label of the alerts and of the dashboard, and each alert is active where it
should be.
"""

import itertools
import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import yaml

from penstock.ops.partitions import PartitionStatus
from penstock.ops.reports import GapReport, TableStatus
from penstock.ops.requests import Access, OpsRequest
from penstock.ops.respond import Asked, status_endpoints
from penstock.ops.server import OpsServer
from penstock.ops.status import Status
from tests.deploy.play import ORDER, SERVICES, Play, played
from tests.deploy.programs import prometheus_program
from tests.deploy.test_alerts import FILE, RULES
from tests.deploy.test_grafana import PANELS
from tests.ops.test_metrics import BACKEND, SINK, STATUS
from tests.pipeline.running import count
from tests.servers import EmbeddedServer, free_port
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.spark]

TARGETS = [(each["expr"], each["legendFormat"]) for panel in PANELS for each in panel["targets"]]
OWN = "penstock"  # the job of the pipeline that runs
VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*"}

WRONG = replace(
    STATUS,
    health="unhealthy",
    backends=(
        replace(
            BACKEND,
            lag_seconds=900.0,
            at_risk="soon",
            gaps={"p0": GapReport(stale=True, counts={"slot_lost": 1})},
            partitions=(PartitionStatus(partition="p0", lag_seconds=900.0),),
        ),
    ),
    sinks=(replace(SINK, pressure="critical", breaker="open"),),
    tables=(*STATUS.tables, TableStatus(backend="a", table="t", state="waiting", sid="us")),
)
WAITS = replace(STATUS, health="standby", standby="another", backends=(), sinks=(), tables=())


class Prometheus(EmbeddedServer):
    """Scrapes these jobs every second, and evaluates the alerts."""

    def __init__(self, jobs: Mapping[str, int]) -> None:
        self._program = prometheus_program("prometheus")
        self._jobs = jobs
        super().__init__("prometheus", None)

    def _command(self, *, again: bool) -> Sequence[str]:
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(FILE)],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
                for job, port in self._jobs.items()
            ],
        }
        file = self.folder / "prometheus.yaml"
        file.write_text(yaml.safe_dump(config))
        return [
            self._program,
            f"--config.file={file}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address={self.host}:{self.port}",
        ]

    def _ready(self) -> bool:
        try:
            self.get("/-/ready")
        except OSError:
            return False
        return True

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.host}:{self.port}{path}", timeout=30) as answer:
            return str(answer.read().decode())

    def ask(self, expression: str) -> list[Mapping[str, str]]:
        """The labels of each result."""
        query = urllib.parse.urlencode({"query": expression})
        found = json.loads(self.get(f"/api/v1/query?{query}"))["data"]["result"]
        return [each["metric"] for each in found]

    def alerts(self) -> list[Mapping[str, Any]]:
        """Those that are active: they fire, or will if it lasts."""
        found: list[Mapping[str, Any]] = json.loads(self.get("/api/v1/alerts"))["data"]["alerts"]
        return found


def ops_server(status: Status) -> OpsServer:
    """Of a pipeline that has this status; its positions cannot be saved."""
    failures = itertools.count()

    def asked(request: OpsRequest) -> Asked:
        backends = [replace(each, save_errors=next(failures)) for each in status.backends]
        shown = replace(status, backends=backends)
        return Asked(request=request, status=shown, access=Access(), stop=list)

    return OpsServer(port=0, access=Access(), endpoints=status_endpoints(asked))


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """The compose file's services."""
    with played(tmp_path_factory.mktemp("compose")) as found:
        yield found


@pytest.fixture(scope="module")
def prometheus(play: Play) -> Iterator[Prometheus]:
    with ExitStack() as stack:
        wrong, waits = (stack.enter_context(ops_server(each)) for each in (WRONG, WAITS))
        jobs = {
            OWN: play.ports["ops"],
            f"{OWN}-wrong": wrong.port,
            f"{OWN}-waits": waits.port,
            f"{OWN}-gone": free_port(),
        }
        yield stack.enter_context(Prometheus(jobs))


@pytest.mark.process
def test_each_service_of_the_compose_file_becomes_healthy_in_its_order_and_changes_flow(
    play: Play,
) -> None:
    assert play.done == [name for name in ORDER if name in play.done]
    assert {*play.done, "grafana"} == set(SERVICES)
    nats: Any = type("Server", (), {"url": f"nats://127.0.0.1:{play.ports['nats']}"})
    stored = count(nats, "CDC")
    until(lambda: count(nats, "CDC") > stored + 5, 60)
    query = f"http://127.0.0.1:{play.ports['prometheus']}/api/v1/query?query=up"
    up = lambda: subprocess.run(["wget", "-qO-", query], capture_output=True, check=True).stdout  # noqa: E731
    until(lambda: b',"1"]' in up(), 60)


def selectors(expression: str) -> set[str]:
    """Every series that the expression asks for, with its labels."""
    return set(re.findall(r"(?:penstock_\w+|\bup\b)(?:\{[^}]*\})?", expression))


def test_each_series_of_an_alert_exists(prometheus: Prometheus) -> None:
    for name, rule in RULES.items():
        found = selectors(rule["expr"])
        assert found, name
        for each in found:
            until(lambda each=each: prometheus.ask(each), 30, problem=lambda each=each: each)
    assert prometheus.ask("penstock_no_such_series") == []


def test_each_alert_is_active_where_it_should_and_not_for_what_is_well(
    prometheus: Prometheus,
) -> None:
    active = lambda: {each["labels"]["alertname"] for each in prometheus.alerts()}  # noqa: E731
    until(lambda: active() == set(RULES), 60, problem=lambda: set(RULES) - active())
    for each in prometheus.alerts():
        labels, text = each["labels"], str(RULES[each["labels"]["alertname"]]["annotations"])
        assert labels["job"] != OWN, each
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels.keys(), each


def test_each_panel_shows_something(prometheus: Prometheus) -> None:
    for expression, legend in TARGETS:
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        found = until(
            lambda asked=expression: prometheus.ask(asked), 60,
            problem=lambda asked=expression: asked,
        )  # fmt: skip
        for label in re.findall(r"{{(\w+)}}", legend):
            assert all(each.get(label) for each in found), (expression, label)
        for each in selectors(expression):
            assert prometheus.ask(each), each
