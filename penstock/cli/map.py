"""`penstock map`: the map of tables that is in a file of its own: in, out, and at a glance."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml
from pydantic import Field, ValidationError

from penstock.cli.options import file_argument, json_option, print_json, print_list, say
from penstock.config import load_pipeline
from penstock.config.kuvasz import KuvaszMap, is_kuvasz, of_sqlite, of_yaml
from penstock.config.map_store import Kind, MapStore
from penstock.model.errors import RefusedEdit, SettingsError
from penstock.model.problems import dotted, problems_of, refuse
from penstock.model.settings import Settings
from penstock.process.postgres_url import masked
from penstock.sinks.tables.settings import MapEntry, TableOptions

_HEAD = ("id", "backend", "sources", "table", "type", "target", "options")
# What tells the rows of a kind apart.
_KEYS: Mapping[Kind, Sequence[str]] = {
    "db": ("name",), "url": ("db_id", "sid"), "tbl": ("db_id", "schema", "name"),
}  # fmt: skip
_SQLITE = b"SQLite format 3\0"


class _Source(Settings):
    sid: str
    connection: str


class _Entry(MapEntry):
    """A backend with its sources and tables, as a pipeline file has both."""

    sources: tuple[_Source, ...] = Field(())


class _Entries(Settings):
    map: tuple[_Entry, ...]


@click.command("map")
@file_argument
@click.argument("action", type=click.Choice(["list", "export", "import"]), default="list")
@click.argument("source", required=False, type=click.Path(exists=True, dir_okay=False))
@json_option("JSON: a list of tables, the same as YAML has, or what was imported.")
@click.option(
    "--with-passwords", is_flag=True, help="`export`: show passwords; otherwise they are ***."
)
def command(
    *, file: Path, action: str, source: str | None, as_json: bool, with_passwords: bool
) -> None:
    """Show and fill the map of tables of the pipeline in FILE, whose `sink.map` is sqlite:///PATH.

    \b
    penstock map FILE                  the tables, their sources and options
    penstock map FILE export           everything as YAML, for `import`
    penstock map FILE import SOURCE    add or change the entries of SOURCE

    SOURCE is what `export` wrote, or a map of kuvasz-streamer, as YAML or SQLite. The command
    imports all entries or none, except tables whose `filter` or `set` is CEL: it lists them, and
    exits with 1. A pipeline that runs follows at once.
    """
    if (source is None) == (action == "import"):
        raise click.UsageError("import takes what to import, and nothing else does")
    pipeline = load_pipeline(file)
    if (store := pipeline.map_store()) is None:
        raise SettingsError(
            f"the map of {pipeline.name} is in {file} itself",
            "cli",
            hint="`sink.map: sqlite:///PATH` keeps it in a file that may be edited at any time",
        )
    for problem in pipeline.map_problems:
        click.echo(f"left out: {problem}", err=True)
    with store:
        if source is not None:
            _import(store, Path(source), as_json=as_json)
        elif action == "export":
            _export(store, with_passwords=with_passwords, as_json=as_json)
        else:
            _list(store, as_json=as_json)


def _list(store: MapStore, *, as_json: bool) -> None:
    rows = list(_rows(store))
    cells = [
        [str(row["id"]), row["backend"], ", ".join(row["sids"]) or "-", row["table"], row["type"],
         row["target"] or "-", " ".join(row["options"]) or "-"]
        for row in rows
    ]  # fmt: skip
    print_list(rows, as_json=as_json, none="no tables", head=_HEAD, cells=cells)


def _export(store: MapStore, *, with_passwords: bool, as_json: bool) -> None:
    content = store.content()
    entries: dict[str, dict[str, Any]] = {
        str(db["name"]): {"backend": db["name"]} for db in store.rows("db")
    }
    for backend in content.backends:
        entries[backend["name"]]["sources"] = [
            each | ({} if with_passwords else {"connection": masked(each["connection"])})
            for each in backend["sources"]
        ]
    for entry in content.entries:
        entries[entry.backend]["tables"] = {
            name.removeprefix("public."): options.model_dump(mode="json", exclude_defaults=True)
            or None
            for name, options in entry.tables.items()
        }
    found = [*entries.values()]
    text = yaml.safe_dump(found, sort_keys=False, allow_unicode=True)
    say(found, text.removesuffix("\n"), as_json=as_json)


def _import(store: MapStore, source: Path, *, as_json: bool) -> None:
    found = _read(source)
    entries = _validated(found.entries, source)
    with store.together():
        filling = _Filling(store)
        for entry in entries:
            filling.put(entry)
    counts = {
        "backends": len(entries), "sources": sum(len(each.sources) for each in entries),
        "tables": sum(len(each.tables) for each in entries),
    }  # fmt: skip
    left = [
        {"backend": backend, "table": table, "cel": dict(cel)} for backend, table, cel in found.left
    ]
    if as_json:
        print_json({**counts, "left": left})
    else:
        click.echo(
            "{backends} backends, {sources} sources and {tables} tables are in the map".format(
                **counts
            )
        )
        for each in left:
            where = f"{each['backend']}: {each['table']}"
            click.echo(f"{where} is not imported: write as SQL, by hand", err=True)
            click.echo(yaml.safe_dump(each["cel"], sort_keys=False), err=True, nl=False)
    if found.left:
        raise SystemExit(1)


def _read(source: Path) -> KuvaszMap:
    with source.open("rb") as file:
        if file.read(len(_SQLITE)) == _SQLITE:
            return of_sqlite(source)
    try:
        document = yaml.safe_load(source.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source.name}:{mark.line + 1}" if mark is not None else source.name
        raise SettingsError(f"{where}: not valid YAML", "cli") from error
    return of_yaml(document) if is_kuvasz(document) else KuvaszMap(document)


def _validated(entries: Any, source: Path) -> Sequence[_Entry]:
    try:
        return _Entries.model_validate({"map": entries}).map
    except ValidationError as error:
        raise refuse([
            f"{source.name}: {dotted(problem.path[1:])}: {problem.text}"
            for problem in problems_of(error, _Entries)
        ]) from None  # fmt: skip


class _Filling:
    """Adds entries, or changes what is there."""

    def __init__(self, store: MapStore) -> None:
        self._store = store
        self._ids = {
            (kind, *(row[name] for name in names)): int(row["id"])
            for kind, names in _KEYS.items()
            for row in store.rows(kind)
        }

    def put(self, entry: _Entry) -> None:
        """Raises SettingsError, with the place."""
        db = self._put(entry.backend, "db", {"name": entry.backend}, {})
        for each in entry.sources:
            where = f"{entry.backend}: source {each.sid}"
            self._put(where, "url", {"db_id": db, "sid": each.sid}, {"url": each.connection})
        for name, options in entry.tables.items():
            before, dot, after = name.partition(".")
            schema, table = (before, after) if dot else ("public", name)
            values = options.model_dump(mode="json")
            values["partitions_regex"] = values.pop("partitions")
            key = {"db_id": db, "schema": schema, "name": table}
            self._put(f"{entry.backend}: {name}", "tbl", key, values)

    def _put(
        self, where: str, kind: Kind, key: Mapping[str, Any], values: Mapping[str, Any]
    ) -> int:
        id = self._ids.get((kind, *(key[name] for name in _KEYS[kind])))
        try:
            if id is None:
                return int(self._store.add(kind, {**key, **values})["id"])
            self._store.change(kind, id, values)
        except RefusedEdit as error:
            raise SettingsError(f"{where}: {error.message}", error.code, hint=error.hint) from None
        return id


def _rows(store: MapStore) -> Iterator[dict[str, Any]]:
    sids: dict[int, list[str]] = {}
    for url in store.rows("url"):
        sids.setdefault(url["db_id"], []).append(url["sid"])
    shown = {"id", "db_id", "db_name", "schema", "name", "type", "target"}
    default = TableOptions().model_dump(mode="json") | {"partitions_regex": ""}
    for table in store.rows("tbl"):
        yield {
            "id": table["id"], "backend": table["db_name"], "sids": sids.get(table["db_id"], []),
            "table": f"{table['schema']}.{table['name']}",
            "type": table["type"], "target": table["target"],
            "options": {
                name: value for name, value in table.items()
                if name not in shown and value != default.get(name)
            },
        }  # fmt: skip
