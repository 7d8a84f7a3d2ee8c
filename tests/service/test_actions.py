"""Actions over HTTP: which there are, which are refused, and what became of them."""

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.responses import Response
from starlette.testclient import TestClient

from penstock.config import Pipeline, build_pipeline
from penstock.model.settings import Secret
from penstock.ops.requests import Access, OpsRequest
from penstock.ops.server import OpsServer
from penstock.service.action_api import ActionApi, described
from penstock.service.actions import ACTIONS, Actions, Operated, PauseAction
from penstock.service.pauses import Pauses
from tests.waiting import until


class Asked:
    """The API of a pipeline of two memory feeds, as HTTP would ask it."""

    def __init__(self, pipeline: Pipeline, **access: Any) -> None:
        self.actions, self.restarted = Actions(), list[str]()
        self.on = Operated(pipeline=pipeline, by="", restart=self.restarted.extend)
        api = ActionApi(self.actions, Access(**access), lambda _: self.on)
        self.endpoints = api.endpoints()
        self._endpoints = {each.path: each.answer for each in self.endpoints}

    def __call__(self, path: str, given: Any = None, token: str = "key") -> tuple[int, Any]:
        answer = self._endpoints.get(path, self._endpoints["/actions/{name}"])
        body = (
            given
            if isinstance(given, bytes)
            else json.dumps({} if given is None else given).encode()
        )
        request = OpsRequest(
            method="POST", path=path, body=body, ids={"name": path.rpartition("/")[2]},
            headers={"authorization": f"Bearer {token}"},
        )  # fmt: skip
        found: Response = answer(request)
        return found.status_code, json.loads(found.body)

    def ended(self) -> Any:
        until(lambda: self.actions.recent[0]["state"] != "running")
        return self.actions.recent[0]


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    backends = [{"name": name, "type": "memory"} for name in "ab"]
    return build_pipeline(
        {"name": "shop", "backends": backends, "sink": {"type": "memory"},
         "state": str(tmp_path)},
        name="test", secrets=[],
    )  # fmt: skip


@pytest.fixture
def ask(pipeline: Pipeline) -> Asked:
    return Asked(pipeline, token=Secret("key"))


@pytest.mark.slow
def test_an_action_runs_and_is_remembered(ask: Asked) -> None:
    code, begun = ask("/actions/pause", {"backend": "a", "for": "30m"})
    assert (code, begun["action"]) == (202, "pause")
    found = ask.ended()
    assert (found["id"], found["state"], found["result"]) == (
        begun["id"],
        "done",
        {"paused": ["a"]},
    )
    assert ask("/actions")[1]["recent"][0] == found
    with Pauses(ask.on.pipeline) as pauses:
        assert list(pauses.all()) == ["a"]
        assert pauses.all()["a"]["until"]


@pytest.mark.parametrize(
    ("name", "given", "error"),
    [
        ("replay", {}, "keeps no dead letters"),
        ("snapshot", {"table": "t"}, "takes no snapshots"),
    ],
)
def test_one_that_fails_says_why(ask: Asked, name: str, given: Any, error: str) -> None:
    assert ask(f"/actions/{name}", given)[0] == 202
    found = ask.ended()
    assert found["state"] == "failed"
    assert error in found["error"]
    assert found["hint"]


@pytest.mark.parametrize(
    ("path", "given", "code", "field"),
    [
        ("/actions/nothing", {}, 404, None),
        ("/actions/resume", {}, 409, None),
        ("/actions/shutdown", {}, 409, None),
        ("/actions/pause", {"backend": 1}, 422, "backend"),
        ("/actions/pause", {"for": "soon"}, 422, "for"),
        ("/actions/pause", {"bakend": "a"}, 422, "bakend"),
        ("/actions/mend", {"backend": "a"}, 422, "partition"),
        ("/actions/pause", b"{", 422, None),
        ("/actions/pause", [], 422, None),
    ],
)
def test_what_is_refused(ask: Asked, path: str, given: Any, code: int, field: str | None) -> None:
    found = ask(path, given)
    assert (found[0], found[1].get("field")) == (code, field)
    assert not ask.actions.recent


