"""One call of `write`: changes go to the workers of their tables, whole transactions at a time."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.change import WHOLE, Passed, images_of, unreadable
from penstock.model.errors import Rejected, SettingsError, Unavailable
from penstock.model.position import PartitionId, Place
from penstock.process.backoff import delays
from penstock.sinks import KnowsBeginnings, Progress, Receipt, went_back
from penstock.sinks.poison.dead_letter import Letter, error_letter
from penstock.sinks.rows.intake import Order, Prefetch
from penstock.sinks.rows.part import place_of
from penstock.sinks.tables.commits import Chunk, Tracker, Work
from penstock.sinks.tables.set_aside import keep_letters
from penstock.sinks.tables.settings import TableSinkSettings
from penstock.sinks.tables.source_table import SourceTable
from penstock.sinks.tables.sources import StoredSources
from penstock.sinks.tables.table_map import TableMap
from penstock.sinks.tables.worker import Worker
from penstock.tables.lines import SourceRelation
from penstock.tables.references import References, TiesChanged
from penstock.wire.eras import history_mark

P = ParamSpec("P")
T = TypeVar("T")

_PART = 8000  # rows that are divided at once
_GATHERED = 2000  # and of a partition, for which it does not wait
# Seconds after which the rest of a transaction is not waited for: a page that ends exactly with the
# transaction's last change may not say so.
_PATIENCE = 5.0
_FIRST = ("backend", "cursor", "mark")
_LOOK = 0.05  # seconds between two looks at what was committed
_REPORT = 1.0  # seconds between two reports of the workers
_NOTE = 0.5  # seconds between two notes in the ledger of what is stored
_TIES = 30.0  # seconds between two looks at the foreign keys of targets
_DRAINED = 1.0  # seconds between two looks at whether all is committed, at the end


@dataclass(slots=True)
class _Batches:
    """Neighbouring batches of a partition, the first of which came at `since` (monotonic)."""

    since: float
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.rows += len(batch)

    def together(self) -> pa.RecordBatch:
        """One batch, which ends as the last one does."""
        if len(self.batches) == 1:
            return self.batches[0]
        metadata = self.batches[-1].schema.metadata
        whole = pa.Table.from_batches(
            [each.replace_schema_metadata(metadata) for each in self.batches]
        )
        return whole.combine_chunks().to_batches()[0]


class TableWrite:
    """One call of `write`; each batch is of one partition. `_relations`: of the partition's lines,
    by their table's number. `_gathered`: what is divided together, as what a small batch costs is
    not its rows; `_tails`: the last changes of a partition, whose transaction may go on."""

    def __init__(self, settings: TableSinkSettings, progress: Progress) -> None:
        self._settings, self._database = settings, settings.database()
        self._progress = progress
        self._workers = [Worker(settings, number) for number in range(settings.connections)]
        self._map = TableMap(settings)
        self._references: References | None = None  # None: not asked yet
        self._order, self._tracker = Order(_PART), Tracker()
        self._relations: dict[tuple[str, int], SourceRelation] = {}
        self._gathered: dict[PartitionId, _Batches] = {}
        self._tails: dict[PartitionId, _Batches] = {}
        self._sources = StoredSources(settings.database())
        self._marks: dict[PartitionId, str] = {}  # of which history the last changes are
        # Where more is in a mark, from which reading goes on: of the ends of what was handed over.
        self._ends: dict[PartitionId, dict[Place, str]] = {}
        # Up to where a partition has nothing for the sink after what was handed over.
        self._passed: dict[PartitionId, Place] = {}
        self._position: dict[PartitionId, Place] = {}
        self._unnoted: dict[PartitionId, Place] = {}  # of it: what the ledger does not have yet
        self._stored = self._known = self._size = 0
        self._reported_at = self._noted_at = self._asked_at = 0.0  # monotonic seconds

    def run(self, changes: Iterable[pa.RecordBatch]) -> Receipt:
        """Writes it all; see `Sink.write`."""
        try:
            with Prefetch(changes) as prefetch:
                while True:
                    try:
                        batches = prefetch.take(self._until())
                    except StopIteration:
                        break
                    now = time.monotonic()
                    for batch in batches:
                        if len(batch):
                            self._gather(batch, now)
                        elif (passed := Passed.of(batch)) is not None:
                            self._meet(
                                passed.backend, passed.partition, passed.place.cursor, passed.mark
                            )
                            self._passed[passed.partition] = passed.place
                    self._release(now)
                    self._report()
            self._release(float("inf"))
            while not all([worker.commits.drain(_DRAINED) for worker in self._workers]):  # noqa: C419
                self._report()
            self._report(at_once=True)
        except SettingsError:
            if self._retried(self._sources.are_gone):
                raise went_back("its ledger is gone") from None
            raise
        finally:
            for worker in self._workers:
                worker.commits.close()
            self._sources.close()
        return Receipt(
            position=self._position, published=self._stored, duplicates=self._known,
            size=self._size, numbers={"details": {"workers": len(self._workers)}},
        )  # fmt: skip

    def _until(self) -> float | None:
        """How long to wait for the source at most."""
        if self._gathered:
            due = min(each.since for each in self._gathered.values()) + self._settings.commit.wait
            return min(max(due - time.monotonic(), 0.0), _LOOK)
        if not self._tracker.is_idle or self._tails or self._unnoted or self._passed:
            return _LOOK
        return _REPORT if any(each.has_report for each in self._workers) else None

    def _gather(self, batch: pa.RecordBatch, now: float) -> None:
        """Batches wait for one another as long as their commit would."""
        if images_of(batch.schema) != "text":
            raise SettingsError(
                "a sink of tables takes rows as lines of COPY, and these are not",
                "tables",
                hint="use it in a pipeline file, without a transform, with a backend of type"
                " postgres",
            )
        partition = PartitionId(batch.column("partition")[0].as_py())
        backend, cursor, mark = (batch.column(name)[0].as_py() for name in _FIRST)
        self._meet(backend, partition, cursor, history_mark(mark or ""))
        self._passed.pop(partition, None)
        self._learn(partition, batch)
        gathered = self._gathered.setdefault(partition, _Batches(now))
        gathered.add(batch)
        if gathered.rows >= _GATHERED:
            self._take(partition)

    def _meet(self, backend: str, partition: PartitionId, cursor: str, mark: str) -> None:
        if (known := self._marks.get(partition)) != mark:
            began = None
            if known is None and isinstance(self._progress, KnowsBeginnings):
                began = self._progress.began(partition)
            self._retried(self._sources.meet, backend, partition, cursor, mark, began)
            self._marks[partition] = mark

    def _take(self, partition: PartitionId) -> None:
        """Divides what was gathered of a partition."""
        if (gathered := self._gathered.pop(partition, None)) is None:
            return
        batch = gathered.together()
        for part in self._order.arrange(batch):
            self._size += part.weight or 0
            self._divide(partition, part.batch, gathered.since)
        if batch.schema.metadata == WHOLE:
            self._flush(partition, is_whole=True)

    def _learn(self, partition: PartitionId, batch: pa.RecordBatch) -> None:
        """The first change of a relation in a page says what its lines are of."""
        documents = batch.column("delta")
        if documents.null_count == len(batch):
            return
        ids = batch.column("relation_id")
        for row in np.flatnonzero(np.asarray(documents.is_valid())).tolist():
            key, relation = (partition, ids[row].as_py() or 0), _relation(documents[row].as_py())
            if self._relations.get(key) != relation:
                self._take(partition)  # lines before it are of the relation before
                self._flush(partition)
                self._relations[key] = relation

    def _divide(self, partition: PartitionId, rows: pa.RecordBatch, now: float) -> None:
        """Hands over whole transactions; the last one waits for what may still come of it."""
        tail = self._tails.get(partition)
        cursors = rows.column("cursor")
        last = cursors[len(rows) - 1]
        if tail is not None and tail.batches[-1].column("cursor")[0] != cursors[0]:
            self._flush(partition, is_whole=True)
            tail = None
        first = pc.index(cursors, last).as_py()  # where its last transaction begins
        if first:
            whole = [*(tail.batches if tail else ()), rows.slice(0, first)]
            self._hand(partition, whole, tail.since if tail else now, is_whole=True)
            self._tails.pop(partition, None)
            tail = None
        if tail is None:
            tail = self._tails[partition] = _Batches(now)
        tail.add(rows.slice(first))
        if tail.rows >= self._settings.commit.rows:
            self._flush(partition)

    def _release(self, now: float) -> None:
        """Hands over what has waited, and transactions whose end comes without a change."""
        for partition, gathered in list(self._gathered.items()):
            if now - gathered.since >= self._settings.commit.wait:
                self._take(partition)
        for partition, tail in list(self._tails.items()):
            if now - tail.since >= _PATIENCE:
                self._flush(partition)
        for partition in self._passed.keys() - self._gathered.keys() - self._tails.keys():
            self._tracker.open(partition, self._passed.pop(partition), ())

    def _flush(self, partition: PartitionId, *, is_whole: bool = False) -> None:
        if (tail := self._tails.pop(partition, None)) is not None:
            self._hand(partition, tail.batches, tail.since, is_whole=is_whole)

    def _hand(
        self, partition: PartitionId, batches: Sequence[pa.RecordBatch], since: float, *,
        is_whole: bool,
    ) -> None:  # fmt: skip
        """Gives changes, in their order, to the workers of their tables."""
        references = self._ties()
        last = batches[-1]
        goes_on = "" if is_whole else last.column("cursor")[0].as_py()
        works: dict[int, list[Chunk]] = {}
        for batch in batches:
            for chunk in self._chunks(partition, batch):
                number = chunk.table.worker(len(self._workers), references)
                works.setdefault(number, []).append(chunk)
        place, mark = place_of(last, len(last) - 1), last.column("mark")[len(last) - 1].as_py()
        pending = self._tracker.open(partition, place, works)
        if mark and mark != history_mark(mark):
            self._ends.setdefault(partition, {})[place] = mark
        for number, chunks in works.items():
            rows = sum(len(chunk.batch) for chunk in chunks)
            self._worker(number).commits.add(Work(chunks, rows, since, pending, partition, goes_on))

    def _ties(self) -> References:
        """The foreign keys between targets. Raises TiesChanged."""
        known, now = self._references, time.monotonic()
        if known is None or now - self._asked_at >= _TIES:
            self._references = found = self._retried(self._ask_references)
            self._asked_at = now
            if known not in (None, found):
                raise TiesChanged("foreign keys of the targets have changed", "tables")
            for worker in self._workers:
                worker.references = found
            return found
        return known

    def _ask_references(self) -> References:
        targets = {each.full_target for each in self._settings.tables()}
        with self._database.transaction("reading foreign keys") as cursor:
            return self._database.references(cursor).among(targets)

    def _worker(self, number: int) -> Worker:
        worker = self._workers[number]
        if worker.commits.failure is not None:
            raise worker.commits.failure
        return worker

    def _chunks(self, partition: PartitionId, batch: pa.RecordBatch) -> Iterator[Chunk]:
        """Changes by table, in order, in stretches of a relation: a row may change partitions."""
        batch = self._without_unreadable(batch)
        ids = np.asarray(batch.column("relation_id").fill_null(0))  # null: a message of the source
        numbers, firsts, which = np.unique(ids, return_index=True, return_inverse=True)
        relations: dict[int, SourceRelation] = {}
        found: dict[SourceTable, list[int]] = {}
        for at, (number, row) in enumerate(zip(numbers.tolist(), firsts.tolist(), strict=True)):
            backend, schema, name = (
                batch.column(each)[row].as_py() for each in ("backend", "namespace", "collection")
            )
            table = self._retried(self._map.find, backend, partition, schema, name)
            if table is not None:
                relation = self._relations[partition, number]
                if table.mapped.options.partitions:
                    name = table.mapped.table
                    relation = replace(relation, table=name, version="", catalog=None)
                relations[at] = relation
                found.setdefault(table, []).append(at)
        for table, own in found.items():
            rows: np.ndarray[Any, Any] = np.flatnonzero(np.isin(which, own))
            for some in np.split(rows, np.flatnonzero(np.diff(which[rows])) + 1):
                chunk = batch if len(some) == len(batch) else batch.take(pa.array(some))
                yield Chunk(table, relations[int(which[some[0]])], chunk)

    def _without_unreadable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not (rows := unreadable(batch)):
            return batch
        found = batch.take(pa.array(rows, pa.int64())).to_pylist()
        letters = [error_letter(values, "json") for values in found]
        if self._settings.on_error == "stop":
            first = letters[0]
            raise Rejected(
                f"the change at {first.position} of {first.partition} cannot be read:"
                f" {first.error}", "tables", hint="on_error: dead-letter sets such a change aside",
            )  # fmt: skip
        self._retried(self._keep, letters)
        self._progress.report({"dead_letters": dict(Counter(each.reason for each in letters))})
        return batch.take(pa.array(sorted(set(range(len(batch))) - set(rows)), pa.int64()))

    def _keep(self, letters: Sequence[Letter]) -> None:
        with self._database.transaction("storing dead letters") as cursor:
            ledger = self._database.ledger(cursor)
            ledger.make()
            keep_letters(ledger, letters)

    def _retried(self, step: Callable[P, T], *values: P.args, **named: P.kwargs) -> T:
        """Does a step that asks the destination, until it answers."""
        waits = delays(first=0.2)
        while True:
            try:
                return step(*values, **named)
            except Unavailable as error:
                self._progress.report({"connected": False, "error": str(error)})
                time.sleep(next(waits))

    def _mark_at(self, partition: PartitionId, place: Place) -> str:
        """Of the last of the ends up to a place; "" where there is none."""
        ends, found = self._ends.get(partition, {}), ""
        for end in [each for each in ends if each <= place]:
            found = ends.pop(end)
        return found

    def _report(self, *, at_once: bool = False) -> None:
        """Reports what is durable; how the workers fare, now and then."""
        for number in range(len(self._workers)):
            self._worker(number)
        now = time.monotonic()
        self._unnoted |= self._tracker.stored()
        if self._unnoted and (at_once or now - self._noted_at >= _NOTE):
            position, self._unnoted = self._unnoted, {}
            counted = {
                id: count for each in self._workers for id, count in each.take_commits().items()
            }
            marks = {sid: self._mark_at(sid, place) for sid, place in position.items()}
            self._retried(self._sources.note, position, counted, marks)
            self._position |= position
            self._progress.stored(position)
            self._noted_at = now
        if not at_once and now - self._reported_at < _REPORT:
            return
        self._reported_at = now
        done = {str(number): each.take_report() for number, each in enumerate(self._workers)}
        tables = [(table, one) for each in done.values() for table, one in each.tables.items()]
        error = next((each.error for each in done.values() if each.error), "")
        self._stored += sum(each.stored for each in done.values())
        self._known += sum(each.known for each in done.values())
        commits = {name: each.commits for name, each in done.items() if each.commits}
        if commits or error:
            self._progress.report({
                "published": self._stored, "duplicates": self._known, "size": self._size,
                "connected": not error, "error": error,
                "dead_letters": dict(sum((one.letters for _, one in tables), Counter())),
                "commits": commits,
                "commit_seconds": {name: each.seconds for name, each in done.items()},
                "tables": [one.described(table) for table, one in tables],
            })  # fmt: skip


@lru_cache(1024)
def _relation(document: str) -> SourceRelation:
    """Of a page's document: pages of a table mostly have the same."""
    return SourceRelation.of(orjson.loads(document))
