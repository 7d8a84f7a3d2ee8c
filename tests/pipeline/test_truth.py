"""What the fault tests compare with is what was committed."""

import pytest

from tests.pipeline.truth import Truth, assert_same
from tests.servers import Database


@pytest.fixture
def truth(database: Database) -> Truth:
    database.execute("CREATE TABLE items (id bigint PRIMARY KEY, who int, note text)")
    database.execute("CREATE PUBLICATION pub FOR TABLE items")
    return Truth(database)


def test_it_tells_what_was_committed_in_order_and_once(database: Database, truth: Truth) -> None:
    database.execute("BEGIN; INSERT INTO items VALUES (1, 1, 'never'); ROLLBACK")
    database.execute("INSERT INTO items VALUES (1, 7, 'a'), (2, NULL, NULL)")
    database.execute("UPDATE items SET id = 3 WHERE id = 1; DELETE FROM items WHERE id = 2")
    facts = truth.read()
    assert [(fact.operation, fact.data) for fact in facts] == [
        ("INSERT", {"id": 1, "who": 7, "note": "a"}),
        ("INSERT", {"id": 2, "who": None, "note": None}),
        ("UPDATE", {"id": 3, "who": 7, "note": "a"}),
        ("DELETE", None),
    ]
    assert [fact.id.rpartition(":")[2] for fact in facts] == ["0", "1", "0", "1"]
    assert truth.read() == []


@pytest.mark.parametrize("wrong", ["missing", "twice", "swapped", "invented", "another value"])
def test_a_difference_of_any_kind_is_seen(database: Database, truth: Truth, wrong: str) -> None:
    database.execute("INSERT INTO items VALUES (1, 7, 'a'), (2, 8, 'b')")
    facts = truth.read()
    first, second = (
        {"event_id": fact.id, "operation": fact.operation, "data": fact.data} for fact in facts
    )
    assert_same(facts, [first, second])
    bodies = {
        "missing": [first],
        "twice": [first, second, second],
        "swapped": [second, first],
        "invented": [first, second, {**second, "event_id": "default:0:0"}],
        "another value": [first, {**second, "data": {"id": 2, "who": 8, "note": "c"}}],
    }[wrong]
    with pytest.raises(AssertionError):
        assert_same(facts, bodies)
