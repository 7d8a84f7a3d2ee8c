"""What becomes of a target when its source has other columns: a relation before, one now, and a
policy come to statements, or the table waits. Pure; sinks/postgres/test_drift.py has servers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from penstock.model.errors import SettingsError
from penstock.tables.drift import ColumnChanges, KnownColumns, SchemaChanges, widens
from penstock.tables.lines import CatalogColumn, RelationColumn, SourceCatalog, SourceRelation
from penstock.tables.staged import Destination

WAITS = "waits"  # an operator has to decide, or the table is loaded anew


def relation_of(
    text: str, *, file: str = "f", gone: tuple[int, ...] = (), **missing: str
) -> SourceRelation:
    """`1 id integer, 2 name text`: what the catalogue has of a table, and what a change is of;
    `missing`: what older rows have in a column."""
    columns = [each.split(maxsplit=2) for each in text.split(", ")]
    return SourceRelation(
        schema="public", table="items",
        columns=tuple(RelationColumn(name, kind, name == "id") for _, name, kind in columns),
        catalog=SourceCatalog(
            max(*(int(number) for number, *_ in columns), *gone), file,
            tuple(CatalogColumn(int(at), name, missing.get(name)) for at, name, _ in columns),
            gone,
        ),
    )  # fmt: skip


def compared(
    relation: SourceRelation, known: KnownColumns, target: Mapping[str, str], **options: Any
) -> tuple[KnownColumns, ColumnChanges]:
    given: dict[str, Any] = {
        "policy": "add", "wanted": None, "reserved": (), "is_shared": False, "is_trusted": False,
        "is_emptied": False, **options,
    }  # fmt: skip
    changes = ColumnChanges(
        relation=relation, known=known, types={each.name: each.type for each in relation.columns},
        destination=Destination(schema="public", table="items", columns=target), **given,
    )  # fmt: skip
    return changes.compare(), changes


BEFORE = relation_of("1 id integer, 2 name varchar(3)".replace("varchar", "character varying"))
TARGET = {each.name: each.type for each in BEFORE.columns}
ITEMS = "1 id integer, 2 name character varying(3)"


def altered(action: str) -> str:
    return f'ALTER TABLE "public"."items" {action}'


ADD_X = altered('ADD COLUMN "x" integer')
ADD_X_OF_5 = altered("""ADD COLUMN "x" integer DEFAULT '5'""")
NO_DEFAULT = altered('ALTER COLUMN "x" DROP DEFAULT')
TITLE = altered('RENAME COLUMN "name" TO "title"')
AS_TEXT = altered('ALTER COLUMN "name" TYPE text')

# What the source has now -> the statements by the policies `add`, and `ask`, and `ignore`; an
# operator who is asked is given those of `ask`.
OUTCOMES: dict[str, tuple[SourceRelation, list[str] | str, list[str] | str]] = {
    "the same": (relation_of(ITEMS), [], []),
    "a new column, null in old rows": (relation_of(f"{ITEMS}, 3 x integer"), [ADD_X], []),
    "a new column with a constant": (
        relation_of(f"{ITEMS}, 3 x integer", x="5"), [ADD_X_OF_5, NO_DEFAULT], [],
    ),
    "a new column, and all rows written anew": (
        relation_of(f"{ITEMS}, 3 x integer", file="g"), WAITS, [],
    ),
    "another name": (
        relation_of("1 id integer, 2 title character varying(3)"), [TITLE], [TITLE],
    ),
    "a wider type": (relation_of("1 id integer, 2 name text", file="g"), [AS_TEXT], []),
    "a type with other texts": (relation_of("1 id integer, 2 name date", file="g"), WAITS, WAITS),
    "dropped": (relation_of("1 id integer", gone=(2,)), [], []),
    "dropped, and made again": (
        relation_of("1 id integer, 3 name character varying(3)", gone=(2,)), WAITS, WAITS,
    ),
    "two new columns": (
        relation_of(f"{ITEMS}, 3 x integer, 4 y text"),
        [ADD_X, altered('ADD COLUMN "y" text')], [],
    ),
}  # fmt: skip


def outcome(relation: SourceRelation, policy: SchemaChanges, **options: Any) -> list[str] | str:
    known, _ = compared(BEFORE, KnownColumns(), TARGET)
    try:
        _, changes = compared(relation, known, TARGET, policy=policy, **options)
    except SettingsError:
        return WAITS
    return [each.as_string(None) for each in changes.statements]


@pytest.mark.parametrize("case", OUTCOMES)
@pytest.mark.parametrize("policy", ["add", "ask", "ignore"])
def test_a_source_that_has_other_columns_comes_to_statements_or_the_table_waits(
    policy: SchemaChanges, case: str
) -> None:
    relation, adds, ignores = OUTCOMES[case]
    assert outcome(relation, policy) == (ignores if policy == "ignore" else adds)


@pytest.mark.parametrize("case", [case for case, (_, adds, _) in OUTCOMES.items() if adds == WAITS])
def test_rows_that_are_loaded_anew_have_no_doubts(case: str) -> None:
    assert outcome(OUTCOMES[case][0], "add", is_trusted=True, is_emptied=True) != WAITS


def test_a_column_is_added_without_its_value_where_rows_of_others_are() -> None:
    known, _ = compared(BEFORE, KnownColumns(), TARGET)
    relation = relation_of(f"{ITEMS}, 3 x integer", x="5")
    _, changes = compared(relation, known, TARGET, is_shared=True)
    statements = [each.as_string(None) for each in changes.statements]
    assert (statements, changes.fills) == ([ADD_X], {"x": "5"})


def test_only_columns_that_are_wanted_are_added() -> None:
    known, _ = compared(BEFORE, KnownColumns(), TARGET, wanted=["id", "name"])
    relation = relation_of(f"{ITEMS}, 3 x integer")
    now, changes = compared(relation, known, TARGET, wanted=["id", "name"])
    assert (changes.statements, now.ignored) == ([], ())


def test_a_reserved_column_is_never_filled() -> None:
    now, _ = compared(BEFORE, KnownColumns(), TARGET, reserved=["name"])
    assert [(each.name, each.target) for each in now.columns] == [("id", "id"), ("name", None)]


def test_a_column_that_was_left_out_waits_once_the_target_has_it() -> None:
    known, _ = compared(relation_of(f"{ITEMS}, 3 x integer"), KnownColumns(), TARGET,
                        policy="ignore")  # fmt: skip
    assert known.ignored == ("x",)
    with pytest.raises(SettingsError, match="x was left out so far"):
        compared(relation_of(f"{ITEMS}, 3 x integer"), known, TARGET | {"x": "integer"},
                 policy="ignore")  # fmt: skip


def test_a_column_that_vanished_at_the_target_waits() -> None:
    known, _ = compared(BEFORE, KnownColumns(), TARGET)
    with pytest.raises(SettingsError, match="the target has no column name any more"):
        compared(BEFORE, known, {"id": "integer"})


def test_what_is_known_survives_the_ledger() -> None:
    known, _ = compared(BEFORE, KnownColumns(is_made=True), TARGET)
    assert KnownColumns.parse(known.to_json()) == known
    assert KnownColumns.parse("[]") == KnownColumns()
    renamed = known.renamed("name", "title")
    assert [each.target for each in renamed.columns] == ["id", "title"]
    assert renamed.labelled(BEFORE).names == ("id", "title")
    assert replace(renamed, columns=known.columns) == known


@pytest.mark.parametrize(
    ("old", "new", "does"),
    [
        ("smallint", "bigint", True),
        ("bigint", "integer", False),
        ("numeric(6,2)", "numeric(9,4)", True),
        ("numeric(6,2)", "numeric(6,4)", False),
        ("numeric(6,2)", "numeric", True),
        ("numeric", "numeric(6,2)", False),
        ("character varying(3)", "text", True),
        ("character varying(9)", "character varying(3)", False),
        ("text", "character varying", True),
        ("integer", "text", False),
        ("timestamp without time zone", "timestamp with time zone", False),
    ],
)
def test_a_type_has_all_values_of_another_with_their_texts(old: str, new: str, does: bool) -> None:
    assert widens(old, new) is does
