"""Backends of documents whose tables a sink of tables has in its map. Pure."""

from collections.abc import Mapping
from typing import Any

from penstock.feeds.shared import DocumentSettings
from penstock.model.errors import SettingsError


def with_documents(backend: Any, sink: Any, *, is_loaded: bool) -> tuple[Any, Any]:
    """The backend, which follows the tables of the map, and the sink's settings, whose map has
    their full names. `is_loaded`: whether rows of before come into tables. Raises ValueError."""
    name, settings = f"backend {backend.name}", backend.settings
    if "sid_column" in sink.model_fields_set:
        raise ValueError(
            f"{name}: its documents change their partitions, and have no lasting sid: leave"
            " sink.sid_column out, and give each backend tables of its own"
        )
    if is_loaded and not settings.gives_lines:
        raise ValueError(
            f"{name}: what was there before its changes cannot be loaded into tables: set"
            " snapshot.initial to false, and begin where its changes have all that is wanted"
        )
    entries = tuple(
        each.model_copy(update={"tables": _named(each.tables, settings, name)})
        if each.backend == backend.name else each
        for each in sink.map
    )  # fmt: skip
    sink = sink.model_copy(update={"map": entries})
    tables = sink.tables(backend.name)
    for each in tables:
        if each.options.type == "history" or each.options.columns is not None:
            raise ValueError(
                f"map: {each.source} has documents, which are no `history` and have no `columns`:"
                " write clone or log, and a `schema` with the columns that are wanted"
            )
    if not tables:
        raise ValueError(f"{name} has no tables in sink.map")
    try:
        found = settings.following([(each.schema_name, each.table) for each in tables])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return backend.model_copy(update={"settings": found}), sink


def refuse_schema(backend: Any, sink: Any) -> None:
    """Raises ValueError for a `schema` of a table that has columns of its own."""
    for each in sink.tables(backend.name):
        if getattr(each.options, "schema", ""):
            raise ValueError(
                f"map: {each.source} has a `schema`, which is for documents: leave it out, as the"
                " table has columns of its own"
            )


def _named(tables: Mapping[str, Any], settings: DocumentSettings, name: str) -> dict[str, Any]:
    """The tables of a map by their full names."""
    prefix, found = f"{settings.namespace}.", dict[str, Any]()
    for table, options in tables.items():
        if prefix == "." and "." not in table:
            raise ValueError(f"map: write {table} of the {name} as DATABASE.COLLECTION")
        whole = table if prefix == "." or table.startswith(prefix) else prefix + table
        if whole in found:
            raise ValueError(f"map: {whole} of the {name} is there twice")
        found[whole] = options
    return found


def refuse_reload(pipeline: Any, table: str, backend: str | None = None) -> None:
    """Raises SettingsError where the rows of a table (`table` or `schema.table`) cannot be read
    again: it would wait for them for ever."""
    for each in pipeline.backends:
        if getattr(each.settings, "gives_lines", True) or backend not in (None, each.name):
            continue
        for one in pipeline.sink.settings.tables(each.name):
            if table in (one.table, f"{one.schema_name}.{one.table}"):
                raise SettingsError(
                    f"{one.source} of the backend {each.name} cannot be loaded: only its changes"
                    " are followed",
                    "snapshots.no-lines",
                    hint="a pipeline with another name and location can begin where the changes"
                    " have all that is wanted: see `start` of the backend",
                )
