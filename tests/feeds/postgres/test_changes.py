"""What happens in the database arrives: once, in commit order, with the right place."""

import psycopg

from penstock.model.position import Place
from tests.feeds.postgres.reading import Reader


def _places(rows: list[dict[str, object]]) -> list[Place]:
    return [Place(str(row["cursor"]), int(str(row["ordinal"]))) for row in rows]


def test_a_copy_of_1000_rows_has_1000_ids(reader_any: Reader) -> None:
    reader_any.prepare("CREATE TABLE t (id int PRIMARY KEY, a text)")
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
    reader_any.prepare("CREATE TABLE t (id int PRIMARY KEY, who text)")
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
    reader_any.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    reader_any.database.execute("BEGIN; INSERT INTO t VALUES (1); ROLLBACK")
    reader_any.database.execute(
        "BEGIN; INSERT INTO t VALUES (2); SAVEPOINT s; INSERT INTO t VALUES (3);"
        " ROLLBACK TO s; INSERT INTO t VALUES (4); COMMIT"
    )
    rows = reader_any.take(2)
    assert [(row["ordinal"], row["after"]["id"]) for row in rows] == [(0, 2), (1, 4)]


def test_a_message_and_the_transaction_that_commits_right_behind_it_have_different_ids(
    reader_any: Reader,
) -> None:
    reader_any.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    reader_any.database.execute(
        "BEGIN; INSERT INTO t VALUES (1); SELECT pg_logical_emit_message(false, 'a', 'b'); COMMIT"
    )
    rows = reader_any.take(2)
    assert [row["operation"] for row in rows] == ["MESSAGE", "INSERT"]
    assert len({row["event_id"] for row in rows}) == 2
    assert _places(rows) == sorted(_places(rows))


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
    reader.prepare(
        "CREATE TABLE t (a int, b int, c int, PRIMARY KEY (c, a))",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    reader.database.execute("INSERT INTO t VALUES (1, 2, 3)")
    (row,) = reader.take(1)
    assert row["key"] == {"c": 3, "a": 1}
