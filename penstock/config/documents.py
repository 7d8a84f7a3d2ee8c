"""Backends of documents whose tables a sink of tables has in its map. Pure."""

from collections.abc import Mapping
from typing import Any

from penstock.feeds.shared import DocumentSettings


def with_documents(backend: Any, sink: Any) -> tuple[Any, Any]:
    """The backend, which follows the tables of the map, and the sink's settings, whose map has
    their full names. Raises ValueError."""
    name, settings = f"backend {backend.name}", backend.settings
    if "sid_column" in sink.model_fields_set:
        raise ValueError(
            f"{name}: its documents change their partitions, and have no lasting sid: leave"
            " sink.sid_column out, and give each backend tables of its own"
        )
    entries = tuple(
        each.model_copy(update={"tables": _named(each.tables, settings, name)})
        if each.backend == backend.name else each
        for each in sink.map
    )  # fmt: skip
    sink = sink.model_copy(update={"map": entries})
    tables = sink.tables(backend.name)
    is_replaced = settings.on_gap == "resnapshot" and backend.feed().shares_tables
    for each in tables:
        if each.options.type == "history" or each.options.columns is not None:
            raise ValueError(
                f"map: {each.source} has documents, which are no `history` and have no `columns`:"
                " write clone or log, and a `schema` with the columns that are wanted"
            )
        if each.options.type == "log" and is_replaced:
            raise ValueError(
                f"map: {each.source} is a `log`, which a load after lost changes would replace:"
                f" write on_gap: fail or continue for the {name}"
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
