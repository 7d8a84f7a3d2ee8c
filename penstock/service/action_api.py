"""What the ops server answers to operators: which actions there are, the last ones, and a new one;
dead letters; messages; the configuration; and the description of all that it answers, as OpenAPI.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import islice
from platform import python_version
from typing import Any

import orjson
from starlette.responses import Response

from penstock.config import explained, secrets_of
from penstock.model.errors import PenstockError, SettingsError
from penstock.model.settings import WRITTEN
from penstock.model.version import __version__
from penstock.native import describe
from penstock.ops.logs import Blot
from penstock.ops.requests import Access, Endpoint, OpsRequest, as_json, refused
from penstock.ops.respond import ANSWERS
from penstock.service.actions import ACTIONS, Action, Actions, BadArgument, Operated, read_action
from penstock.service.messages import FILTERS, MESSAGES, MessageViews
from penstock.service.operations import EVENTS

_LETTERS = 500  # that are listed
_IN_PATH = re.compile(r"{(\w+)}")
_HOW = "set ops.token in the pipeline file: who has it may act"
_KEYS = "versions, and each key: its value, default and meaning"
_ONE = "one, with its content: row data"


class ActionApi:
    """Answers for one pipeline; `operated` is what an action of an address is done to now."""

    def __init__(
        self, actions: Actions, access: Access, operated: Callable[[str], Operated]
    ) -> None:
        self._actions, self._access, self._operated = actions, access, operated

    def endpoints(self) -> Sequence[Endpoint]:
        found = [
            Endpoint("/actions", "GET", self._list, "what may be done, and the last actions"),
            *(Endpoint(f"/actions/{name}", "POST", partial(self._act, name)) for name in ACTIONS),
            Endpoint("/actions/{name}", "POST", self._unknown, "an action"),
            Endpoint("/configuration", "GET", self._configuration, _KEYS),
            Endpoint("/letters", "GET", self._letters, "dead letters, without their content"),
            Endpoint("/letters/{id}", "GET", self._letters, _ONE),
            Endpoint("/openapi.json", "GET", lambda _: as_json(200, described(found)), "all this"),
        ]
        sink = self._operated("").pipeline.sink
        if sink.plug_in.reader is not None:
            answer = MessageViews(self._access, sink).answer
            found.append(Endpoint("/messages", "GET", answer, MESSAGES))
        return found

    def _list(self, request: OpsRequest) -> Response:
        on = self._operated(request.client)
        found = [
            {
                "action": name, "what": kind.what(), "dangerous": kind.is_dangerous,
                "arguments": kind.model_json_schema(), **self._may(kind, on),
            }
            for name, kind in ACTIONS.items()
        ]  # fmt: skip
        return as_json(200, {"actions": found, "recent": self._actions.recent})

    def _may(self, kind: type[Action], on: Operated) -> Mapping[str, Any]:
        why = _HOW if self._access.token is None else kind.obstacle(on)
        return {"allowed": not why, "why": why}

    def _act(self, name: str, request: OpsRequest) -> Response:
        if denied := self._access.refusal_to_write(request):
            return denied
        on = self._operated(request.client)
        try:
            action = read_action(name, _body(request))
            if why := action.obstacle(on) or action.refusal(on):
                return refused(409, "conflict", why)
        except BadArgument as error:
            return refused(422, "invalid", error.message, error.hint, field=error.field)
        except PenstockError as error:
            status = 422 if isinstance(error, SettingsError) else 503
            return refused(status, "refused", error.message, error.hint)
        done = self._actions.begin(action, on)
        return as_json(202, {"id": done.id, "action": done.action, "state": done.state})

    def _letters(self, request: OpsRequest) -> Response:
        """Row data, so it takes the operator's token."""
        if denied := self._access.refusal_to_write(request):
            return denied
        id = request.ids.get("id")
        try:
            letters = self._operated(request.client).letters
            if id is not None:
                return as_json(200, letters.dead_letter(str(id)))
            return as_json(200, list(islice(letters.dead_letters(), _LETTERS)))
        except PenstockError as error:
            status = 404 if isinstance(error, SettingsError) else 503
            return refused(status, "not_found", error.message, error.hint)

    def _configuration(self, request: OpsRequest) -> Response:
        pipeline = self._operated(request.client).pipeline
        found = {
            "versions": {
                "penstock": __version__, "Python": python_version(), "PySpark": version("pyspark"),
                "native library": describe(),
            },
            "keys": list(explained(pipeline, pipeline.model_dump(mode="json", context=WRITTEN))),
        }  # fmt: skip
        return as_json(200, Blot(secrets_of(pipeline))(None, "", found))

    def _unknown(self, request: OpsRequest) -> Response:
        name = str(request.ids["name"])[:40]
        return refused(404, "not_found", f"there is no action {name!r}", ", ".join(ACTIONS))


def _body(request: OpsRequest) -> Any:
    try:
        return orjson.loads(request.body or b"{}")
    except orjson.JSONDecodeError:
        raise BadArgument("the body is no JSON", "") from None


_TOKEN = {
    401: "no token", 403: "another token, or none set", 429: "too many wrong tokens",
    503: "a server that it needs is away",
}  # fmt: skip
_ACTION = {
    202: "it has begun; see /actions", 409: "the pipeline's state forbids it",
    422: "an argument is wrong", **_TOKEN,
}  # fmt: skip
_ROWS = {200: "the answer", 404: "there is none", **_TOKEN}


def described(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1 of the ops server, with these endpoints of a pipeline."""
    paths: dict[str, Any] = {}
    listed = ((each.path, each.method, each.what) for each in endpoints)
    of_status = ((path, method, what) for path, (method, what, _) in ANSWERS.items())
    for path, method, what in (*of_status, ("/events", "GET", EVENTS), *listed):
        name = path.removeprefix("/actions/")
        if name == "{name}":
            continue
        kind = ACTIONS.get(name)
        has_rows = path.startswith(("/letters", "/messages"))
        answers = _ACTION if kind else _ROWS if has_rows else {200: "the answer"}
        found: dict[str, Any] = {
            "summary": kind.what() if kind else what,
            "responses": {str(code): {"description": text} for code, text in answers.items()},
        }
        if kind or has_rows:
            found["security"] = [{"token": []}]
        if kind:
            schema = kind.model_json_schema()
            found["requestBody"] = {"content": {"application/json": {"schema": schema}}}
        asked = [(id, "path") for id in _IN_PATH.findall(path)]
        asked += [(each, "query") for each in FILTERS if path == "/messages"]
        if asked:
            found["parameters"] = [
                {"name": each, "in": at, "required": at == "path", "schema": {"type": "string"}}
                for each, at in asked
            ]
        paths[path] = {method.lower(): found}
    return {
        "openapi": "3.1.0",
        "info": {"title": "penstock", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
