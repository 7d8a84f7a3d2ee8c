"""DDL under load: each row is decoded with the relation it was sent under."""

import threading
from datetime import UTC, datetime

import orjson
import psycopg
import pytest

from penstock.feeds.postgres import PostgresFeed
from tests.feeds.postgres.reading import Reader, Recorded


def test_ddl_while_others_write_mangles_nothing(reader_any: Reader) -> None:
    """Writers insert x = y in every row; whatever else changes must not shift a column."""
    reader_any.prepare("CREATE TABLE t (id serial PRIMARY KEY, x int, y int)")
    url, done = reader_any.database.url, threading.Event()
    written: list[int] = []

    def write() -> None:
        number = 0
        with psycopg.connect(url, autocommit=True) as connection:
            while not done.is_set() or number < 50:
                connection.execute("INSERT INTO t (x, y) VALUES (%s, %s)", (number, number))
                number += 1
        written.append(number)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for each in writers:
        each.start()
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            for number in range(15):
                connection.execute(f"ALTER TABLE t ADD COLUMN c{number} text DEFAULT 'd'".encode())
                if number % 2:
                    connection.execute(f"ALTER TABLE t DROP COLUMN n{number - 1}".encode())
                connection.execute(f"ALTER TABLE t RENAME COLUMN c{number} TO n{number}".encode())
                reader_any.take(1)
    finally:
        done.set()
        for each in writers:
            each.join()
    reader_any.until(lambda: len(reader_any.rows) >= sum(written))
    assert len(reader_any.rows) == sum(written)
    for row in reader_any.rows:
        after = row["after"]
        assert after["x"] == after["y"]
        assert all(value == "d" for name, value in after.items() if name not in ("id", "x", "y"))


def test_a_table_that_joins_the_publication_later_is_followed_from_then(
    reader_any: Reader,
) -> None:
    database = reader_any.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("CREATE TABLE late (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION p FOR TABLE t")
    reader_any.prepare()
    database.execute("INSERT INTO late VALUES (1)")
    database.execute("INSERT INTO t VALUES (1)")
    database.execute("ALTER PUBLICATION p ADD TABLE late")
    database.execute("INSERT INTO late VALUES (2)")
    rows = reader_any.take(2)
    assert [(row["collection"], row["after"]["id"]) for row in rows] == [("t", 1), ("late", 2)]


def test_a_domain_that_is_gone_is_its_base_type_as_the_log_has_it(reader_any: Reader) -> None:
    """The Type message has the base type's name under the domain's OID (proto.c,
    logicalrep_write_typ): no reader needs to have seen the domain."""
    database = reader_any.database
    database.execute(
        "CREATE DOMAIN positive AS int; CREATE DOMAIN small AS positive;"
        "CREATE DOMAIN many AS int[];"
        "CREATE TYPE mood AS ENUM ('good');"
        "CREATE TABLE t (id positive PRIMARY KEY, s small, m many, e mood)"
    )
    reader_any.prepare()
    database.execute("INSERT INTO t VALUES (1, 2, '{3,4}', 'good')")
    database.execute(
        "ALTER TABLE t ALTER id TYPE int, ALTER s TYPE int, ALTER m TYPE int[], ALTER e TYPE text;"
        "DROP DOMAIN small, positive, many; DROP TYPE mood"
    )
    database.execute("INSERT INTO t VALUES (5, 6, '{7}', 'good')")
    before, after = reader_any.take(2)
    assert (before["key"], before["document_id"]) == ({"id": 1}, "1")
    assert before["after"] == {"id": 1, "s": 2, "m": [3, 4], "e": "good"}
    assert after["after"] == {"id": 5, "s": 6, "m": [7], "e": "good"}
    assert reader_any.feed.status() == {}


GONE = (
    "CREATE TYPE mood AS ENUM ('a', 'b'); CREATE TABLE t (id int PRIMARY KEY, ms mood[])",
    "INSERT INTO t VALUES (1, '{a,b}')",
    "ALTER TABLE t ALTER ms TYPE text[]; DROP TYPE mood; INSERT INTO t VALUES (2, '{c}')",
)


def test_a_type_that_was_stored_is_used_again_and_one_that_never_was_is_told(
    reader: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    made, first, rest = GONE
    reader.database.execute(made)
    reader.prepare()
    stored = [orjson.loads(orjson.dumps(one.document(datetime.now(UTC), "p")))
              for one in reader.feed.schemas()]  # fmt: skip
    reader.database.execute(first)
    reader.database.execute(rest)
    rows = reader.take(1)
    assert rows[0]["after"] == {"id": 1, "ms": "{a,b}"}
    told = reader.feed.status()
    assert told["state"] == "unknown_types"
    assert "public.t (ms)" in told["message"]
    assert "public.t (ms)" in caplog.text
    reader.close()
    reader.pages.clear()
    reader.feed = PostgresFeed(reader.settings)
    reader.feed.announce_schemas(Recorded(*stored))
    rows = reader.take(2)
    assert [row["after"]["ms"] for row in rows] == [["a", "b"], ["c"]]
    assert reader.feed.status() == {}


def test_a_key_under_full_is_the_one_of_then(reader: Reader) -> None:
    """The log marks all columns: the key is the catalogue's, unless that is younger."""
    reader.prepare(
        "CREATE TABLE t (id int NOT NULL, n int NOT NULL, CONSTRAINT k PRIMARY KEY (id));"
        "ALTER TABLE t REPLICA IDENTITY FULL"
    )
    stored = [orjson.loads(orjson.dumps(one.document(datetime.now(UTC), "p")))
              for one in reader.feed.schemas()]  # fmt: skip
    reader.database.execute("INSERT INTO t VALUES (1, 10)")
    reader.database.execute("ALTER TABLE t DROP CONSTRAINT k, ADD PRIMARY KEY (n)")
    reader.database.execute("INSERT INTO t VALUES (2, 20)")
    reader.feed.announce_schemas(Recorded(*stored))
    rows = reader.take(2)
    assert [row["key"] for row in rows] == [{"id": 1}, {"n": 20}]
    assert [row["schema_version"] for row in rows] == [
        stored[0]["version"], reader.feed.schemas()[0].version,
    ]  # fmt: skip
