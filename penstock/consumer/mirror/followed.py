"""A live table of a replica: which changes of it are new, and what they do to its rows. Pure, but
for the encoders of the target.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Annotated, Any, Literal

import msgspec

from penstock.consumer.mirror.documents import is_renamed_to, row_change
from penstock.consumer.mirror.plan import TablePlan
from penstock.consumer.mirror.published_tables import Catalog
from penstock.consumer.mirror.steps import AlterColumns, ForgetLate, Step
from penstock.consumer.mirror.target import MirrorTarget
from penstock.consumer.mirror.target_table import TargetTable
from penstock.consumer.tail.bodies import is_json
from penstock.model.errors import PenstockError, SettingsError
from penstock.model.position import Place
from penstock.nats.compression import ENCODING
from penstock.nats.consumers import Delivered
from penstock.tables.difference import difference

# What becomes of columns that the source drops.
Dropped = Literal["drop", "keep"]
_REPLAYED = "Penstock-Replayed"  # a dead letter, after later changes
VERSION = "Penstock-Table-Schema"
POSITION = "Penstock-Position"
_OLDER = "a dead letter was replayed: its change is older than others"
# Lines of headers: the layout `penstock`, one that is compressed, a dead letter.
_LAYOUT, _ENCODED, _AGAIN = (
    b"\r\nPenstock-Schema: 1\r\n", f"\r\n{ENCODING}:".encode(), f"\r\n{_REPLAYED}:".encode(),
)  # fmt: skip
_MAP = b"\x80"  # what bodies of MessagePack begin with, or with more
# Of documents: streams of messages whose last places are kept. Shards of DynamoDB come and go.
_STREAMS = 4000
# Of tables with a key: subjects whose last places are kept, the latest. A writer that repeats more
# than these repeats all after them, too, which leads to the same rows.
_SUBJECTS = 500

EXPECTED = "backend", "schema", "collection", "relation_id", "schema_version"


class PlainChange(msgspec.Struct, gc=False):
    """A change as the layout `penstock` has it, of the table and the columns that are expected.
    `data`: a struct of the columns' values. Most changes are such, and maps for the change and its
    row take a third of a mirror's time."""

    operation: Literal["INSERT", "READ", "UPDATE", "REPLACE"]
    data: Any
    before: None
    unchanged: Annotated[tuple[Any, ...], msgspec.Meta(max_length=0)]
    position: str
    committed_at: Any


PlainDecoder = Callable[[bytes], PlainChange]


def plain_decoder(columns: Sequence[str], *expected: str | int | None) -> PlainDecoder:
    """What decodes plain changes with these columns, and these values of the fields `EXPECTED`;
    raises MsgspecError on any other."""
    values = [(f"column_{n}", Any, msgspec.field(name=name)) for n, name in enumerate(columns)]
    fields: list[Any] = [
        (name, Literal[value]) for name, value in zip(EXPECTED, expected, strict=True)
    ]
    fields.append(("data", msgspec.defstruct("Row", values, gc=False)))
    change = msgspec.defstruct("Change", fields, bases=(PlainChange,), gc=False)
    decode: Any = msgspec.msgpack.Decoder(change).decode
    return decode  # type: ignore[no-any-return]


