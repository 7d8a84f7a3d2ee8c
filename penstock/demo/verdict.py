"""The verdict: what the writer committed against what the consumer got. Pure.

Every committed change arrived exactly once, nothing else did, each key's changes came in order,
and the consumer's copy equals the tables row by row; or what differs, with examples.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.consumer.compare.same import differing
from penstock.demo.ledger import Key, Ledger, Written
from penstock.demo.replica import DemoReplica, Received
from penstock.model.position import Place

# A table's rows by key, as PostgreSQL answers.
TableRows = Mapping[Key, Mapping[str, Any]]

_EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`problems` is empty when all is well; one line each, the worst kinds first."""

    changes: int
    transactions: int
    rows: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is as it should be."""
        return not self.problems


def judge(ledger: Ledger, replica: DemoReplica, tables: Mapping[str, TableRows]) -> Verdict:
    """Compares everything with everything."""
    problems = [
        *_some("missing", _missing(ledger, replica.received)),
        *_some("never committed", _invented(ledger, replica.received)),
        *_some("more than once", _repeated(replica.received)),
        *_some("out of order", _disordered(replica.received)),
        *_some("impossible", replica.impossible),
        *_some("differs", _differences(tables, replica.tables)),
    ]
    return Verdict(
        changes=ledger.count,
        transactions=len(ledger.committed),
        rows=sum(len(rows) for rows in tables.values()),
        problems=tuple(problems),
    )


def _some(kind: str, found: Iterable[str]) -> list[str]:
    lines = list(found)
    if len(lines) > _EXAMPLES:
        more = f"{kind}: ... and {len(lines) - _EXAMPLES} more"
        return [*(f"{kind}: {line}" for line in lines[:_EXAMPLES]), more]
    return [f"{kind}: {line}" for line in lines]


def _by_transaction(received: Sequence[Received]) -> dict[str, list[Received]]:
    """Each event once, in the order of its place in the transaction."""
    grouped: dict[str, dict[str, Received]] = defaultdict(dict)
    for change in received:
        grouped[change.transaction].setdefault(change.event_id, change)
    return {
        name: sorted(events.values(), key=lambda change: change.place)
        for name, events in grouped.items()
    }


def _written(change: Received) -> Written:
    return Written(change.operation, change.table, change.keys[-1] if change.keys else ())


def _missing(ledger: Ledger, received: Sequence[Received]) -> list[str]:
    arrived = _by_transaction(received)
    problems = []
    for name, changes in ledger.committed.items():
        got = [_written(change) for change in arrived.get(name, ())]
        lost = Counter(changes) - Counter(got)
        problems += [f"{_shown(change)} of transaction {name}" for change in lost.elements()]
        if not lost and len(got) == len(changes) and got != list(changes):
            problems.append(f"transaction {name} has its changes in another order")
    return problems


def _invented(ledger: Ledger, received: Sequence[Received]) -> list[str]:
    problems = []
    for name, changes in _by_transaction(received).items():
        allowed = Counter(ledger.committed.get(name, ()))
        for change in changes:
            if allowed[_written(change)] > 0:
                allowed[_written(change)] -= 1
                continue
            why = "was rolled back" if name in ledger.rolled_back else "did not write it"
            problems.append(
                f"{change.event_id} {_shown(_written(change))}: transaction {name} {why}"
            )
    return problems


def _repeated(received: Sequence[Received]) -> list[str]:
    times = Counter(change.event_id for change in received)
    return [f"{event_id} is stored {count} times" for event_id, count in times.items() if count > 1]


def _disordered(received: Sequence[Received]) -> list[str]:
    """Changes that come after a later change of the same key; a TRUNCATE is of every key."""
    keys: dict[tuple[str, Key], Place] = {}
    tables: dict[str, Place] = {}
    truncates: dict[str, Place] = {}
    seen: set[str] = set()
    problems = []
    for change in received:
        if change.event_id in seen:
            continue
        seen.add(change.event_id)
        touched = [(change.table, key) for key in change.keys]
        earlier = [keys.get(key) for key in touched]
        earlier.append((truncates if touched else tables).get(change.table))
        if any(place is not None and place > change.place for place in earlier):
            problems.append(f"{change.event_id} {_shown(_written(change))} came too late")
        for key in touched:
            keys[key] = max(keys.get(key, change.place), change.place)
        tables[change.table] = max(tables.get(change.table, change.place), change.place)
        if not touched:
            truncates[change.table] = change.place
    return problems


def _differences(
    tables: Mapping[str, TableRows], copies: Mapping[str, Mapping[Key, Mapping[str, Any]]]
) -> list[str]:
    problems = []
    for table, rows in tables.items():
        copy = copies.get(table, {})
        problems += [f"{table} {key} is not in the copy" for key in rows if key not in copy]
        problems += [f"{table} {key} is only in the copy" for key in copy if key not in rows]
        for key, row in rows.items():
            if key in copy and (columns := differing(row, copy[key])):
                problems.append(f"{table} {key} in {', '.join(columns)}")
    return problems


def _shown(change: Written) -> str:
    key = ",".join(str(part) for part in change.key)
    return f"{change.operation} {change.table}({key})"
