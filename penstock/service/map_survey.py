"""What there is to map: each table of the sources, beside what the map makes of it.

The sources are asked for their tables, all at the same time, not more often than they change by
hand; the destination and the status each time.
"""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol, cast

from penstock.config import Pipeline
from penstock.config.map_store import Kind, MapRow, MapStore
from penstock.feeds import ListsTables
from penstock.model.errors import PenstockError, RefusedEdit
from penstock.model.settings import Secret
from penstock.ops.reports import TableStatus
from penstock.ops.status import Status
from penstock.process.postgres_url import masked
from penstock.service.live_map import LiveMap
from penstock.sinks.tables.fitness import taken
from penstock.sinks.tables.settings import MapEntry, MappedTable, TableOptions, TableSinkSettings
from penstock.tables.inventory import InventoriedTable, inventory
from penstock.tables.lines import SourceRelation

Inventory = Mapping[tuple[str, str], InventoriedTable]

_FRESH = 30.0  # seconds for which the sources' tables are known
_PATIENCE = 5.0  # seconds to connect to one
_THREADS = 32
_OPTIONS = {*TableOptions.model_fields} - {"partitions"}
# The first that a table is in, of any of its sources, is its state.
_STATES = ("waiting", "suspended", "resuming", "loading", "loaded")


@dataclass(frozen=True, slots=True)
class FileMap:
    """The rows of a map that is in the pipeline file."""

    pipeline: Pipeline

    def rows(self, kind: Kind) -> Sequence[MapRow]:
        """All of a kind, as a `MapStore` has them."""
        names = [each.name for each in self.pipeline.backends]
        if kind == "db":
            return [{"id": stable_id(name), "name": name} for name in names]
        if kind == "url":
            return [
                {
                    **_owner(name), "id": stable_id(name, each.partition), "sid": each.partition,
                    "url": masked(each.url.get_secret_value()),
                }
                for name, each in sources_of(self.pipeline)
            ]  # fmt: skip
        return [
            {
                **each.options.model_dump(mode="json", include=_OPTIONS), **_owner(each.backend),
                "id": stable_id(each.backend, each.source), "schema": each.schema_name,
                "name": each.table, "partitions_regex": each.options.partitions,
            }
            for each in settings_of(self.pipeline).tables()
        ]  # fmt: skip


def settings_of(pipeline: Pipeline) -> TableSinkSettings:
    return cast(TableSinkSettings, pipeline.sink.settings)  # of a sink that shows its map


def stable_id(*names: str) -> int:
    """Of what has no number of its own; JavaScript can read it."""
    return int.from_bytes(blake2b("\0".join(names).encode(), digest_size=6).digest())


def _owner(db: str) -> dict[str, Any]:
    return {"db_id": stable_id(db), "db_name": db}