class Followed:
    """Follows one table: `add` the messages of one transaction, then take its `work`. `catalog` has
    the versions of the table's schema. `problem`: why the rows can only be made right by a new
    snapshot; the table takes no changes from then on. `newer`: that snapshot, if it was taken
    already. `refusal`: the error, where the problem is one."""

    def __init__(
        self, table: TargetTable, target: MirrorTarget, catalog: Catalog, *, dropped: Dropped
    ) -> None:
        self.table = table
        self.problem = ""
        self.newer = ""
        self.refusal: PenstockError | None = None
        self.changes = 0  # that were added
        self._target, self._catalog, self._dropped = target, catalog, dropped
        # By subject, or stream of messages: the last change.
        self._places = {name: Place.parse(text) for name, text in table.places.items()}
        self._plan: TablePlan | None = None  # since the last columns
        self._work: list[tuple[TargetTable, Sequence[Step]]] = []  # before that
        self._names, self._has_documents = frozenset(table.names), table.has_documents
        self._decode: PlainDecoder | None = None  # of changes like the first plain one

    def plain(self, message: Delivered) -> Sequence[PlainChange]:
        """See `OwnBodies`."""
        decode, headers = self._decode, message.raw
        # For what is not there, `partition` takes half the time of `find`.
        if decode is None or headers.partition(_ENCODED)[1] or headers.partition(_AGAIN)[1]:
            return ()
        if headers.find(_LAYOUT) < 0:
            return ()
        try:
            return (decode(message.payload),)
        except msgspec.MsgspecError:
            return ()

    def put(self, message: Delivered, change: PlainChange) -> None:
        """Adds a change that `plain` returned, if it is not in the rows yet."""
        if self._is_new(message, change.position):
            (self._plan or self._planned()).put(msgspec.structs.astuple(change.data))
            self.changes += 1

    def add(self, message: Delivered, body: Mapping[str, Any]) -> bool:
        """Adds a change, if it is not in the rows yet. Returns whether later ones may be plain."""
        if _REPLAYED in message.headers and message.sequence > self.table.sequence:
            self.problem = self.problem or _OLDER
        if not self._is_new(message, body.get("position")):
            return False
        if body["operation"] == "SUSPEND":
            self.problem = "the pipeline suspended it, and changes are missing"
            return False
        table = self.table
        if table.document:
            change = self._row_change(body)
            if change is None:
                return False
            body = change
        elif (
            body.get("relation_id") != table.relation_id
            or body.get("schema_version") != table.version
        ) and not self._is_same(message, body):
            return False
        is_plain = self._planned().add(body)
        self.changes += 1
        if not is_plain or table.document or message.payload < _MAP:
            return False
        if self._decode is None:
            self._decode = plain_decoder(self.table.names, *map(body.get, EXPECTED))
        return True

    def _is_new(self, message: Delivered, position: str | None) -> bool:
        """Whether a change is not in the rows yet: then it is added."""
        table = self.table
        if message.sequence <= table.sequence or self.problem:
            return False
        if not position:
            raise SettingsError(
                f"message {message.sequence} has no position, which a replica needs",
                "consumer",
                hint="use another sink.layout: penstock, debezium or cloudevents",
            )
        place = Place.parse(position)
        stream = self._stream(message) if table.document else message.subject
        if place.cursor < table.cursor or place <= self._places.get(stream, _FIRST):
            return False
        if table.document:
            self._places.pop(stream, None)  # it is the last of them now
            if len(self._places) >= _STREAMS:
                del self._places[next(iter(self._places))]
        self._places[stream] = place
        if table.last_point and place.cursor >= table.last_point:
            self._settle()
        return True

    def _planned(self) -> TablePlan:
        if self._plan is None:
            restores, encoders = self.table.has_several_points, self._target.encoders(self.table)
            self._plan = TablePlan(self.table, encoders, restores=restores)
        return self._plan

    def may_have_documents(self, message: Delivered) -> bool:
        """Whether a column may be JSON, written as such: as far as the version is known."""
        headers, table = message.headers, self.table
        if not self._has_documents:
            is_other = headers.get(VERSION, table.version) != table.version
            if table.document or not is_other:
                return False
        return is_json(headers, message.payload)

    def _stream(self, message: Delivered) -> str:
        """Among which messages of documents places have an order: those of one partition."""
        partition = message.headers.get(POSITION, "").split(" ")[1:2]
        return " ".join([message.subject, *partition])

    def _row_change(self, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The change of a document as one of a row; None: of none, or the table has a problem."""
        if is_renamed_to(self.table, body):
            self.problem = "another collection was renamed to it"
            return None
        return row_change(self.table, body)

    def work(self) -> Sequence[tuple[TargetTable, Sequence[Step]]]:
        """The table, and the steps to there, for each of the columns that it had meanwhile."""
        if len(self._places) > 2 * _SUBJECTS and self.table.key and not self.table.document:
            latest = sorted(self._places.items(), key=itemgetter(1))[-_SUBJECTS:]
            self._places = dict(latest)
        places = {name: str(place) for name, place in self._places.items()}
        self.table = replace(self.table, places=places)
        if self.problem:
            self.table = replace(self.table, state="loading", snapshot_id="")
        self._flush()
        work, self._work = self._work, []
        if not work or work[-1][0] is not self.table:
            work.append((self.table, []))
        return work

    def refuse(self, error: PenstockError) -> None:
        """Nothing that was added since the last work is applied: it does not fit."""
        self.refusal, self.problem = error, str(error)
        self._plan, self._work = None, []

    def has(self, version: str) -> bool:
        """Whether this is or was a version of the table's schema."""
        return version == self.table.version or self._version(version) is not None

    def reached(self, sequence: int) -> None:
        """The target has it."""
        if sequence > self.table.sequence:
            self.table = replace(self.table, sequence=sequence)

    def saw(self, revision: int) -> None:
        """Its rows are right under this document, unless it has a problem."""
        self.table = replace(self.table, revision=revision)

    def _version(self, version: str) -> Mapping[str, Any] | None:
        return self._catalog.version(self.table.name, version)

    def _flush(self) -> None:
        if self._plan is not None:
            self._work.append((self.table, self._plan.steps()))
            self._plan = None

    def _settle(self) -> None:
        """All rows are of one point in the log from here on."""
        self._flush()
        steps = [ForgetLate()] if self.table.has_several_points else []
        self.table = replace(self.table, last_point="")
        self._work.append((self.table, steps))

    def _is_same(self, message: Delivered, body: Mapping[str, Any]) -> bool:
        """Whether the change has the columns that we know, or those that follow from them."""
        table = self.table
        identity = body.get("relation_id")
        if identity is not None and identity != table.relation_id:
            if table.relation_id is not None:
                self.problem = "it was dropped and made again"
                return False
            self.table, self._decode = replace(table, relation_id=identity), None
            table = self.table
        version = body.get("schema_version") or message.headers.get(VERSION)
        if version == table.version:
            return True
        # A version is of a name, too.
        called = body.get("schema") or table.schema, body.get("collection") or table.table
        if called != (table.schema, table.table):
            self.problem = "it was renamed"
            return False
        if version is None:  # the layout does not say it
            if not self._names.issuperset(body.get("data") or ()):
                self.problem = "it has other columns"
            return not self.problem
        was, found = self._version(table.version), self._version(version)
        if was is None or found is None:
            lacking = version if found is None else table.version
            self.problem = f"the bucket schemas does not have its version {lacking}"
            return False
        # Rows to be restored have the columns of the snapshot.
        self.problem = "its columns changed" if table.has_several_points else difference(was, found)
        if not self.problem:
            self._alter(table.with_schema(found))
        return not self.problem

    def _alter(self, new: TargetTable) -> None:
        """Columns that go, and new ones that are null in all rows, need no snapshot."""
        old = {column.name: column for column in self.table.columns}
        now = {column.name: column for column in new.columns}
        added = [column for column in new.columns if column.name not in old]
        gone = [column for name, column in old.items() if name not in now]
        kept = [column for column in self.table.kept if column.name not in now]
        back = {column.name for column in self.table.kept} & now.keys()
        drops = [column.name for column in gone] if self._dropped == "drop" else []
        self._flush()
        kept += gone if self._dropped == "keep" else []
        self.table = replace(new, kept=tuple(kept))
        if added or drops or back:
            self._work.append((self.table, [AlterColumns(added, [*back, *drops])]))
        self._names, self._has_documents = frozenset(self.table.names), new.has_documents
        self._decode = None


_FIRST = Place("", -1)
