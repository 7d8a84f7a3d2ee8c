"""Rows of a load into their target, a part in one transaction; what is refused is isolated."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import Any

from penstock.model.change import OnError
from penstock.model.errors import Rejected, Unavailable
from penstock.sinks import Part, Progress
from penstock.sinks.poison.faults import sift
from penstock.sinks.tables.database import TableDatabase
from penstock.sinks.tables.source_table import BeginAnew, SourceTable
from penstock.sinks.tables.table_map import LETTER
from penstock.tables.ledger import LedgerRow, LoadPart
from penstock.tables.lines import LineChange, SourceRelation
from penstock.tables.staged import StagedRows

_TOGETHER = 4 * 2**20  # bytes that are loaded again, in halves, where a row among them is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRows:
    """What the rows of a load are: of a relation at the point with this `cursor`, by the plan with
    this `identity`; where it `merges`, instead of those with their keys."""

    table: SourceTable
    row: LedgerRow
    staged: StagedRows
    relation: SourceRelation
    cursor: str
    identity: str
    merges: bool

    @property
    def source(self) -> str:
        """`schema.table` of the source: of a partition, where there are some."""
        return f"{self.relation.schema}.{self.relation.table}"


class TableRowWriter:
    """See `RowWriter`."""

    def __init__(
        self, connection: Any, database: TableDatabase, loaded: LoadedRows, on_error: OnError,
        progress: Progress,
    ) -> None:  # fmt: skip
        labels, self.prefix = loaded.staged.form(merges=loaded.merges)
        names, staged = loaded.relation.names, loaded.staged.relation.names
        of_labels = dict(zip(staged[len(staged) - len(names) :], names, strict=True))
        self.columns = [of_labels[label] for label in labels]
        self._connection, self._database, self._loaded = connection, database, loaded
        # A history is compared as a whole, and so are rows without a key.
        is_whole = loaded.table.mapped.periods is not None or not loaded.staged.key
        is_divided = not (loaded.merges and is_whole)
        self._isolates = on_error == "dead-letter" and is_divided
        self._progress = progress

    def write(self, part: Part, pieces: Iterable[bytes]) -> None:
        """See `RowWriter`. Raises BeginAnew where a row of another point may be in the way."""
        loaded = self._loaded
        mark = LoadPart(loaded.source, part[0], "", loaded.identity)
        letters: Counter[str] = Counter()
        with self._database.translated("loading rows"), self._connection.transaction():
            cursor = self._connection.cursor()
            ledger = self._database.ledger(cursor)
            # Another one that loads the same part waits here.
            if not ledger.mark(loaded.row.id, mark):
                raise Unavailable(f"the load of {loaded.source} was begun anew")
            rows = 0
            if not self._isolates:
                rows = self._load(cursor, pieces)
            rest = iter(pieces if self._isolates else ())
            for first in rest:
                taken: list[bytes] = []
                try:
                    rows += self._load(cursor, _taken(chain([first], rest), taken))
                except Rejected:
                    lines = b"".join(taken).splitlines(keepends=True)
                    _, refused = sift(lines, partial(self._load_lines, cursor))
                    letters += self._set_aside(cursor, refused)
                    rows += len(lines)
            ledger.count_rows(loaded.row.id, mark._replace(rows=rows))
        if letters:
            table = {**loaded.table.named, "letters": letters.total()}
            self._progress.report({"tables": [table], "dead_letters": dict(letters)})

    def _load_lines(self, cursor: Any, lines: Sequence[bytes]) -> tuple[()]:
        self._load(cursor, [b"".join(lines)])
        return ()

    def _load(self, cursor: Any, pieces: Iterable[bytes]) -> int:
        loaded = self._loaded
        try:
            with self._connection.transaction():
                return loaded.staged.load(cursor, pieces, merges=loaded.merges)
        except self._database.error as error:
            if loaded.row.last_point and self._database.is_conflict(error):
                raise BeginAnew from error
            raise self._database.translation(error, "loading rows") from error

    def _set_aside(
        self, cursor: Any, refused: Sequence[tuple[Sequence[bytes], Rejected]]
    ) -> Counter[str]:
        loaded, columns = self._loaded, dict.fromkeys(self.columns)
        relation = replace(
            loaded.relation,
            columns=tuple(each for each in loaded.relation.columns if each.name in columns),
        )
        letters = []
        for (line,), error in refused:
            # As COPY reads it: bytes of another encoding are escaped.
            text = line[len(self.prefix) : -1].decode(errors="backslashreplace")
            cells, digest = text.split("\t"), blake2b(line, digest_size=12).hexdigest()
            change = LineChange(
                "READ", "\t".join(cells[number] for number in relation.key), None, text,
                cursor=loaded.cursor, event_id=f"{loaded.table.loads}{digest}",
            )  # fmt: skip
            letters.append(loaded.table.letter(relation, change, error))
        texts = [(each.event_id, each.body(LETTER).decode()) for each in letters]
        self._database.ledger(cursor).keep_letters(texts)
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
