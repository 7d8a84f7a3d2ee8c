"""Preflight: one finding for each thing that is not as it should be, with the SQL that mends it."""

from collections.abc import Callable

import psycopg
import pytest

from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.model.errors import SettingsError
from penstock.model.finding import Finding
from tests.feeds.postgres.reading import Reader
from tests.servers import Database, Postgres


def _of(findings: object, subject: str) -> list[Finding]:
    return [each for each in findings if each.subject == subject]  # type: ignore[attr-defined]


def test_everything_in_order_is_all_ok(reader_any: Reader) -> None:
    reader_any.prepare("CREATE TABLE t (id int PRIMARY KEY)")
    findings = reader_any.feed.check()
    assert {finding.level for finding in findings} == {"ok"}
    assert {"server", "wal_level", "role", "max_wal_senders", "publication p"} <= {
        finding.subject for finding in findings
    }


def test_a_server_without_a_spare_slot_takes_no_snapshots(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.prepare()
    monkeypatch.setattr("penstock.feeds.postgres.preflight._setting", lambda *_: "1")
    (finding,) = _of(reader.feed.check(), "max_replication_slots")
    assert finding.level == "warning" and "snapshots need one more" in finding.message


def test_a_server_that_is_not_there_is_the_only_finding() -> None:
    settings = PostgresSettings(
        connection="postgresql://u@127.0.0.1:1/d", slot="s", publication="p"
    )
    (finding,) = PostgresFeed(settings).check()
    assert (finding.level, finding.subject) == ("error", "server")
    assert finding.remedy


@pytest.mark.parametrize(
    ("encoding", "level", "says"),
    [
        ("MULE_INTERNAL", "error", "MULE_INTERNAL"),
        ("SQL_ASCII", "warning", "a dead letter"),
        ("EUC_JIS_2004", "ok", ""),
    ],
)
def test_a_database_that_is_not_read_as_utf8_is_named_with_its_remedy(
    postgres: Postgres, encoding: str, level: str, says: str
) -> None:
    name = f"of_{encoding.lower()}"
    postgres.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    try:
        url = postgres.url_of(name)
        feed = PostgresFeed(PostgresSettings(connection=url, slot="s", publication="p"))
        findings = feed.check()
        found = [each for each in findings if "encoding UTF8" in each.remedy]
        assert [each.level for each in found] == [level] * (level != "ok")
        assert all(says in each.message for each in found)
        if level == "error":
            assert findings == found
            with pytest.raises(SettingsError):  # nothing that passes by itself
                feed.begin()
    finally:
        postgres.drop(name)


def test_a_publication_with_a_mistake_names_those_that_are_there(
    reader_of: Callable[..., Reader], database: Database
) -> None:
    database.execute("CREATE TABLE m (id int PRIMARY KEY); CREATE PUBLICATION shop FOR TABLE m")
    settings = {"connection": database.url, "slot": "s"}
    for name, first in (("shopp", "did you mean shop? "), ("other", "there are: shop. ")):
        feed = PostgresFeed(PostgresSettings(publication=name, **settings))
        (finding,) = _of(feed.check(), f"publication {name}")
        assert finding.remedy == (
            f'{first}As the tables\' owner: CREATE PUBLICATION "{name}" FOR TABLE ...;'
        )


def test_a_missing_publication_has_its_sql(reader_of: Callable[..., Reader]) -> None:
    reader = reader_of(create_publication=False, tables=["t"])
    (finding,) = _of(reader.feed.check(), "publication p")
    assert (finding.level, finding.remedy) == (
        "error",
        'As the tables\' owner: CREATE PUBLICATION "p" FOR TABLE ONLY "public"."t";',
    )


@pytest.mark.parametrize("table", ["public.t", "public.parts"])
def test_the_remedy_for_a_table_that_is_not_covered_covers_it(
    reader_of: Callable[..., Reader], table: str
) -> None:
    reader = reader_of(tables=[table])
    database = reader.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p")
    database.execute("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (9)")
    (finding,) = _of(reader.feed.check(), f"table {table}")
    assert finding.level == "error"
    database.execute(finding.remedy)
    assert _of(reader.feed.check(), f"table {table}") == []


def test_operations_that_are_not_published_are_named(reader: Reader) -> None:
    reader.database.execute("CREATE PUBLICATION p FOR ALL TABLES WITH (publish = 'insert, update')")
    warning = _of(reader.feed.check(), "publication p")[0]
    assert "delete, truncate" in warning.message
    reader.database.execute(warning.remedy)
    assert all("not publish" not in each.message for each in reader.feed.check())


def test_a_role_without_replication_is_told_how_to_get_it(
    reader: Reader, database: Database
) -> None:
    name = f"plain_{database.name}"
    database.execute(f"CREATE ROLE {name} LOGIN")
    try:
        database.execute("CREATE TABLE t (id int PRIMARY KEY)")
        database.execute("CREATE PUBLICATION p FOR TABLE t")
        settings = PostgresSettings(
            connection=database.url.replace("postgres@", f"{name}@"), slot="s", publication="p"
        )
        findings = PostgresFeed(settings).check()
        (role,) = _of(findings, "role")
        assert (role.level, f'ALTER ROLE "{name}" REPLICATION;' in role.remedy) == ("error", True)
        assert _of(findings, "replication connection")[0].level == "error"
        (table,) = _of(findings, "table public.t")
        assert "GRANT SELECT" in table.remedy
        database.execute(f"ALTER ROLE {name} REPLICATION")
        assert _of(PostgresFeed(settings).check(), "role")[0].level == "ok"
    finally:
        database.execute(f"DROP ROLE {name}")


def test_partitions_that_a_snapshot_cannot_read_are_named(
    reader: Reader, database: Database
) -> None:
    """Without a primary key each is read by its name, and rights on the root are not enough."""
    name = f"plain_{database.name}"
    database.execute(f"CREATE ROLE {name} LOGIN REPLICATION")
    try:
        database.execute(
            "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = true);"
        )
        for table, key in (("t", ""), ("keyed", "PRIMARY KEY")):
            database.execute(
                f"CREATE TABLE {table} (id int {key}) PARTITION BY LIST (id);"
                f'CREATE TABLE "{table} 1" PARTITION OF {table} FOR VALUES IN (1);'
                f'CREATE TABLE "{table} 2" PARTITION OF {table} FOR VALUES IN (2);'
                f"ALTER TABLE {table} REPLICA IDENTITY FULL; GRANT SELECT ON {table} TO {name}"
            )
        url = database.url.replace("postgres@", f"{name}@")
        plain = PostgresFeed(PostgresSettings(connection=url, slot="s", publication="p"))
        assert _of(plain.check(), "table public.keyed") == []
        found = [one for one in _of(plain.check(), "table public.t") if "partition" in one.message]
        assert [(one.level, "read 2 of" in one.message) for one in found] == [("warning", True)]
        database.execute(found[0].remedy.split(": ", 1)[1].replace("<role>", name))
        left = _of(plain.check(), "table public.t")
        assert [one for one in left if "partition" in one.message] == []
    finally:
        database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_slot_in_use_names_the_pid(reader: Reader) -> None:
    reader.prepare()
    reader.following.read(0)
    (finding,) = _of(reader.feed.check(), f"slot {reader.slot}")
    assert finding.level == "warning"
    assert "in use by the process" in finding.message


def test_a_slot_of_another_kind_is_an_error(reader: Reader, postgres: Postgres) -> None:
    postgres.execute(f"SELECT pg_create_physical_replication_slot('{reader.slot}')")
    try:
        (finding,) = _of(reader.feed.check(), f"slot {reader.slot}")
        assert finding.level == "error"
        assert "pg_drop_replication_slot" in finding.remedy
    finally:
        postgres.execute(f"SELECT pg_drop_replication_slot('{reader.slot}')")


@pytest.mark.parametrize(
    ("kept", "idle", "level"), [("1GB", "1d", "warning"), ("50GB", "3d", "ok")]
)
def test_a_server_that_gives_up_slots_soon_is_a_warning(kept: str, idle: str, level: str) -> None:
    settings = {"max_slot_wal_keep_size": kept, "idle_replication_slot_timeout": idle}
    with Postgres(version=18, settings=settings) as server:
        feed = PostgresFeed(
            PostgresSettings(
                connection=server.url, slot="s", publication="p", create_publication=True
            )
        )
        findings = feed.check()
        for name, value in settings.items():
            (found,) = _of(findings, name)
            assert found.level == level
            assert value in found.message


def test_before_the_first_start_all_is_fine_and_checking_changes_nothing(reader: Reader) -> None:
    findings = reader.feed.check()
    assert {finding.level for finding in findings} == {"ok"}
    assert any("will be made" in finding.message for finding in findings)
    with psycopg.connect(reader.database.url) as connection:
        assert connection.execute("SELECT FROM pg_publication").fetchall() == []
        query = "SELECT FROM pg_replication_slots WHERE database = current_database()"
        assert connection.execute(query).fetchall() == []


@pytest.mark.parametrize(
    ("made", "table", "level", "message", "remedy"),
    [
        ("CREATE TABLE t ()", "nope", "error", "it does not exist", "correct `tables`"),
        (
            'CREATE TABLE "Odd name" (id int)', "Odd name", "warning", "refuses UPDATE and DELETE",
            'ALTER TABLE public."Odd name" REPLICA IDENTITY FULL',
        ),
        (
            "CREATE TABLE t (id int); ALTER TABLE t REPLICA IDENTITY FULL", "t", "warning",
            "no document id", "ADD PRIMARY KEY",
        ),
    ],
)  # fmt: skip
def test_a_table_that_is_not_as_it_should_be_is_named_with_its_remedy(
    reader_of: Callable[..., Reader], made: str, table: str, level: str, message: str, remedy: str
) -> None:
    reader = reader_of(tables=[table])
    reader.database.execute(made)
    reader.database.execute("CREATE PUBLICATION p FOR ALL TABLES")
    (finding,) = _of(reader.feed.check(), f"table public.{table}")
    assert (finding.level, message in finding.message) == (level, True)
    assert remedy in finding.remedy
