"""Two tables are compared by hashes, on real servers."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from penstock.sinks.postgres.verify import PostgresSide
from penstock.sinks.tables.comparing import Difference, differences
from tests.servers import Database, Postgres


@pytest.fixture
def sides(database: Database, postgres_of: Any) -> Iterator[tuple[PostgresSide, PostgresSide]]:
    """A table on PostgreSQL 16 and one on 18, of other types."""
    other: Postgres = postgres_of(18)
    with (
        other.database() as target,
        psycopg.connect(database.url, autocommit=True) as here,
        psycopg.connect(target.url, autocommit=True) as there,
    ):
        here.execute("CREATE TABLE t (a int, b varchar(9), note text, PRIMARY KEY (a, b))")
        there.execute("CREATE TABLE t (note text, b text, a bigint)")
        for one in (here, there):
            one.execute(
                "INSERT INTO t (a, b, note) SELECT n, 'k\"' || n, nullif(n, 7)::text"
                " FROM generate_series(1, 5000) n"
            )
        yield tuple(
            PostgresSide(
                connection=one, rows=sql.Identifier("t"), key=["a", "b"], columns=["a", "b", "note"]
            )
            for one in (here, there)
        )  # type: ignore[misc]


Sides = tuple[PostgresSide, PostgresSide]


def test_equal_rows_have_no_difference(sides: Sides) -> None:
    assert list(differences(*sides)) == []


def test_each_difference_is_found_by_its_key_and_columns(sides: Sides) -> None:
    sides[1].connection.execute("DELETE FROM t WHERE a = 17")
    sides[1].connection.execute("INSERT INTO t VALUES ('', 'k', 4)")
    sides[1].connection.execute("UPDATE t SET note = '' WHERE a = 7")
    sides[0].connection.execute("UPDATE t SET note = 'secret' WHERE a = 9")
    found = set(differences(*sides))
    assert found == {
        Difference('(17,"k""17")', "missing"), Difference("(4,k)", "extra"),
        Difference('(7,"k""7")', "changed", ("note",)),
        Difference('(9,"k""9")', "changed", ("note",)),
    }  # fmt: skip
    assert Difference("(4,k)", "extra") not in differences(*sides, ignores_extra=True)


def test_equal_rows_without_a_key_are_counted(sides: Sides) -> None:
    one, other = (
        PostgresSide(connection=each.connection, rows=each.rows, key=[], columns=["note"])
        for each in sides
    )
    assert list(differences(one, other)) == []
    one.connection.execute("INSERT INTO t VALUES (0, '', '12'), (1, '', '12')")
    other.connection.execute("INSERT INTO t VALUES ('12', '', 0)")
    assert [each.key for each in differences(one, other)] == ["(12)"]