def sources_of(pipeline: Pipeline) -> Sequence[tuple[str, ListsTables]]:
    """Each source, with its backend's name: also of backends that have no tables yet."""
    return [(each.name, one) for each in pipeline.known_backends for one in each.databases()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedTable:
    """A table of the sources of a backend; `there` is None where no source has it, and `mapped` is
    what it would be with the options of `row`, its row of the map, or with the defaults: also where
    there is a `problem` with the row."""

    db_id: int | None
    mapped: MappedTable
    row: MapRow | None
    there: InventoriedTable | None
    partitions: Sequence[str]
    target: InventoriedTable | None
    states: Sequence[TableStatus]
    problem: str

    @property
    def id(self) -> int:
        """The same for as long as the table has its name."""
        return stable_id(self.mapped.backend, self.mapped.source)

    def to_json(self) -> dict[str, Any]:
        row, mapped = self.row or {}, self.mapped
        options = mapped.options.model_dump(mode="json", include=_OPTIONS)
        known = {each.state for each in self.states} - {"left"}  # of the map, and is back
        state = next((one for one in _STATES if one in known), "live" if known else "starting")
        return {
            **options, "id": self.id, "tbl_id": row.get("id"), "db_id": self.db_id,
            "db_name": mapped.backend, "schema": mapped.schema_name, "name": mapped.table,
            "target": mapped.options.target or mapped.table,
            "partitions": self.partitions, "partitions_regex": mapped.options.partitions,
            "replicated": self.row is not None, "present": self.target is not None,
            "source_columns": self.there.shown() if self.there else {},
            "dest_columns": self.target.shown() if self.target else {},
            "state": None if self.row is None else "invalid" if self.problem else state,
            "error": self.problem,
            "sources": [each.to_json() for each in self.states],
        }  # fmt: skip


class Served(Protocol):
    """The service, as far as its map is concerned; `live` is None while it does not run."""

    pipeline: Pipeline
    live: LiveMap | None


class MapSurvey:
    """Asks the sources and the destination of a pipeline. Threads may share it."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.store = served.pipeline.map_store()
        self._lock = threading.Lock()
        self._at = float("-inf")
        self._found: dict[tuple[str, Secret], Inventory | PenstockError] = {}

    @property
    def rows(self) -> MapStore | FileMap:
        return self.store or FileMap(self._served.pipeline)

    @property
    def settings(self) -> TableSinkSettings:
        return settings_of(self._served.pipeline)

    def urls(self, status: Status) -> Sequence[MapRow]:
        """The rows of sources, each with whether it is up, and why it is not."""
        asked = {(name, each.partition): (name, each.url) for name, each in self._sources()}
        read = {
            (backend.name, each.partition): each
            for backend in status.backends for each in backend.partitions
        }  # fmt: skip
        found = []
        for row in self.rows.rows("url"):
            key = row["db_name"], row["sid"]
            one, answer = read.get(key), self._found.get(asked[key]) if key in asked else None
            error = str(answer) if isinstance(answer, PenstockError) else ""
            more = {
                "up": one.state == "reading" if one else answer is not None and not error,
                "status": one.state if one else "not followed",
                "error": (one.last_error if one else "") or error,
                "lag_seconds": one.lag_seconds if one else None,
            }
            found.append({**row, **more})
        return found

    def tables(self, status: Status, *, anew: bool = False) -> Sequence[SurveyedTable]:
        """All tables, in the order of their names. The sources are asked again if `anew`. Raises
        Unavailable, SettingsError where the destination does not answer."""
        there = self._ask(anew=anew)
        with self.settings.database().transaction("reading the catalogue") as cursor:
            targets = inventory(cursor)
        dbs = {row["name"]: row["id"] for row in self.rows.rows("db")}
        mapped: defaultdict[str, dict[tuple[str, str], MapRow]] = defaultdict(dict)
        for row in self.rows.rows("tbl"):
            mapped[row["db_name"]][row["schema"], row["name"]] = row
        states: defaultdict[tuple[str, str], list[TableStatus]] = defaultdict(list)
        for each in status.tables:
            states[each.backend, each.table].append(each)
        found = []
        for db in sorted({*dbs, *there}):
            tables, rows = there.get(db, {}), mapped[db]
            for key, partitions in sorted(_grouped(tables, rows).items()):
                valid, problem = self._valid(key, rows.get(key))
                table = self.mapped(db, valid)
                found.append(SurveyedTable(
                    db_id=dbs.get(db), mapped=table, row=rows.get(key), there=tables.get(key),
                    partitions=sorted(partitions), problem=problem,
                    target=targets.get((table.target_schema, table.target)),
                    states=states.get((db, table.source), ()),
                ))  # fmt: skip
        return found

    def create(self, mapped: MappedTable, there: InventoriedTable, *, has_sid: bool) -> bool:
        """Makes the target as the source's table is; False if it is there. Raises Unavailable,
        SettingsError."""
        relation = SourceRelation(schema=there.schema, table=there.name, columns=there.columns)
        database, name = self.settings.database(), (mapped.target_schema, mapped.target)
        with database.transaction(f"making {mapped.full_target}") as cursor:
            if database.find(cursor, *name) is not None:
                return False
            sid_column = mapped.sid_column if has_sid else mapped.made_sid
            for problem in taken(mapped, relation, [*relation.names, sid_column]):
                raise problem
            database.create(cursor, relation, name, periods=mapped.periods, sid_column=sid_column)
        return True

    def mapped(self, db: str, row: MapRow) -> MappedTable:
        """A table with the options of a row."""
        given = {name: row[name] for name in _OPTIONS if name in row}
        options = TableOptions.model_validate(given | {"partitions": row["partitions_regex"]})
        entry = MapEntry(backend=db, tables={f"{row['schema']}.{row['name']}": options})
        (table,) = self.settings.model_copy(update={"map": (entry,)}).tables()
        return table

    def _valid(self, key: tuple[str, str], row: MapRow | None) -> tuple[MapRow, str]:
        """The row of a table, and what is wrong with it; the defaults in its place, where there is
        none, or where another program's edit is wrong."""
        problem = ""
        try:
            if row is not None and self.store is not None:
                self.store.verify("tbl", row)
        except RefusedEdit as error:
            row, problem = None, error.message
        return row or {"schema": key[0], "name": key[1], "partitions_regex": ""}, problem

    def _sources(self) -> Sequence[tuple[str, ListsTables]]:
        return sources_of(self._served.pipeline.renewed())

    def _ask(self, *, anew: bool) -> Mapping[str, Inventory]:
        """The tables of each backend, each as the first source that answers has it."""
        sources = self._sources()
        with self._lock:
            if anew or time.monotonic() > self._at + _FRESH:
                self._found, self._at = {}, time.monotonic()
            asked = {(name, each.url): each for name, each in sources}
            if new := {key: each for key, each in asked.items() if key not in self._found}:
                with ThreadPoolExecutor(min(_THREADS, len(new)), "survey") as pool:
                    self._found |= zip(new, pool.map(_inventory, new.values()), strict=True)
            found: dict[str, dict[tuple[str, str], InventoriedTable]] = {}
            for name, each in sources:
                known = self._found[name, each.url]
                if not isinstance(known, PenstockError):
                    found[name] = {**known, **found.get(name, {})}
        return found


def _inventory(feed: ListsTables) -> Inventory | PenstockError:
    try:
        return feed.inventory(_PATIENCE)
    except PenstockError as error:
        return error


def _grouped(
    there: Inventory, mapped: Mapping[tuple[str, str], MapRow]
) -> Mapping[tuple[str, str], set[str]]:
    """The tables that are there, or are in the map, each with those that its pattern names."""
    patterns = []
    for (schema, name), row in mapped.items():
        with suppress(re.error):  # a problem of its row
            if row["partitions_regex"]:
                patterns.append((schema, name, re.compile(row["partitions_regex"])))
    found: dict[tuple[str, str], set[str]] = {key: set() for key in mapped}
    for key, table in there.items():
        schema, name = key
        owners = [
            (schema, owner) for within, owner, pattern in patterns
            if within == schema and pattern.fullmatch(name)
        ]  # fmt: skip
        if owners and key not in mapped:
            found[owners[0]].add(name)
        elif not table.is_partition:
            found.setdefault(key, set()).update(table.partitions or ())
    return found
