"""The demo's mirror: a replica in a SQLite file, which begins while the shop is open.

Some of its rows were there before the pipeline: they come from snapshots alone.
"""

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from penstock.consumer.compare.same import differing
from penstock.consumer.mirror.replica import Replica
from penstock.demo.ledger import Key
from penstock.demo.verdict import TableRows
from penstock.model.errors import PenstockError


class DemoMirror:
    """Of some tables, in `file`. `start`, and after the last change `finish`."""

    def __init__(self, url: str, file: Path, keys: Mapping[str, tuple[str, ...]]) -> None:
        self.file = file
        self.rows = 0
        self.error: PenstockError | None = None
        self._keys = keys
        self._replica = Replica(url, f"sqlite:///{file}", tables=list(keys))
        self._stopped, self._wanted = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)

    def start(self) -> None:
        """Asks for the snapshots, and follows."""
        self._thread.start()

    @property
    def is_loaded(self) -> bool:
        """Whether all rows that were there before are in it; or it has failed."""
        return self.error is not None or len(self._replica.copies) == len(self._keys)

    def finish(self, timeout: float) -> None:
        """Applies what is in the stream now, and stops."""
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join(timeout)
        self.stop()

    def stop(self) -> None:
        """Stops at once."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def problems(self, tables: Mapping[str, TableRows]) -> Iterator[str]:
        """How it differs from the tables as PostgreSQL answers them."""
        if self.error is not None:
            yield f"the mirror failed: {self.error}"
            return
        with closing(sqlite3.connect(self.file)) as connection:
            connection.row_factory = sqlite3.Row
            for table, columns in self._keys.items():
                copies = {
                    tuple(row[name] for name in columns): dict(row)
                    for row in connection.execute(f'SELECT * FROM "{table}"')
                }
                self.rows += len(copies)
                yield from _differences(table, tables[table], copies)

    def _run(self) -> None:
        try:
            with self._replica as replica:
                ended = lambda: self._stopped.is_set() or self._wanted.is_set()  # noqa: E731
                replica.run(is_stopped=ended)
                if not self._stopped.is_set():
                    replica.run(once=True, is_stopped=self._stopped.is_set)
        except PenstockError as error:
            self.error = error


def _differences(
    table: str, rows: TableRows, copies: Mapping[Key, Mapping[str, Any]]
) -> Iterator[str]:
    for key in rows.keys() ^ copies.keys():
        yield f"the mirror: {table} {key} is {'missing' if key in rows else 'too many'}"
    for key in rows.keys() & copies.keys():
        row = rows[key]
        copy = {name: _as_in_messages(row.get(name), value) for name, value in copies[key].items()}
        if columns := differing(row, copy):
            yield f"the mirror: {table} {key} in {', '.join(columns)}"


def _as_in_messages(value: Any, copy: Any) -> Any:
    """What SQLite has, in the form of messages; `value` says of which type it is."""
    if isinstance(value, bool) and copy in (0, 1):
        return bool(copy)
    if isinstance(value, (list, dict)) and isinstance(copy, str):
        return orjson.loads(copy)
    return copy
