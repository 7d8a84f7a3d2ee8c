"""A condition from a request stays inside of the parentheses that are written around it."""

import pytest

from penstock.feeds.postgres.cutting import blaming, checked_condition
from penstock.feeds.postgres.failures import failure
from penstock.model.errors import SettingsError, Unavailable


@pytest.mark.parametrize(
    "where",
    [
        "", "id < 3", "a = 'it''s; (' AND (b OR NOT c)", '"odd"")name" > 1', "a - -1 > 0",
        "doc -> 'k' ->> 'x' = '--'", "a[1] = ANY (ARRAY[1, 2])", "s = '$$'", "at > now() -\n '1 d'",
        "id IN (SELECT id FROM chosen)", "s LIKE '%x%'",
    ],
)  # fmt: skip
def test_expressions_are_taken_as_they_are(where: str) -> None:
    assert checked_condition(where) == where


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("true) UNION SELECT * FROM secrets WHERE (true", "parenthesis"),
        ("true; DROP TABLE t", "semicolons"),
        ("(id < 3", "parenthesis"),
        ("id < 3)", "parenthesis"),
        ("s = 'x", "quote"),
        ('"s = 1', "quote"),
        ("s = E'\\') UNION SELECT 1 WHERE ('' = '", "backslashes"),
        ("s = '\\'", "backslashes"),
        ("s = $$)$$", "dollar"),
        ("s = $a$)$a$", "dollar"),
        ("true -- )", "comments"),
        ("true /* ) */", "comments"),
        ("true)--", "parenthesis"),
        ("s = 'a\0'", "backslashes"),
    ],
)
def test_what_could_end_the_expression_is_refused(where: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as raised:
        checked_condition(where)
    assert "where" in raised.value.hint


@pytest.mark.parametrize(
    ("state", "hint"),
    [("42601", "`where`"), ("22012", "`where`"), ("42501", "GRANT"), ("57P01", "by itself")],
)
def test_a_wrong_statement_is_the_conditions_fault(state: str, hint: str) -> None:
    error = failure(state, "permission denied for table t", "reading rows")
    with pytest.raises((SettingsError, Unavailable)) as raised, blaming("id < 3"):
        raise error
    assert hint in raised.value.hint
    with pytest.raises(type(error)) as raised, blaming(""):
        raise error
    assert raised.value is error
