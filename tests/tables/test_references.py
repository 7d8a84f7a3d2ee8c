"""Which tables foreign keys tie, and in which order they come."""

import pytest

from penstock.tables.references import References

# a line refers to its order and its product, an order to its customer; staff and teams to each
# other; a note to itself.
SHOP = References(
    frozenset({
        ("line", "order"), ("order", "customer"), ("line", "product"), ("staff", "team"),
        ("team", "staff"), ("task", "staff"), ("note", "note"),
    })
)  # fmt: skip


def test_tables_are_tied_across_others() -> None:
    assert SHOP.tied("customer") == {"customer", "order", "line", "product"}
    assert SHOP.tied("note") == {"note"}
    assert SHOP.tied("alone") == {"alone"}


def test_ties_of_other_tables_do_not_count() -> None:
    assert SHOP.among(["customer", "alone"]).pairs == {
        ("line", "order"), ("order", "customer"), ("line", "product"),
    }  # fmt: skip
    assert SHOP.among(["alone"]) == References()


def test_each_comes_after_those_that_it_refers_to() -> None:
    order = sorted(["line", "customer", "order", "product"], key=SHOP.rank)
    assert order == ["customer", "product", "order", "line"]
    assert sorted(["task", "team", "staff"], key=SHOP.rank) == ["staff", "team", "task"]


@pytest.mark.parametrize(
    ("table", "parents", "children"),
    [
        ("line", {"order", "customer", "product"}, set()),
        ("customer", set(), {"order", "line"}),
        ("staff", set(), {"team", "task"}),
        ("task", {"staff", "team"}, set()),
        ("note", set(), set()),
        ("alone", set(), set()),
    ],
)
def test_in_a_circle_none_is_first(table: str, parents: set[str], children: set[str]) -> None:
    assert (SHOP.parents(table), SHOP.children(table)) == (parents, children)
    assert bool(SHOP.circle(table)) == (table in ("staff", "team"))


def test_a_deferred_key_opens_a_circle() -> None:
    for late, first in (("staff", "team"), ("team", "staff")):
        opened = References(SHOP.pairs, deferred=frozenset({(late, first)}))
        assert sorted(["task", "team", "staff"], key=opened.rank) == [late, first, "task"]
