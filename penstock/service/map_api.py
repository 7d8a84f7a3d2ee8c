"""REST for the map of tables, as kuvasz-streamer has it: backends (`db`), their sources (`url`),
their tables (`tbl`), and the map of both sides, for the screen `/ui/#/map`.

Errors are `{code, error, info}`. Everybody may read what the ops server shows; passwords are not
shown. Writing takes `ops.token`, and a map in a file of its own.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
import structlog
from starlette.responses import Response

from penstock.config.map_store import Kind, MapRow, MapStore
from penstock.model.errors import RefusedEdit, SettingsError, Unavailable
from penstock.ops.requests import Access, Endpoint, OpsRequest, as_json, refused
from penstock.ops.status import Status
from penstock.service.map_survey import MapSurvey, Served, SurveyedTable
from penstock.sinks.loading import LoadsTables
from penstock.tables.inventory import InventoriedTable

KINDS: tuple[Kind, ...] = ("db", "url", "tbl")
# What has to be given of a new row, and besides of one that is replaced.
_NEEDED: Mapping[Kind, Collection[str]] = {
    "db": ("name",), "url": ("db_id", "sid", "url"), "tbl": ("db_id", "name"),
}  # fmt: skip
_NEEDED_ANEW: Mapping[Kind, Collection[str]] = {"tbl": ("schema", "type", "target")}
# What rows have besides, which clients send back.
_SHOWN = ("up", "status", "error", "lag_seconds")
_STATUS = {"not found": 404, "in use": 409}
_DIGITS = 18  # of an id, which is a number of 64 bits


log = structlog.get_logger("penstock.ops")


class MapApi:
    def __init__(self, served: Served, access: Access, status: Callable[[], Status]) -> None:
        self._served = served
        self._survey = MapSurvey(served)
        self._access, self._status = access, status

    def endpoints(self) -> Sequence[Endpoint]:
        found = [
            Endpoint("/url/restart", "POST", self._writing(self._restart)),
            Endpoint("/map", "GET", _guarded(self._map), "tables, and which are replicated"),
            Endpoint("/map/refresh", "POST", self._writing(partial(self._map, anew=True))),
            Endpoint("/map/{id}", "GET", _guarded(self._one_table)),
            Endpoint("/map/{id}/create", "POST", self._writing(self._create)),
            Endpoint("/map/{id}/clone", "POST", self._writing(self._clone)),
            Endpoint("/map/{id}/reload", "POST", self._writing(self._reload, edits=False)),
        ]
        for kind in KINDS:
            found += [
                Endpoint(f"/{kind}", "GET", _guarded(partial(self._all, kind))),
                Endpoint(f"/{kind}", "POST", self._writing(partial(self._add, kind))),
                Endpoint(f"/{kind}/{{id}}", "GET", _guarded(partial(self._one, kind))),
                Endpoint(f"/{kind}/{{id}}", "PUT", self._writing(partial(self._replace, kind))),
                Endpoint(f"/{kind}/{{id}}", "DELETE", self._writing(partial(self._remove, kind))),
            ]
        return [each._replace(path=f"/api{each.path}") for each in found]

    def _writing(
        self, answer: Callable[[OpsRequest], Response], *, edits: bool = True
    ) -> Callable[[OpsRequest], Response]:
        """Refuses who may not write, and a map that cannot be edited."""

        def answered(request: OpsRequest) -> Response:
            if edits and self._survey.store is None:
                return refused(
                    405, "not_allowed", "the map is in the pipeline file",
                    "sink.map: sqlite:///FILE can be edited here",
                )  # fmt: skip
            if denied := self._access.refusal_to_write(request):
                return denied
            if self._served.live is None:
                return refused(400, "not_ready", "another instance has the pipeline, or none yet")
            found = answer(request)
            log.info("the map was written to over HTTP", method=request.method, path=request.path)
            return found

        return _guarded(answered)

    def _rows(self, kind: Kind) -> Sequence[MapRow]:
        return self._survey.urls(self._status()) if kind == "url" else self._survey.rows.rows(kind)

    def _row(self, kind: Kind, id: int) -> MapRow:
        for row in self._rows(kind):
            if row["id"] == id:
                return row
        raise RefusedEdit(f"there is no {kind} {id}", "service", reason="not found")

    def _all(self, kind: Kind, request: OpsRequest) -> Response:
        return _listed(self._rows(kind), request)

    def _one(self, kind: Kind, request: OpsRequest) -> Response:
        return as_json(200, self._row(kind, _id(request)))

    def _add(self, kind: Kind, request: OpsRequest) -> Response:
        row = self._edited.add(kind, _values(request, _NEEDED[kind]))
        return as_json(200, self._row(kind, row["id"]))

    def _replace(self, kind: Kind, request: OpsRequest) -> Response:
        id = _id(request)
        self._row(kind, id)
        needed = [*_NEEDED[kind], *_NEEDED_ANEW.get(kind, ())]
        self._edited.change(kind, id, _values(request, needed))
        return as_json(200, self._row(kind, id))

    def _remove(self, kind: Kind, request: OpsRequest) -> Response:
        id = _id(request)
        self._edited.remove(kind, id)
        return as_json(200, {"id": id})

    def _map(self, request: OpsRequest, *, anew: bool = False) -> Response:
        tables = self._survey.tables(self._status(), anew=anew)
        return _listed([each.to_json() for each in tables], request)

    def _one_table(self, request: OpsRequest) -> Response:
        return as_json(200, self._table(_id(request)).to_json())

    def _table(self, id: int) -> SurveyedTable:
        for table in self._survey.tables(self._status()):
            if table.id == id:
                return table
        raise RefusedEdit(f"there is no table {id}", "service", reason="not found")

    def _create(self, request: OpsRequest) -> Response:
        table = self._table(_id(request))
        if not self._survey.create(table.mapped, self._there(table), has_sid=True):
            raise RefusedEdit(
                f"{table.mapped.full_target} is there already", "service", reason="duplicate"
            )
        return as_json(200, self._table(table.id).to_json())

    def _clone(self, request: OpsRequest) -> Response:
        """Maps a table, with options of the query and of the body. Its target is made if it is
        missing; then it is loaded by itself."""
        table, store = self._table(_id(request)), self._edited
        asked = {name: value for name, value in request.query.items() if value}
        given = {**_values(request), **asked}
        mapped, db = table.mapped, table.mapped.backend
        row = {
            **given,
            "db_id": table.db_id or 0,
            "schema": mapped.schema_name,
            "name": mapped.table,
        }
        store.verify("tbl", row)
        if table.row is not None:
            raise RefusedEdit(
                f"{mapped.source} is in the map already", "service", reason="duplicate"
            )
        if table.partitions and not given.get("partitions_regex"):
            raise RefusedEdit(
                f"{mapped.source} is partitioned",
                "service",
                hint="partitions_regex says which of its partitions go into the target",
                field="partitions_regex",
            )
        new = self._survey.mapped(db, {"partitions_regex": "", **row})
        sources = [each for each in self._rows("url") if each["db_name"] == db]
        self._survey.create(new, self._there(table), has_sid=len(sources) > 1)
        if table.db_id is None:  # a backend of the pipeline file
            row["db_id"] = store.add("db", {"name": db})["id"]
        store.add("tbl", row)
        return as_json(200, self._table(table.id).to_json())

    def _there(self, table: SurveyedTable) -> InventoriedTable:
        if table.there is None:
            raise RefusedEdit(f"no source that answers has {table.mapped.source}", "service")
        return table.there

    def _reload(self, request: OpsRequest) -> Response:
        table, sink = self._table(_id(request)), self._served.pipeline.sink.sink()
        if table.row is None:
            raise RefusedEdit(f"{table.mapped.source} is not in the map", "service")
        assert isinstance(sink, LoadsTables)
        sid = request.query.get("sid") or None
        names = sink.reload(table.mapped.source, sid, backend=table.mapped.backend)
        return as_json(200, {"reloaded": names})

    def _restart(self, _: OpsRequest) -> Response:
        names = [each.name for each in self._served.pipeline.backends]
        if self._served.live is not None:
            self._served.live.restart(names)
        return as_json(200, {"restarted": names})

    @property
    def _edited(self) -> MapStore:
        assert self._survey.store is not None
        return self._survey.store


def _guarded(answer: Callable[[OpsRequest], Response]) -> Callable[[OpsRequest], Response]:
    """Errors as responses."""

    def answered(request: OpsRequest) -> Response:
        try:
            return answer(request)
        except RefusedEdit as error:
            code = error.reason.replace(" ", "_")
            return refused(_STATUS.get(error.reason, 400), code, error.message, error.hint)
        except (SettingsError, Unavailable) as error:
            status = 503 if isinstance(error, Unavailable) else 400
            code = "unavailable" if isinstance(error, Unavailable) else "refused"
            return refused(status, code, error.message, error.hint)

    return answered


def _id(request: OpsRequest) -> int:
    text = request.ids["id"]
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS:
        raise RefusedEdit(f"{text[:40]!r} is no id", "service", field="id")
    return int(text)


def _values(request: OpsRequest, needed: Collection[str] = ()) -> Mapping[str, Any]:
    """The JSON object of the body, which has what is `needed`."""
    try:
        values = orjson.loads(request.body or b"{}")
    except orjson.JSONDecodeError:
        values = None
    if not isinstance(values, dict):
        raise RefusedEdit("the body is no JSON object", "service")
    if lacking := [name for name in needed if values.get(name) is None]:
        raise RefusedEdit(
            f"{', '.join(lacking)}: missing", "service", reason="missing", field=lacking[0]
        )
    return {name: value for name, value in values.items() if name not in _SHOWN}


def _listed(rows: Sequence[MapRow], request: OpsRequest) -> Response:
    """All rows; the query's `sort` is `["field","ASC"]`."""
    if wanted := request.query.get("sort"):
        try:
            field, direction = orjson.loads(wanted)
            is_down = {"asc": False, "desc": True}[direction.lower()]
        except (orjson.JSONDecodeError, ValueError, TypeError, KeyError, AttributeError):
            raise RefusedEdit('sort is ["field","ASC"] or ["field","DESC"]', "service") from None
        if rows and field not in rows[0]:
            raise RefusedEdit(f"there is no field {field} to sort by", "service")

        def key(row: MapRow) -> tuple[bool, Any]:
            value = row[field]
            return value is None, value if isinstance(value, int | float) else str(value)

        rows = sorted(rows, key=key, reverse=is_down)
    return as_json(200, rows, headers={"X-Total-Count": str(len(rows))})
