"""Changes of tables that foreign keys tie: in the order of their source, and what they wait for."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from penstock.sinks.tables.source_table import SourceTable, Stretch
from penstock.tables.fold import EMPTYING
from penstock.tables.ledger import TargetLedger
from penstock.tables.lines import LineChange
from penstock.tables.references import References

Parts = Mapping[SourceTable, Sequence[Stretch]]


def in_turn(parts: Parts) -> Iterator[tuple[SourceTable, Stretch]]:
    """One table after the other."""
    return ((table, each) for table, some in parts.items() for each in some)


def halved(parts: Parts) -> Sequence[Parts]:
    """The same in two of whole transactions of the sources; one, where it is of one."""
    stretches = [each for some in parts.values() for each in some]
    cursors = sorted({one.cursor for each in stretches for one in each.changes})
    if len(cursors) < 2:
        return [parts]
    middle = cursors[len(cursors) // 2]
    halves: tuple[dict[SourceTable, list[Stretch]], ...] = ({}, {})
    for table, some in parts.items():
        for stretch in some:
            for half, part in zip(halves, stretch.parted(middle), strict=True):
                if part.changes:
                    half.setdefault(table, []).append(part)
    return halves


def passes(parts: Parts, references: References) -> Iterator[tuple[SourceTable, Stretch]]:
    """Changes in stretches that come out one after the other, if they did at the source.
    Neighbouring changes that only add rows, or only remove some, are put together by table: rows
    after those that they refer to, and away before these."""

    def kind(item: tuple[SourceTable, Stretch, LineChange]) -> tuple[bool, str]:
        table, stretch, one = item
        key = stretch.relation.key
        is_moved = one.operation == "UPDATE" and key != () and one.old_key(key) != one.key
        is_alone = is_moved or references.circle(table.target)
        return _removes(one), f"{table.id} {is_moved}" if is_alone else ""

    items = [(table, each, one) for table, some in parts.items() for each in some
             for one in each.changes]  # fmt: skip
    items.sort(key=lambda item: (item[2].cursor, item[2].ordinal))
    for (removes, _), same in groupby(items, key=kind):
        found: dict[SourceTable, list[tuple[Stretch, LineChange]]] = {}
        for table, stretch, one in same:
            found.setdefault(table, []).append((stretch, one))
        for table in sorted(found, key=lambda one: references.rank(one.target), reverse=removes):
            for relation, some in groupby(found[table], key=lambda pair: pair[0].relation):
                yield table, Stretch(relation, [one for _, one in some])


def may_take_along(parts: Parts, references: References) -> bool:
    """Whether a row that goes might take along one that had been given to another row before:
    which of the two was first is lost where they are put together."""
    changed = {
        table.target for table, some in parts.items() for each in some
        if any(one.operation == "UPDATE" for one in each.changes)
    }  # fmt: skip
    removed = {
        table.target for table, some in parts.items() for each in some
        if any(map(_removes, each.changes))
    }  # fmt: skip
    return any(child in changed and parent in removed for child, parent in references.cascading)


def may_depend(
    ledger: TargetLedger, references: References, table: SourceTable, change: LineChange
) -> bool:
    """Whether tables that are tied with this one have changes, or rows, to come that its change may
    depend on. Of two such tables one is first, so that they never wait for each other: changes of
    one source have an order; of others, those wait that refer to the other. Raises the driver's
    errors."""
    parents = references.parents(table.target)
    for other in ledger.unsettled(references.tied(table.target)):
        if (other.backend, other.sid) != (table.mapped.backend, table.sid):
            if other.target in parents:
                return True
        elif other.row.id != table.id and other.is_before(change):
            return True
    return False


def _removes(one: LineChange) -> bool:
    return one.operation == "DELETE" or one.operation in EMPTYING
