"""What the ledger has of each source beside its tables: how far its changes were reported as
stored, and of which history they are.

It is in the ledger before anybody hears of it, so what is saved, and acknowledged at the source, is
never beyond it: a destination that went back (a backup, a standby that lacked something, a file
that was put back) has less.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import orjson

from penstock.model.position import Mark, PartitionId, Place, Position
from penstock.sinks import went_back
from penstock.tables.database import HeldConnection, TableDatabase
from penstock.tables.ledger import TargetLedger
from penstock.tables.ledger_rows import SourceRecord
from penstock.wire.eras import is_comparable


class StoredSources(HeldConnection):
    """The sources of one write: what is known of each, which no other instance makes less. Used by
    one thread, over a connection of its own. Methods raise Unavailable, SettingsError."""

    def __init__(self, database: TableDatabase) -> None:
        super().__init__(database)
        self._known: dict[PartitionId, tuple[str, SourceRecord]] = {}  # with their backends

    def meet(
        self, backend: str, sid: PartitionId, cursor: str, mark: str, began: Place | None
    ) -> None:
        """Changes from this one on come next, of the history of the mark. Where their places do
        not compare with those in the ledger, all tables are loaded anew. Raises LeaseLost where it
        has less than everything up to where they `began`."""
        with self._ledger("reading what is stored") as ledger:
            ledger.make()
            known = self._verified(backend, sid, ledger.sources(backend)) or SourceRecord()
            if began is not None and not _reaches(known, began):
                raise went_back(f"it had the changes of {backend}/{sid} up to {began}")
            tables = [each for each in ledger.tables((backend, sid)) if each.row.is_followed]
            places = [known.place, *(each.row.place for each in tables)]
            last = max((place.cursor for place in places if place is not None), default="")
            if last and not is_comparable(last, mark_of(known.mark), cursor, mark_of(mark)):
                known = SourceRecord()
                for row in ledger.lock(each.row.id for each in tables).values():
                    ledger.load_anew(row, is_comparable=False)
            if not mark_of(mark).items() <= mark_of(known.mark).items():
                known = known._replace(mark=mark)
            ledger.keep_source(backend, sid, known)
        self._known[sid] = backend, known

    def note(
        self, position: Position, commits: Mapping[int, int], marks: Mapping[PartitionId, str]
    ) -> None:
        """Of each of these sources everything up to the place is stored, by so many `commits` of
        each table; `marks` are those of the changes there, where they say more than the place.
        Raises LeaseLost where the ledger has less than it had."""
        with self._ledger("noting what is stored") as ledger:
            counted = ledger.commits(commits)
            if any(counted.get(id, 0) < count for id, count in commits.items()):
                raise went_back("the ledger had commits that it lacks")
            found = {
                backend: ledger.sources(backend)
                for backend in {self._known[sid][0] for sid in position}
            }
            noted = {}
            for sid, place in position.items():
                backend, known = self._known[sid]
                now = self._verified(backend, sid, found[backend]) or known
                new = known._replace(place=place, mark=marks.get(sid) or known.mark)
                noted[sid] = now if _reaches(now, place) else new
                ledger.keep_source(backend, sid, noted[sid])
        self._known |= {sid: (self._known[sid][0], record) for sid, record in noted.items()}

    def _verified(
        self, backend: str, sid: PartitionId, found: Mapping[str, SourceRecord]
    ) -> SourceRecord | None:
        """What the ledger has of a source, which is not less than it had. Raises LeaseLost."""
        now, (_, known) = found.get(sid), self._known.get(sid, ("", SourceRecord()))
        if sid in self._known and (
            now is None or (known.place is not None and not _reaches(now, known.place))
        ):
            raise went_back(f"it had the changes of {backend}/{sid} up to {known.place}")
        return now

    def are_gone(self) -> bool:
        """Whether the ledger was there, and is not any more, or was made anew meanwhile."""
        with self._ledger("looking for the ledger") as ledger:
            is_there = ledger.is_there("source")
            return any(
                not is_there or sid not in ledger.sources(backend)
                for sid, (backend, _) in self._known.items()
            )

    @contextmanager
    def _ledger(self, doing: str) -> Iterator[TargetLedger]:
        with self.transaction(doing) as cursor:
            yield self._database.ledger(cursor)


def mark_of(text: str) -> Mark:
    return orjson.loads(text) if text else {}


def _reaches(record: SourceRecord, place: Place) -> bool:
    return record.place is not None and record.place >= place
