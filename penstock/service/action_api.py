"""What the ops server answers to operators: which actions there are, the last ones, and a new one;
dead letters; the configuration; and the description of all that it answers, as OpenAPI."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import orjson

from penstock.config import secrets_of
from penstock.model.errors import PenstockError, SettingsError
from penstock.model.version import __version__
from penstock.ops.logs import Blot
from penstock.ops.requests import Access, Endpoint, OpsRequest, Response, as_json, refused
from penstock.ops.respond import ENDPOINTS
from penstock.service.actions import ACTIONS, Action, Actions, BadArgument, Operated, read_action

_LETTERS = 500  # that are listed
_HOW = "set ops.token in the pipeline file: who has it may act"
# Besides those of `ENDPOINTS`: (path, method, what for).
MORE = (
    ("/actions", "GET", "what may be done, and the last actions"),
    ("/events", "GET", "server-sent events: the status each second, and the log"),
    ("/actions/NAME", "POST", "an action"),
    ("/configuration", "GET", "the pipeline file with all defaults, without secrets"),
    ("/letters", "GET", "the oldest dead letters, without their content"),
    ("/letters/ID", "GET", "one, with its content: row data"),
    ("/openapi.json", "GET", "this description"),
)


class ActionApi:
    """Answers for one pipeline; `operated` is what an action of an address is done to now."""

    def __init__(
        self, actions: Actions, access: Access, operated: Callable[[str], Operated]
    ) -> None:
        self._actions, self._access, self._operated = actions, access, operated

    def endpoints(self) -> Sequence[Endpoint]:
        """What it answers."""
        return [
            Endpoint("/actions", "GET", self._list),
            *(Endpoint(f"/actions/{name}", "POST", partial(self._act, name)) for name in ACTIONS),
            Endpoint("/actions/{name}", "POST", self._unknown),
            Endpoint("/configuration", "GET", self._configuration),
            Endpoint("/letters", "GET", self._letters),
            Endpoint("/letters/{id}", "GET", self._letters),
            Endpoint("/openapi.json", "GET", lambda _: as_json(200, described())),
        ]

    def _list(self, request: OpsRequest) -> Response:
        on = self._operated(request.client)
        found = [
            {
                "action": name, "what": kind.what, "dangerous": kind.is_dangerous,
                "arguments": _schema(kind), **self._may(kind, on),
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
        shown = pipeline.model_dump(mode="json")
        return as_json(200, Blot(secrets_of(pipeline))(None, "", shown))

    def _unknown(self, request: OpsRequest) -> Response:
        name = str(request.ids["name"])[:40]
        return refused(404, "not_found", f"there is no action {name!r}", ", ".join(ACTIONS))


def _body(request: OpsRequest) -> Any:
    try:
        return orjson.loads(request.body or b"{}")
    except orjson.JSONDecodeError:
        raise BadArgument("the body is no JSON", "") from None


def _schema(kind: type[Action]) -> Mapping[str, Any]:
    return kind.model_json_schema(by_alias=True)


def described() -> dict[str, Any]:
    """OpenAPI 3.1 of the ops server."""
    paths: dict[str, Any] = {}
    for path, method, what in (*ENDPOINTS, *MORE):
        if path.endswith("NAME"):
            continue
        paths[path.replace("ID", "{id}")] = {
            method.lower(): _operation(what, {"200": {"description": "the answer"}})
        }
    answers = {
        "202": "it has begun; see /actions", "401": "no token", "403": "another token, or none set",
        "409": "the pipeline's state forbids it", "422": "an argument is wrong",
        "429": "too many wrong tokens", "503": "a server that it needs is away",
    }  # fmt: skip
    for name, kind in ACTIONS.items():
        body = {"content": {"application/json": {"schema": _schema(kind)}}}
        said = {code: {"description": text} for code, text in answers.items()}
        paths[f"/actions/{name}"] = {
            "post": _operation(kind.what, said) | {"requestBody": body, "security": [{"token": []}]}
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "penstock", "version": __version__},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(what: str, answers: Mapping[str, Any]) -> dict[str, Any]:
    return {"summary": what, "responses": answers}
