"""Changes of tables that foreign keys tie, in the order in which they come out."""

from penstock.sinks.tables.settings import MappedTable, TableOptions
from penstock.sinks.tables.source_table import SourceTable, Stretch
from penstock.sinks.tables.tied import halved, may_take_along, passes
from penstock.tables.lines import LineChange, RelationColumn, SourceRelation
from penstock.tables.references import References

COLUMNS = RelationColumn("id", "integer", is_key=True), RelationColumn("p", "integer")


def table(name: str, number: int) -> SourceTable:
    mapped = MappedTable(
        backend="shop", schema_name="public", table=name, target_schema="public", target=name,
        options=TableOptions(),
    )  # fmt: skip
    return SourceTable(mapped, "eu", number)


CHILD, PARENT = table("child", 1), table("parent", 2)
TIE = ("public.child", "public.parent")
CASCADES = References(frozenset({TIE}), frozenset({TIE}))
CIRCLE = References(frozenset({TIE, TIE[::-1]}))


def parts(*texts: str) -> dict[SourceTable, list[Stretch]]:
    """Changes as `child INSERT 1`, in this order, of one transaction; `;` begins another."""
    found: dict[SourceTable, list[LineChange]] = {}
    cursor = 1
    for ordinal, text in enumerate(texts):
        if text == ";":
            cursor += 1
            continue
        name, operation, key, *old = text.split(" ")
        change = LineChange(
            operation, key, None, f"{key}\t1", cursor=f"{cursor:08X}", ordinal=ordinal,
            old=old[0] if old else None,
        )  # fmt: skip
        found.setdefault(CHILD if name == "child" else PARENT, []).append(change)
    relation = SourceRelation(schema="public", table="t", columns=COLUMNS)
    return {each: [Stretch(relation, changes)] for each, changes in found.items()}


def shown(given: dict[SourceTable, list[Stretch]], references: References) -> list[str]:
    return [
        " ".join([each.mapped.table, *[f"{one.operation[0]}{one.key}" for one in stretch.changes]])
        for each, stretch in passes(given, references)
    ]


def test_rows_come_after_those_that_they_refer_to_and_go_before_these() -> None:
    given = parts(
        "child INSERT 1", "parent INSERT 1", "child INSERT 2", "parent DELETE 3", "child DELETE 4",
        "parent UPDATE 1",
    )  # fmt: skip
    assert shown(given, CASCADES) == [
        "parent I1", "child I1 I2", "child D4", "parent D3", "parent U1",
    ]  # fmt: skip


def test_another_key_is_given_by_itself() -> None:
    given = parts("parent INSERT 1", "parent UPDATE 2 1", "child UPDATE 5", "child INSERT 6")
    assert shown(given, CASCADES) == ["parent I1", "parent U2", "child U5 I6"]


def test_in_a_circle_the_order_is_that_of_the_source() -> None:
    given = parts("parent INSERT 1", "child INSERT 1", "parent UPDATE 1")
    assert shown(given, CIRCLE) == ["parent I1", "child I1", "parent U1"]


def test_changes_are_halved_between_transactions() -> None:
    given = parts("parent INSERT 1", ";", "child INSERT 1", ";", "parent INSERT 2")
    first, second = halved(given)
    assert [each.mapped.table for each in first] == ["parent"]
    assert {each.mapped.table for each in second} == {"parent", "child"}
    (alone,) = halved(first)
    assert alone == first


def test_a_row_that_goes_may_take_one_along_that_was_given_to_another() -> None:
    both = parts("child UPDATE 1", "parent DELETE 1")
    assert may_take_along(both, CASCADES)
    assert not may_take_along(both, References(frozenset({TIE})))
    assert not may_take_along(parts("child INSERT 1", "parent DELETE 1"), CASCADES)
