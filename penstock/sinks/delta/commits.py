"""Commits to a Delta table, and what the ledger has of them.

A commit of Delta and that of the ledger are two. A kill between them leaves a table with a commit
that the ledger lacks: its counter is higher then, and its place or part says what is there.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import uuid4

import orjson

from penstock.model.errors import PenstockError, SettingsError
from penstock.sinks.delta import lake
from penstock.sinks.delta.lake import DeltaCommit, DeltaLayout

_RELOAD = "`penstock reload` loads it anew"
_cleaned: dict[str, float] = {}  # by table: when it was last (monotonic)


@dataclass(frozen=True, slots=True)
class KnownCommit:
    """What the ledger has of the commits of a source: the counter of the last one, their writer,
    and what the table had before the ledger: parts of loads, and changes up to a place. A counter
    below 0: the table is loaded anew, and the next commit goes on with the counter that it has."""

    number: int = 0
    writer: str = ""
    parts: tuple[str, ...] = ()
    place: str = ""

    @classmethod
    def read(cls, ledger: Any, app: str) -> "KnownCommit":
        query = f"SELECT number, writer, parts, place FROM {ledger.own}delta WHERE app = %s"
        if not (found := ledger.run(query, [app]).fetchone()):
            return cls()
        number, writer, parts, place = found
        return cls(number, writer, tuple(orjson.loads(parts)), place)

    def write(self, ledger: Any, app: str) -> None:
        ledger.run(
            f"INSERT INTO {ledger.own}delta (app, number, writer, parts, place)"
            " VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT (app) DO UPDATE SET number = excluded.number,"
            " writer = excluded.writer, parts = excluded.parts, place = excluded.place",
            [app, self.number, self.writer, orjson.dumps(self.parts).decode(), self.place],
        )


def app_of(backend: str, source: str, table: str) -> str:
    """The name of the counter in a table's commits; `table` is `schema.table` of the source."""
    return f"penstock/{backend}/{source}/{table}"


class LedgerTable(NamedTuple):
    """What the ledger has of a table: before a commit, or to store after it (`size`: None if there
    was none)."""

    known: KnownCommit
    size: Mapping[str, Any] | None = None


class TableCommits:
    """Of one source (`app`, see `app_of`) to one table, `target` in the ledger that a cursor leads
    to."""

    def __init__(
        self, app: str, target: str, layout: DeltaLayout, ledger: Callable[[Any], Any]
    ) -> None:
        self._app, self._target, self._layout, self._ledger = app, target, layout, ledger

    def is_behind(self, cursor: Any, table: Any) -> bool:
        """Whether the ledger knows of commits, and not of the last one."""
        known = KnownCommit.read(self._ledger(cursor), self._app)
        return bool(known.number) and known.number != lake.number_of(table, self._app)

    @contextmanager
    def committing(
        self, cursor: Any, *, takes_over: bool = False
    ) -> Iterator[tuple[Any, KnownCommit]]:
        """For a load or a repair, which has `keep` called: see `opened`."""
        table, known = self.opened(self.before(cursor), takes_over=takes_over)
        with lake.translated("writing to", self._layout.uri):
            yield table, known

    def before(self, cursor: Any) -> LedgerTable:
        """What the ledger has of the table."""
        ledger = self._ledger(cursor)
        size = ledger.sizes(self._target).get(self._target, {})
        return LedgerTable(KnownCommit.read(ledger, self._app), size)

    def opened(self, before: LedgerTable, *, takes_over: bool = False) -> tuple[Any, KnownCommit]:
        """The table, and what is to be known of it: its counter, the writer, and up to which place
        it had changes before the ledger. Raises SettingsError for a table that was made as another,
        and, unless a load `takes_over`, where the last commit is another's, or the table lacks what
        the ledger has."""
        known, table = before.known, lake.open_table(self._layout)
        if table is None:
            raise SettingsError(
                f"there is no table at {self._layout.uri} any more", "delta.table-missing",
                hint=_RELOAD,
            )  # fmt: skip
        lake.verify_layout(table, self._layout)
        number, last = lake.number_of(table, self._app), None
        if known.number < 0:
            known = replace(known, parts=(), place="")
        elif number == known.number:
            if not takes_over:
                self._verify_kept(before, table)
        else:
            with lake.translated("reading", self._layout.uri):
                last = lake.last_commit(table, self._app)
            if not takes_over:
                self._verify(known, number, last)
            if last is not None and number > known.number:
                parts = (*known.parts, last.part) if last.part else known.parts
                known = replace(known, parts=parts, place=last.place or known.place)
        writer = known.writer or uuid4().hex
        if takes_over:
            known = replace(known, parts=(), place="")
        return table, replace(known, number=number, writer=writer)

    def next(self, known: KnownCommit, *, place: str = "", part: str = "") -> DeltaCommit:
        """The one after what is known: of changes up to a place, or of a part of a load."""
        return DeltaCommit(
            app=self._app, number=known.number + 1, writer=known.writer, place=place, part=part
        )

    def _verify_kept(self, before: LedgerTable, table: Any) -> None:
        if lake.was_restored(table, (before.size or {}).get("version", table.version())):
            raise self._went_back

    @property
    def _went_back(self) -> SettingsError:
        return SettingsError(
            f"the table at {self._layout.uri} has less than it had: it was restored, or made again",
            "delta.went-back", hint=_RELOAD,
        )  # fmt: skip

    def _verify(self, known: KnownCommit, number: int, last: DeltaCommit | None) -> None:
        if number < known.number:
            raise self._went_back
        if known.writer and (last is None or last.writer != known.writer):
            raise SettingsError(
                f"another pipeline writes {self._app} to the table at {self._layout.uri}",
                "delta.other-writer",
                hint="give backends of different pipelines different names; or, if that one has"
                f" ended, {_RELOAD}",
            )

    def after(self, table: Any, known: KnownCommit, commit: DeltaCommit) -> LedgerTable:
        """What the ledger is to have of the commit; and now and then the table is cleaned, which no
        commit of ours comes between."""
        if lake.number_of(table, self._app) != commit.number:
            return LedgerTable(known)  # there was nothing to change: delta-rs made no commit
        layout, now = self._layout, time.monotonic()
        if layout.clean and now - _cleaned.setdefault(layout.uri, now) >= layout.clean:
            _cleaned[layout.uri] = now
            with suppress(PenstockError):  # it is tried again the next time
                table = lake.clean(layout) or table
        size = lake.size_at(table, datetime.now(UTC))
        return LedgerTable(replace(known, number=commit.number), size)

    def keep(self, cursor: Any, found: LedgerTable, nulled: Collection[str]) -> None:
        """The ledger has what is known of the table, and which of its columns have nulls in place
        of values that do not fit."""
        ledger = self._ledger(cursor)
        found.known.write(ledger, self._app)
        if found.size is not None:
            was = ledger.sizes(self._target).get(self._target, {})
            every = {*nulled, *was.get("nulled", ())}
            more = {"nulled": sorted(every)} if every else {}
            ledger.keep_size(self._target, {**found.size, **more})
