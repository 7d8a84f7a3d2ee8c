"""What happens in the database arrives: once, in commit order, with the right place."""

import uuid
from collections.abc import Callable

import psycopg
import pytest

from penstock.model.position import Place
from tests.feeds.postgres.reading import Reader


def _places(rows: list[dict[str, object]]) -> list[Place]:
    return [Place(str(row["cursor"]), int(str(row["ordinal"]))) for row in rows]


def test_a_copy_of_1000_rows_has_1000_ids(reader_any: Reader) -> None:
    reader_any.database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    reader_any.prepare()
    with (
        psycopg.connect(reader_any.database.url) as connection,
        connection.cursor().copy("COPY t FROM STDIN") as copy,
    ):
        for number in range(1000):
            copy.write_row((number, "x"))
    rows = reader_any.take(1000)
    assert len({row["event_id"] for row in rows}) == 1000
    assert len({row["cursor"] for row in rows}) == 1
    assert [row["ordinal"] for row in rows] == list(range(1000))
    assert [row["after"]["id"] for row in rows] == list(range(1000))


def test_interleaved_transactions_come_one_after_the_other_in_commit_order(
    reader_any: Reader,
) -> None:
    reader_any.database.execute("CREATE TABLE t (id int PRIMARY KEY, who text)")
    reader_any.prepare()
    url = reader_any.database.url
    with psycopg.connect(url) as first, psycopg.connect(url) as second:
        for number in range(20):
            first.execute("INSERT INTO t VALUES (%s, 'first')", (number,))
            second.execute("INSERT INTO t VALUES (%s, 'second')", (100 + number,))
        second.commit()
        first.execute("INSERT INTO t VALUES (99, 'first')")
        first.commit()
    rows = reader_any.take(41)
    assert [row["after"]["who"] for row in rows] == ["second"] * 20 + ["first"] * 21
    assert _places(rows) == sorted(set(_places(rows)))


def test_a_rolled_back_transaction_and_savepoint_never_show(reader_any: Reader) -> None:
    reader_any.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    reader_any.prepare()
    reader_any.database.execute("BEGIN; INSERT INTO t VALUES (1); ROLLBACK")
    reader_any.database.execute(
        "BEGIN; INSERT INTO t VALUES (2); SAVEPOINT s; INSERT INTO t VALUES (3);"
        " ROLLBACK TO s; INSERT INTO t VALUES (4); COMMIT"
    )
    rows = reader_any.take(2)
    assert [(row["ordinal"], row["after"]["id"]) for row in rows] == [(0, 2), (1, 4)]


@pytest.mark.parametrize("full", [False, True])
def test_an_unchanged_toast_is_listed_and_absent(reader: Reader, full: bool) -> None:
    reader.database.execute("CREATE TABLE t (id int PRIMARY KEY, big text, n int)")
    reader.database.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    if full:
        reader.database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    reader.prepare()
    reader.database.execute("INSERT INTO t VALUES (1, repeat('x', 20000), 1)")
    reader.database.execute("UPDATE t SET n = 2")
    reader.database.execute("UPDATE t SET id = 5")
    _, update, moved = reader.take(3)
    for row in (update, moved):
        if full:
            assert row["before"]["big"] == "x" * 20000
        else:
            assert row["unchanged"] == ["big"]
            assert "big" not in row["after"]
    assert moved["key"] == {"id": 5}
    assert moved["before"]["id"] == 1


def test_a_key_change_says_the_old_key(reader: Reader) -> None:
    reader.database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    reader.prepare()
    reader.database.execute("INSERT INTO t VALUES (1, 'x')")
    reader.database.execute("UPDATE t SET id = 2")
    _, row = reader.take(2)
    assert (row["before"], row["key"], row["document_id"]) == ({"id": 1}, {"id": 2}, "2")


@pytest.mark.parametrize(
    ("identity", "key", "before"),
    [
        ("DEFAULT", {"id": 1}, {"id": 1}),
        ("FULL", {"id": 1}, {"id": 1, "code": "a", "n": 1}),
        ("USING INDEX t_code", {"code": "a"}, {"code": "a"}),
    ],
)
def test_each_replica_identity_says_what_it_can_of_a_delete(
    reader: Reader, identity: str, key: dict[str, object], before: dict[str, object]
) -> None:
    reader.database.execute("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, n int)")
    reader.database.execute("CREATE UNIQUE INDEX t_code ON t (code)")
    reader.database.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    reader.prepare()
    reader.database.execute("INSERT INTO t VALUES (1, 'a', 1)")
    reader.database.execute("DELETE FROM t")
    _, row = reader.take(2)
    assert (row["operation"], row["key"], row["before"]) == ("DELETE", key, before)