def test_without_a_token_in_the_file_there_are_none_and_the_list_says_how(
    pipeline: Pipeline,
) -> None:
    ask = Asked(pipeline)
    assert ask("/actions/pause")[0] == 403
    listed = ask("/actions")[1]["actions"]
    assert {each["action"] for each in listed} == set(ACTIONS)
    assert all("ops.token" in each["why"] and not each["allowed"] for each in listed)


def test_each_says_whether_it_can_be_done_now(ask: Asked) -> None:
    allowed = {each["action"]: each["allowed"] for each in ask("/actions")[1]["actions"]}
    assert (allowed["pause"], allowed["retry"], allowed["shutdown"]) == (True, True, False)


def test_retry_begins_all_anew(ask: Asked) -> None:
    ask("/actions/retry")
    assert ask.ended()["result"] == {"restarted": ["a", "b"]}
    assert ask.restarted == ["a", "b"]


def test_a_pause_is_ended_by_another_process_and_kept_by_a_second_pause(
    pipeline: Pipeline,
) -> None:
    on = Operated.by_command(pipeline)
    PauseAction(backend="a").run(on)
    with Pauses(pipeline) as pauses:
        first = pauses.all()["a"]
        pauses.pause(["a", "b"], "me", 60)
        assert pauses.all()["a"]["since"] == first["since"]
        assert pauses.resume(["a"]) == ["a"]
        assert pauses.resume(["a"]) == []
        assert list(pauses.all()) == ["b"]


@pytest.mark.parametrize("seconds", [1, 0.25, 30])
def test_a_pause_lasts_at_least_as_long_as_it_was_asked_for(
    pipeline: Pipeline, seconds: float
) -> None:
    with Pauses(pipeline) as pauses:
        before = time.time()
        pauses.pause(["a"], "me", seconds)
        end = datetime.fromisoformat(pauses.all()["a"]["until"]).timestamp()
        assert before + seconds <= end < time.time() + seconds + 1
        pauses.resume(["a"])


def test_openapi_has_every_action_with_its_arguments(ask: Asked) -> None:
    paths = described(ask.endpoints)["paths"]
    assert "/messages" not in paths  # the sink has no stream
    for name, kind in ACTIONS.items():
        schema = paths[f"/actions/{name}"]["post"]["requestBody"]["content"]["application/json"]
        assert set(schema["schema"].get("properties", {})) == {
            field.alias or key for key, field in kind.model_fields.items()
        }
    assert {"/status", "/metrics", "/events", "/actions"} <= set(paths)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
    | st.sampled_from(["a", "b", "1s", "30m", "public.t", "a/p"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


@pytest.mark.slow
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_asked_gets_an_answer_that_is_documented(
    pipeline: Pipeline, data: st.DataObject
) -> None:
    token = "a-token-of-tests"
    ask = Asked(pipeline, token=Secret(token))
    server = OpsServer(
        port=0, access=Access(),
        endpoints=ask.endpoints,
    )  # fmt: skip
    client = TestClient(server.app(), base_url="http://localhost")
    paths = described(ask.endpoints)["paths"]
    path = data.draw(st.sampled_from([each for each in paths if each.startswith("/actions/")]))
    asked = paths[path]["post"]
    known = asked["requestBody"]["content"]["application/json"]["schema"].get("properties", {})
    names = st.sampled_from(sorted(known)) if known else st.text()
    body = data.draw(st.dictionaries(names | st.text(), VALUES, max_size=4) | VALUES)
    headers = data.draw(st.sampled_from([{}, {"Authorization": f"Bearer {token}"}]))
    found = client.post(path, content=json.dumps(body), headers=headers)
    assert str(found.status_code) in asked["responses"]
    assert token not in found.text
    ask.actions.close()
    listed = client.get("/actions")
    assert listed.status_code == 200
    assert token not in listed.text
