"""What the consumer got, and the verdict: what the writer committed against that. Pure.

Every committed change arrived exactly once, nothing else did, each key's changes came in order,
and the consumer's copy equals the tables row by row; or what differs, with examples.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.consumer.compare import Fold, differing
from penstock.consumer.tail.reader import Message
from penstock.demo.workload import Key, Ledger, Written
from penstock.model.position import Place

TableRows = Mapping[Key, Mapping[str, Any]]  # by key, as the source answers

_EXAMPLES = 5


class Received(NamedTuple):
    """One change: as the writer enters it, and the keys that it touched, the new one last."""

    event_id: str
    place: Place
    transaction: str
    written: Written
    keys: tuple[Key, ...]


class DemoReplica:
    """A consumer's copy of the tables, made of the messages alone. `keys` are each table's key
    columns. Applies each change once, by its event id, and records contradictions: an INSERT of a
    row that exists, an UPDATE of a row that does not, an old row that differs from the copy."""

    def __init__(self, keys: Mapping[str, tuple[str, ...]]) -> None:
        self._folds = {table: _fold(columns) for table, columns in keys.items()}
        self.received: dict[str, Received] = {}  # event id -> what came first, in order
        self.repeated: Counter[str] = Counter()  # event id -> how often it came again
        self.impossible: list[str] = []

    @property
    def tables(self) -> Mapping[str, Mapping[Key, Mapping[str, Any]]]:
        return {table: fold.rows for table, fold in self._folds.items()}

    @property
    def count(self) -> int:
        """Distinct changes so far."""
        return len(self.received)

    def apply(self, message: Message) -> None:
        event, body = message.event_id, message.body
        operation, table = message.operation, message.collection
        if (fold := self._folds.get(table)) is None:
            self.impossible.append(f"{event}: nobody wrote to a table {table!r}")
            return
        if event in self.received:
            self.repeated[event] += 1
            return
        keys = fold.keys(body)
        written = Written(operation, table, keys[-1] if keys else ())
        transaction = body.get("transaction") or written.alone
        self.received[event] = Received(event, message.place, transaction, written, keys)
        if problem := _impossible(operation, keys, fold.apply(body), body):
            self.impossible.append(f"{event} {operation} {table}: {problem}")


def _fold(columns: tuple[str, ...]) -> Fold[Key]:
    def key(change: Mapping[str, Any]) -> Key:
        # From the row where there is one: the key of a document has its values in another form.
        rows = (change["data"], change["before"], change["key"])
        row = next(row for row in rows if row and all(name in row for name in columns))
        return tuple(row[name] for name in columns)

    return Fold(key)


def _impossible(
    operation: str,
    keys: tuple[Key, ...],
    rows: Mapping[Key, Mapping[str, Any] | None],
    body: Mapping[str, Any],
) -> str:
    """What contradicts the copy; `rows` are those that were there before."""
    if operation == "TRUNCATE":
        return ""
    if operation not in ("INSERT", "UPDATE", "REPLACE", "DELETE"):
        return "nobody did that"
    old = rows[keys[0]]
    if operation == "INSERT":
        return "" if old is None else f"{keys[0]} is there already"
    if old is None:
        return f"{keys[0]} is not there"
    if missing := [name for name in body["unchanged"] if name not in old]:
        return f"{keys[0]} never had {', '.join(missing)}"
    before = body.get("before") or {}
    wrong = [name for name, value in before.items() if name not in old or old[name] != value]
    return f"the old {', '.join(wrong)} is not what it was" if wrong else ""


def judge(ledger: Ledger, replica: DemoReplica, tables: Mapping[str, TableRows]) -> list[str]:
    """Compares everything with everything: what is wrong, one line each, the worst kinds first."""
    received = list(replica.received.values())
    arrived = _by_transaction(received)
    found = {
        "missing": _missing(ledger, arrived),
        "never committed": _invented(ledger, arrived),
        "more than once": [
            f"{event} is stored {again + 1} times" for event, again in replica.repeated.items()
        ],
        "out of order": _disordered(received),
        "impossible": replica.impossible,
        "differs": [
            problem
            for table, rows in tables.items()
            for problem in differences(table, rows, replica.tables.get(table, {}))
        ],
    }
    problems = []
    for kind, each in found.items():
        lines = list(each)
        problems += [f"{kind}: {line}" for line in lines[:_EXAMPLES]]
        if len(lines) > _EXAMPLES:
            problems.append(f"{kind}: ... and {len(lines) - _EXAMPLES} more")
    return problems


def differences(
    table: str,
    rows: TableRows,
    copies: TableRows,
    words: tuple[str, str] = ("is not in the copy", "is only in the copy"),
) -> Iterator[str]:
    """How copies differ from rows; `words`: for a row that is missing, and one too many."""
    for only, others, problem in ((rows, copies, words[0]), (copies, rows, words[1])):
        yield from (f"{table} {key} {problem}" for key in only if key not in others)
    for key, row in rows.items():
        if key in copies and (columns := differing(row, copies[key])):
            yield f"{table} {key} in {', '.join(columns)}"


def _by_transaction(received: Sequence[Received]) -> dict[str, list[Received]]:
    """In the order of their places."""
    grouped: dict[str, list[Received]] = defaultdict(list)
    for change in sorted(received, key=lambda change: change.place):
        grouped[change.transaction].append(change)
    return grouped


def _missing(ledger: Ledger, arrived: Mapping[str, list[Received]]) -> Iterator[str]:
    for name, changes in ledger.committed.items():
        got = [change.written for change in arrived.get(name, ())]
        lost = Counter(changes) - Counter(got)
        yield from (f"{change} of transaction {name}" for change in lost.elements())
        if not lost and len(got) == len(changes) and got != list(changes):
            yield f"transaction {name} has its changes in another order"


def _invented(ledger: Ledger, arrived: Mapping[str, list[Received]]) -> Iterator[str]:
    for name, changes in arrived.items():
        allowed = Counter(ledger.committed.get(name, ()))
        why = "was rolled back" if name in ledger.rolled_back else "did not write it"
        for change in changes:
            if allowed[change.written] > 0:
                allowed[change.written] -= 1
            else:
                yield f"{change.event_id} {change.written}: transaction {name} {why}"


def _disordered(received: Sequence[Received]) -> Iterator[str]:
    """Changes that come after a later change of the same key; a TRUNCATE is of every key."""
    keys: dict[tuple[str, Key], Place] = {}
    tables: dict[str, Place] = {}
    truncates: dict[str, Place] = {}
    for change in received:
        table = change.written.table
        touched = [(table, key) for key in change.keys]
        earlier = [keys.get(key) for key in touched]
        earlier.append((truncates if touched else tables).get(table))
        if any(place is not None and place > change.place for place in earlier):
            yield f"{change.event_id} {change.written} came too late"
        for key in touched:
            keys[key] = max(keys.get(key, change.place), change.place)
        tables[table] = max(tables.get(table, change.place), change.place)
        if not touched:
            truncates[table] = change.place
