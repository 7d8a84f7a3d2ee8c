"""The mapping of kuvasz-streamer, as YAML or SQLite, in the form that `penstock map` exports.

Its filters and values are CEL, and ours are SQL. They are not guessed: a table that has some is
left out, and told.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.model.errors import SettingsError
from penstock.process.sqlite_file import translated

_WHAT = "kuvasz-streamer's map"
# Key of a table there -> ours. `insert` is read there and used nowhere.
_KEYS = {"type": "type", "target": "target", "partitions_regex": "partitions"}
_CEL = ("filter", "set")


@dataclass(frozen=True, slots=True)
class KuvaszMap:
    """`entries`: what can be taken over, by database. `left`: (database, table, what is CEL)."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    left: list[tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)

    def add(self, name: str, urls: Sequence[Any], tables: Mapping[str, Any]) -> None:
        kept = {}
        for table, given in tables.items():
            options = _map(given or {}, f"{name}: {table}")
            if cel := {key: options[key] for key in _CEL if options.get(key)}:
                self.left.append((name, table, cel))
                continue
            others = {key: value for key, value in options.items() if key not in (*_CEL, "insert")}
            kept[table] = {_KEYS.get(key, key): value for key, value in others.items() if value}
        sources = [
            {"sid": each.get("sid"), "connection": each.get("url")}
            for each in (_map(each, f"{name}: urls") for each in urls)
        ]
        self.entries.append({"backend": name, "sources": sources, "tables": kept})


def is_kuvasz(document: Any) -> bool:
    """Whether parsed YAML is a map of kuvasz-streamer."""
    return isinstance(document, list) and any(
        isinstance(each, dict) and "database" in each for each in document
    )


def of_yaml(document: Sequence[Any]) -> KuvaszMap:
    """Its `map_file`. Raises SettingsError."""
    found = KuvaszMap()
    for each in document:
        entry = _map(each, "a database")
        name = str(entry.get("database"))
        found.add(name, entry.get("urls") or [], _map(entry.get("tables") or {}, f"{name}: tables"))
    return found


def of_sqlite(path: Path) -> KuvaszMap:
    """Its `map_database`, which is only read. Raises SettingsError, Unavailable."""
    found = KuvaszMap()
    with (
        translated(_WHAT, path),
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection,
    ):
        connection.row_factory = sqlite3.Row
        if connection.execute("PRAGMA user_version").fetchone()[0]:
            raise SettingsError(
                f"{path} is a map of penstock",
                "postgres",
                hint="`sink.map` may name it; or export it first",
            )
        for db in connection.execute("SELECT db_id, name FROM db ORDER BY db_id").fetchall():
            urls = connection.execute("SELECT sid, url FROM url WHERE db_id = ?", [db["db_id"]])
            tables = connection.execute("SELECT * FROM tbl WHERE db_id = ?", [db["db_id"]])
            found.add(db["name"], [dict(each) for each in urls], dict(_tables(tables)))
    return found


def _tables(rows: sqlite3.Cursor) -> Iterator[tuple[str, dict[str, Any]]]:
    for row in rows:
        yield f"{row['schema'] or 'public'}.{row['name']}", {name: row[name] for name in _KEYS}


def _map(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError(f"{_WHAT}: {where}: must be a map", "postgres")
    return value
