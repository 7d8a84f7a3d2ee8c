"""What each endpoint answers; no server needed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest
from starlette.responses import Response

from penstock.cli.bridge_series import BRIDGE
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.settings import Secret
from penstock.ops.board import Board
from penstock.ops.health import Health
from penstock.ops.history import History
from penstock.ops.partitions import PartitionStatus
from penstock.ops.reports import GapReport, SourceReport
from penstock.ops.requests import Access, OpsRequest
from penstock.ops.respond import ANSWERS, Asked
from penstock.ops.status import BackendStatus, SinkStatus, Status

STATUS = Status(
    name="shop",
    version="1.0",
    uptime_seconds=12.5,
    health="ok",
    reasons=(),
    backends=(BackendStatus(name="a", confirmed="0/1"),),
    sinks=(SinkStatus(name="s"),),
    last_batch=None,
)
OPEN = Access()


def stop() -> None:
    raise AssertionError("nothing was asked to stop")


def ask(
    path: str,
    method: str = "GET",
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    status: Status = STATUS,
    access: Access = OPEN,
    client: str = "127.0.0.1",
    **more: Any,
) -> Response:
    request = OpsRequest(
        method=method, path=path, query=query or {}, headers=headers or {}, client=client
    )
    method_of, _, answer = ANSWERS[path]
    assert method == method_of
    return answer(Asked(request=request, status=status, access=access, stop=stop, **more))


def body(response: Response) -> Any:
    assert response.media_type == "application/json"
    return orjson.loads(response.body)


@pytest.mark.parametrize(("health", "code"), [("ok", 200), ("degraded", 200), ("unhealthy", 503)])
def test_health_is_a_status_code(health: Health, code: int) -> None:
    found = ask("/health", status=replace(STATUS, health=health, reasons=("why",)))
    assert found.status_code == code
    said = body(found)
    assert (said["health"], said["reasons"], said["uptime_seconds"]) == (health, ["why"], 12.5)


def test_health_has_version_backends_and_partitions_as_status_has() -> None:
    one = BackendStatus(name="a", partitions=(PartitionStatus(partition="p", place="1:0"),))
    now = replace(STATUS, backends=(one,))
    health, status = body(ask("/health", status=now)), body(ask("/status", status=now))
    assert health["version"] == status["version"] == "1.0"
    assert health["backends"] == status["backends"]
    assert health["backends"][0]["partitions"][0]["place"] == "1:0"


GAP = GapReport(stale=True)


@pytest.mark.parametrize(
    ("backend", "word"),
    [
        (BackendStatus(name="a", connected=True), "healthy"),
        (
            BackendStatus(
                name="a",
                connected=True,
                partitions=(PartitionStatus(partition="p", health="lagging"),),
            ),
            "lagging",
        ),
        (BackendStatus(name="a", connected=True, gaps={"p": GAP}), "stale"),
        (BackendStatus(name="a", connected=False), "unhealthy"),
        (BackendStatus(name="a", connected=True, blocked="a publication is missing"), "unhealthy"),
    ],
)
def test_health_has_a_word_for_each_backend_as_a_puller_had(
    backend: BackendStatus, word: str
) -> None:
    found = ask("/health", status=replace(STATUS, backends=(backend,)), at=1_700_000_000.0)
    assert body(found)["Backends"] == [{"Name": "a", "Status": word, "LastEventTime": None}]


def test_health_has_the_time_of_the_last_event_as_a_puller_had() -> None:
    one = BackendStatus(name="a", connected=True, last_event_seconds=1.25)
    found = body(ask("/health", status=replace(STATUS, backends=(one,)), at=1_700_000_000.0))
    assert found["Backends"][0]["LastEventTime"] == "2023-11-14T22:13:18.750Z"
    assert list(found).index("backends") < list(found).index("Backends")


@pytest.mark.parametrize(("ready", "code"), [(True, 200), (False, 503)])
def test_ready_is_a_status_code(ready: bool, code: int) -> None:
    found = ask("/ready", status=replace(STATUS, ready=ready, unready=("why",)))
    assert found.status_code == code
    assert body(found) == {"ready": ready, "warming_up": False, "reasons": ["why"]}


@pytest.mark.parametrize(
    ("ready", "standby", "code"),
    [(True, None, 200), (False, "another instance owns it", 200), (False, None, 503)],
)
def test_where_a_standby_is_accepted_it_is_as_good_as_ready(
    ready: bool, standby: str | None, code: int
) -> None:
    now = replace(STATUS, ready=ready, standby=standby, unready=("why",))
    found = ask("/ready", query={"standby": "ok"}, status=now)
    assert (found.status_code, body(found)["ready"]) == (code, ready)
    assert ask("/ready", status=now).status_code == (200 if ready else 503)


def test_status_is_everything_as_json() -> None:
    found = body(ask("/status"))
    assert found == orjson.loads(orjson.dumps(STATUS.to_json()))
    assert found["backends"][0]["confirmed"] == "0/1"


def test_metrics_are_prometheus_text() -> None:
    found = ask("/metrics")
    assert str(found.media_type).startswith("text/plain; version=0.0.4")
    assert b"penstock_uptime_seconds 12.5" in found.body
    assert b"bridge_uptime_seconds 12.0" in ask("/metrics", more=BRIDGE).body


def test_stream_info_asks_the_sink() -> None:
    found = ask("/streams/info", query={"stream": "CDC"}, stream_info=lambda name: {"is": name})
    assert (found.status_code, body(found)) == (200, {"is": "CDC"})


def raising(error: PenstockError) -> Any:
    def info(_: str) -> Mapping[str, Any]:
        raise error

    return info


@pytest.mark.parametrize(
    ("query", "info", "code"),
    [
        ({}, lambda _: {}, 400),
        ({"stream": ""}, lambda _: {}, 400),
        ({"stream": "X"}, lambda _: None, 404),
        ({"stream": "X"}, None, 501),
        ({"stream": "X"}, raising(Unavailable("gone", hint="wait")), 503),
        ({"stream": "X"}, raising(SettingsError("wrong")), 502),
    ],
)
def test_stream_info_that_can_not_be_had_says_why(query: Any, info: Any, code: int) -> None:
    found = ask("/streams/info", query=query, stream_info=info)
    assert found.status_code == code
    assert body(found)["error"]


def test_shutdown_is_a_post() -> None:
    found = ask("/shutdown", "POST")
    assert (found.status_code, found.background is None) == (202, False)


def test_a_web_page_can_not_shut_down() -> None:
    found = ask("/shutdown", "POST", headers={"origin": "http://evil.example"})
    assert (found.status_code, found.background) == (403, None)


@pytest.mark.parametrize(
    ("client", "headers", "code"),
    [
        ("127.0.0.1", {}, 202),
        ("::1", {}, 202),
        ("::ffff:127.0.0.1", {}, 202),
        ("10.1.2.3", {}, 403),
        ("::ffff:10.1.2.3", {}, 403),
        ("", {}, 403),
        ("127.0.0.1", {"x-forwarded-for": "10.1.2.3"}, 403),
        ("127.0.0.1", {"forwarded": "for=10.1.2.3"}, 403),
    ],
)
def test_without_a_token_only_this_machine_may_shut_down(
    client: str, headers: Mapping[str, str], code: int
) -> None:
    found = ask("/shutdown", "POST", client=client, headers=headers)
    assert (found.status_code, found.background is None) == (code, code != 202)


@pytest.mark.parametrize(("given", "code"), [("", 401), ("Bearer x", 403), ("Bearer key", 202)])
def test_where_there_is_a_token_shutdown_needs_it(given: str, code: int) -> None:
    access = Access(token=Secret("key"))
    headers = {"authorization": given} if given else {}
    found = ask("/shutdown", "POST", headers=headers, access=access)
    assert (found.status_code, found.background is None) == (code, code != 202)


def test_the_history_has_a_range() -> None:
    history = History()
    board = Board("/nowhere")
    board.post("a", SourceReport(lag_seconds=1.5))
    history.record(board.snapshot(), 1_800_000_000.2)
    found = body(ask("/history", history=history))
    assert (found["step"], found["times"]) == (1, [1_800_000_000])
    assert found["series"]["lag_seconds/a"] == [1.5]
    assert body(ask("/history", query={"range": "24h"}))["step"] == 60
    assert ask("/history", query={"range": "1y"}).status_code == 400
