"""Penstock's own publication never has the source refuse what its application does."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.model.errors import SettingsError
from tests.servers import Database
from tests.waiting import until

UNIDENTIFIED = {
    "no key": "CREATE TABLE t (id int, n int)",
    "nothing": "CREATE TABLE t (id int PRIMARY KEY, n int); ALTER TABLE t REPLICA IDENTITY NOTHING",
    "a deferrable key": "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, n int)",
    "an index that is gone": "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL);"
    "CREATE UNIQUE INDEX u ON t (n); ALTER TABLE t REPLICA IDENTITY USING INDEX u; DROP INDEX u",
    "a root without": "CREATE TABLE t (id int, n int) PARTITION BY RANGE (id);"
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (9)",
    "one leaf without": "CREATE TABLE t (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);"
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (9);"
    "ALTER TABLE t_1 REPLICA IDENTITY NOTHING",
    "a root with FULL": "CREATE TABLE t (id int, n int) PARTITION BY RANGE (id);"
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (9);"
    "ALTER TABLE t REPLICA IDENTITY FULL",
}
GENERATED = {
    "FULL": "CREATE TABLE t (id int, n int, twice int GENERATED ALWAYS AS (n * 2) STORED);"
    "ALTER TABLE t REPLICA IDENTITY FULL",
    "a key": "CREATE TABLE t (id int, n int, own int GENERATED ALWAYS AS (id) STORED PRIMARY KEY)",
}
IDENTIFIED = {
    "a key": "CREATE TABLE t (id int PRIMARY KEY, n int)",
    "FULL": "CREATE TABLE t (id int, n int); ALTER TABLE t REPLICA IDENTITY FULL",
    "an index": "CREATE TABLE t (id int UNIQUE NOT NULL, n int);"
    "ALTER TABLE t REPLICA IDENTITY USING INDEX t_id_key",
    "partitions": "CREATE TABLE t (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);"
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (9)",
}


def feed_of(database: Database, *tables: str, **settings: Any) -> PostgresFeed:
    return PostgresFeed(PostgresSettings(
        name=database.name, connection=database.url, tables=tables, silence=60, **settings
    ))  # fmt: skip


def named(feed: PostgresFeed, subject: str = "table public.t") -> list[tuple[str, str]]:
    """Level and remedy of what `check` says of a table."""
    return [
        (each.level, each.remedy) for each in feed.check()
        if (each.subject, each.code) == (subject, "postgres.identity-missing")
    ]  # fmt: skip


def application_works(database: Database) -> None:
    database.execute("INSERT INTO t VALUES (1, 1); UPDATE t SET n = 2; DELETE FROM t")


@pytest.mark.parametrize("made", UNIDENTIFIED.values(), ids=UNIDENTIFIED)
def test_a_table_without_a_replica_identity_is_named_and_left_out_until_it_has_one(
    database_any: Database, made: str
) -> None:
    database_any.execute(f"{made}; CREATE TABLE good (id int PRIMARY KEY)")
    feed = feed_of(database_any, "t", "good")
    ((level, remedy),) = named(feed)
    assert level == "error" and "REPLICA IDENTITY FULL" in remedy
    feed.begin()
    assert named(feed) == [(level, remedy)]
    assert feed.tables() == [("public", "good")] and [*feed.left_out()] == [("public", "t")]
    application_works(database_any)
    for statement in remedy.split("; or ")[-1].split(";"):
        if statement.strip():
            database_any.execute(statement)
    assert named(feed) == []
    feed.begin()
    assert feed.tables() == [("public", "good"), ("public", "t")] and feed.left_out() == {}
    application_works(database_any)


@pytest.mark.parametrize("made", GENERATED.values(), ids=GENERATED)
def test_generated_columns_of_an_identity_are_to_be_published(
    database_any: Database, made: str
) -> None:
    """From PostgreSQL 18 on."""
    database_any.execute(made)
    feed = feed_of(database_any, "t")
    feed.begin()
    ((version,),) = database_any.execute("SELECT current_setting('server_version_num')::int")
    is_left = version >= 180000
    assert bool(feed.left_out()) == is_left
    application_works(database_any)
    if is_left:
        database_any.execute(
            f"ALTER PUBLICATION penstock_{database_any.name} SET (publish_generated_columns=stored)"
        )
        feed.begin()
        assert feed.tables() == [("public", "t")]
        application_works(database_any)


@pytest.mark.parametrize("made", IDENTIFIED.values(), ids=IDENTIFIED)
def test_a_table_with_a_replica_identity_is_sent(database_any: Database, made: str) -> None:
    database_any.execute(made)
    feed = feed_of(database_any, "t")
    feed.begin()
    assert (named(feed), feed.tables(), feed.left_out()) == ([], [("public", "t")], {})
    application_works(database_any)


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_table_that_inherits_from_one_of_the_settings_is_not_published(
    database_any: Database, *, is_ours: bool
) -> None:
    database_any.execute(
        "CREATE TABLE base (id int PRIMARY KEY); CREATE TABLE t (n int) INHERITS (base)"
    )
    settings = {} if is_ours else {"publication": "p", "create_publication": True}
    feed = feed_of(database_any, "base", **settings)
    feed.begin()
    assert feed.tables() == [("public", "base")]
    application_works(database_any)


def test_a_publication_that_is_made_for_the_user_is_refused_where_it_would_harm(
    database: Database,
) -> None:
    """It is never altered, so nothing can be left out."""
    database.execute(UNIDENTIFIED["no key"])
    feed = feed_of(database, "t", publication="p", create_publication=True)
    ((level, remedy),) = named(feed)
    assert level == "error"
    with pytest.raises(SettingsError, match="no replica identity") as raised:
        feed.begin()
    assert raised.value.hint == remedy
    application_works(database)
    database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    feed.begin()
    assert feed.tables() == [("public", "t")]


def test_one_of_all_tables_is_made_and_what_it_does_is_said_before(database: Database) -> None:
    database.execute(UNIDENTIFIED["no key"])
    feed = feed_of(database, publication="p", create_publication=True)
    assert [level for level, _ in named(feed)] == ["error"]
    feed.begin()
    assert [level for level, _ in named(feed)] == ["warning"]


def test_while_it_is_read_tables_leave_and_join_as_they_lose_and_get_their_identity(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.feeds.postgres.watch._KEEPING", 0.1)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    feed = feed_of(database, "t", "later")
    ((partition, bookmark),) = feed.begin().items()
    following = feed.follow(partition, bookmark)

    def read(condition: Callable[[], bool]) -> None:
        until(lambda: condition() or (bool(following.read(0.1)) and condition()), 60)

    try:
        database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
        read(lambda: feed.tables() == [])
        application_works(database)
        read(lambda: feed.status().get("state") == "tables_left_out")
        assert "public.t: no replica identity" in feed.status()["message"]
        database.execute(
            "ALTER TABLE t ADD PRIMARY KEY (id); CREATE TABLE later (id int PRIMARY KEY)"
        )
        read(lambda: len(feed.tables()) == 2)
        read(lambda: feed.status() == {})
    finally:
        following.close()
