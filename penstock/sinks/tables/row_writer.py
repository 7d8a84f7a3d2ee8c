"""Rows of a load into their target, a part in one transaction; what is refused is isolated."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import chain
from tempfile import SpooledTemporaryFile
from typing import Any

from penstock.model.change import OnError
from penstock.model.errors import Rejected, Unavailable
from penstock.sinks import Progress
from penstock.sinks.loading import Part
from penstock.sinks.tables.set_aside import keep_letters
from penstock.sinks.tables.source_table import BeginAnew, SourceTable
from penstock.tables.database import TableDatabase
from penstock.tables.ledger import TargetLedger
from penstock.tables.ledger_rows import LedgerRow, LoadPart
from penstock.tables.lines import LineChange, SourceRelation
from penstock.tables.references import Dangling
from penstock.tables.sift import sift
from penstock.tables.sqlstates import Recurring
from penstock.tables.staged import StagedRows

_TOGETHER = 4 * 2**20  # bytes that are loaded again, in halves, where a row among them is refused
_IN_MEMORY = 64 * 2**20  # bytes of gathered rows


@dataclass(kw_only=True)
class TableRowWriter:
    """See `RowWriter`. Rows of a relation at the point with this `cursor`, by the plan with this
    `identity`; where it `merges`, instead of those with their keys. `row`: of the ledger. Where the
    target `refers` to others, or itself, rows that are not to be there yet are held. What the
    server fails at is of the rows where it `recurs`."""

    connection: Any
    database: TableDatabase
    table: SourceTable
    row: LedgerRow
    staged: StagedRows
    relation: SourceRelation
    cursor: str
    identity: str
    merges: bool
    on_error: OnError
    progress: Progress
    refers: bool = False
    recurs: bool = False

    @cached_property
    def _form(self) -> tuple[Sequence[str], bytes]:
        return self.staged.form(merges=self.merges)

    @property
    def prefix(self) -> bytes:
        return self._form[1]

    @property
    def columns(self) -> Sequence[str]:
        """See `RowWriter`: as the source calls them."""
        names, staged = self.relation.names, self.staged.relation.names
        of_labels = dict(zip(staged[len(staged) - len(names) :], names, strict=True))
        return [of_labels[label] for label in self._form[0]]

    def write(self, part: Part, pieces: Iterable[bytes]) -> None:
        """See `RowWriter`. Raises BeginAnew where a row of another point may be in the way."""
        source = f"{self.relation.schema}.{self.relation.table}"
        mark = LoadPart(source, part[0], "", self.identity)
        # A history is compared as a whole, and so are rows without a key.
        is_whole = self.table.mapped.periods is not None or not self.staged.key
        # Of two rows with one key in one statement the later one replaces the other.
        isolates = (self.merges or self.refers or self.on_error == "dead-letter") and not (
            self.merges and is_whole
        )
        letters: Counter[str] = Counter()
        early: list[LineChange] = []
        is_cut = isolates or self.database.gathers_in is not None
        with (
            self._gathered(pieces) as gathered,
            self.database.translated("loading rows"),
            self.connection.transaction(),
        ):
            cursor = self.connection.cursor()
            ledger = self.database.ledger(cursor)
            # Another one that loads the same part waits here.
            if not ledger.mark(self.row.id, mark):
                raise Unavailable(f"the load of {source} was begun anew", "tables")
            key = f"{source}/{part[0]}/{self.identity}"
            with self.staged.loading(cursor, key, self.cursor, merges=self.merges):
                rows = 0
                if not is_cut:
                    rows = self._load(cursor, gathered)
                rest = iter(gathered if is_cut else ())
                for first in rest:
                    taken: list[bytes] = []
                    try:
                        rows += self._load(cursor, _taken(chain([first], rest), taken))
                    except Rejected:
                        if not isolates:
                            raise
                        lines = b"".join(taken).splitlines(keepends=True)
                        _, refused = sift(lines, partial(self._load_lines, cursor))
                        if len(refused) == len(lines) and refused[0][1].code == "tables.recurring":
                            raise refused[0][1] from None  # no row came through: it is of none
                        letters += self._set_aside(ledger, refused, early)
                        rows += len(lines)
            if early:
                ledger.hold_rows(self.row.id, self._relation, early)
            ledger.count_rows(self.row.id, mark._replace(rows=rows))
        if letters:
            table = {**self.table.named, "letters": letters.total()}
            self.progress.report({"tables": [table], "dead_letters": dict(letters)})

    @contextmanager
    def _gathered(self, pieces: Iterable[bytes]) -> Iterator[Iterable[bytes]]:
        """The pieces; where the database gathers them, all are there."""
        if (folder := self.database.gathers_in) is None:
            yield pieces
            return
        with SpooledTemporaryFile(_IN_MEMORY, dir=str(folder)) as file:
            for piece in pieces:  # `writelines` would have all in memory first
                file.write(piece)
            file.seek(0)
            yield iter(lambda: b"".join(file.readlines(_TOGETHER)), b"")

    def _load_lines(self, cursor: Any, lines: Sequence[bytes]) -> tuple[()]:
        self._load(cursor, [b"".join(lines)])
        return ()

    def _load(self, cursor: Any, pieces: Iterable[bytes]) -> int:
        try:
            with self.connection.transaction():
                rows = self.staged.load(cursor, pieces, merges=self.merges)
                self.database.check_deferred(cursor)
                return rows
        except self.database.error as error:
            if self.row.last_point and self.database.is_conflict(error):
                raise BeginAnew from error
            found = self.database.translation(error, "loading rows")
            if self.recurs and isinstance(found, Recurring):
                found = found.of_changes
            raise found from error

    @cached_property
    def _relation(self) -> SourceRelation:
        """What its lines are of."""
        columns = {*self.columns}
        return replace(
            self.relation,
            columns=tuple(each for each in self.relation.columns if each.name in columns),
        )

    def _set_aside(
        self, ledger: TargetLedger, refused: Sequence[tuple[Sequence[bytes], Rejected]],
        early: list[LineChange],
    ) -> Counter[str]:  # fmt: skip
        """Stores the rows as dead letters, but those that are `early`."""
        relation, letters = self._relation, []
        for (line,), error in refused:
            # As COPY reads it: bytes of another encoding are escaped.
            text = line[len(self.prefix) : -1].decode(errors="backslashreplace")
            cells, digest = text.split("\t"), blake2b(line, digest_size=12).hexdigest()
            change = LineChange(
                "READ", "\t".join(cells[number] for number in relation.key), None, text,
                cursor=self.cursor, event_id=f"{self.table.loads}{digest}",
            )  # fmt: skip
            if self.refers and isinstance(error, Dangling):
                early.append(change)
            elif self.on_error != "dead-letter":
                raise error from None
            else:
                letters.append(self.table.letter(relation, change, error))
            ledger.letters.refuse(self.row.id, change.keys(relation.key))
        keep_letters(ledger, letters)
        return Counter(each.reason for each in letters)


def _taken(pieces: Iterable[bytes], taken: list[bytes]) -> Iterator[bytes]:
    """Some of the pieces, which are kept in `taken`."""
    size = 0
    for piece in pieces:
        taken.append(piece)
        yield piece
        size += len(piece)
        if size >= _TOGETHER:
            return