def test_without_a_replica_identity_inserts_still_come(reader: Reader) -> None:
    reader.database.execute("CREATE TABLE t (id int); ALTER TABLE t REPLICA IDENTITY NOTHING")
    reader.prepare()
    reader.database.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        reader.database.execute("UPDATE t SET id = 2")
    (row,) = reader.take(1)
    assert (row["operation"], row["key"]) == ("INSERT", None)


def test_a_truncate_of_two_tables_is_two_changes(reader_any: Reader) -> None:
    reader_any.database.execute("CREATE TABLE a (id int PRIMARY KEY, b int)")
    reader_any.database.execute("CREATE TABLE b (id int PRIMARY KEY)")
    reader_any.prepare()
    reader_any.database.execute("TRUNCATE a, b")
    rows = reader_any.take(2)
    assert [(row["operation"], row["ordinal"]) for row in rows] == [
        ("TRUNCATE", 0),
        ("TRUNCATE", 1),
    ]
    assert {row["collection"] for row in rows} == {"a", "b"}


def test_a_message_and_the_transaction_that_commits_right_behind_it_have_different_ids(
    reader_any: Reader,
) -> None:
    reader_any.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    reader_any.prepare()
    reader_any.database.execute(
        "BEGIN; INSERT INTO t VALUES (1); SELECT pg_logical_emit_message(false, 'a', 'b'); COMMIT"
    )
    rows = reader_any.take(2)
    assert [row["operation"] for row in rows] == ["MESSAGE", "INSERT"]
    assert len({row["event_id"] for row in rows}) == 2
    assert _places(rows) == sorted(_places(rows))


def test_a_heartbeat_is_no_change_and_takes_no_ordinal(reader: Reader) -> None:
    reader.database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    reader.prepare()
    beat = "SELECT pg_logical_emit_message({}, 'penstock.heartbeat', '')"
    reader.database.execute(beat.format("false"))
    reader.database.execute(
        f"BEGIN; INSERT INTO t VALUES (1); {beat.format('true')}; INSERT INTO t VALUES (2); COMMIT"
    )
    assert [row["ordinal"] for row in reader.take(2)] == [0, 1]


def test_tables_narrow_what_is_decoded_and_ordinals_are_counted_before(
    reader_of: Callable[..., Reader],
) -> None:
    reader = reader_of(tables="b, other.c")
    reader.database.execute("CREATE SCHEMA other; CREATE TABLE a (id int PRIMARY KEY)")
    reader.database.execute("CREATE TABLE b (id int PRIMARY KEY)")
    reader.database.execute("CREATE TABLE other.c (id int PRIMARY KEY)")
    reader.database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    reader.prepare()
    reader.database.execute(
        "INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); INSERT INTO other.c VALUES (1)"
    )
    rows = reader.take(2)
    assert [(row["collection"], row["ordinal"]) for row in rows] == [("b", 1), ("c", 2)]


def test_own_types_are_looked_up(reader_any: Reader) -> None:
    database = reader_any.database
    database.execute("CREATE TYPE mood AS ENUM ('glad', 'sad')")
    database.execute("CREATE DOMAIN positive AS int CHECK (value > 0)")
    database.execute("CREATE TABLE t (id positive PRIMARY KEY, m mood, ms mood[], ps positive[])")
    reader_any.prepare()
    database.execute("INSERT INTO t VALUES (1, 'sad', '{glad,sad}', '{1,2}')")
    (row,) = reader_any.take(1)
    assert row["after"] == {"id": 1, "m": "sad", "ms": ["glad", "sad"], "ps": [1, 2]}


def test_a_full_replica_identity_still_has_the_primary_key(reader: Reader) -> None:
    reader.database.execute("CREATE TABLE t (a int, b int, c int, PRIMARY KEY (c, a))")
    reader.database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    reader.prepare()
    reader.database.execute("INSERT INTO t VALUES (1, 2, 3)")
    (row,) = reader.take(1)
    assert row["key"] == {"c": 3, "a": 1}


def test_a_page_carries_only_the_relations_that_it_uses(reader_of: Callable[..., Reader]) -> None:
    reader = reader_of(page_rows=1)
    for number in range(30):
        reader.database.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, a text, b text)")
    reader.prepare()
    for _ in range(2):
        for number in range(30):
            reader.database.execute(f"INSERT INTO t{number} VALUES ({uuid.uuid4().int % 2**31})")
    rows = reader.take(60)
    assert [row["collection"] for row in rows] == [f"t{number}" for number in range(30)] * 2
    # A relation of three columns is about 40 bytes; thirty of them would be more than 1,000.
    assert max(len(page.context) for page in reader.pages) < 250
