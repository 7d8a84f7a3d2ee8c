"""Leases in PostgreSQL: two hosts, a server that comes and goes, and what an operator must mend."""

import threading
from contextlib import closing
from random import Random

import psycopg
import pytest

from penstock.leases import Lease, replace
from penstock.leases.postgres import PostgresStore
from penstock.model.errors import SettingsError, Unavailable
from tests.servers import Database, Postgres

# The table as the first version made it.
OF_BEFORE = """CREATE TABLE penstock_lease (
    name text PRIMARY KEY, owner text NOT NULL, continuation text NOT NULL,
    revision bigint NOT NULL, deleted boolean NOT NULL DEFAULT false)"""


def test_fifty_hosts_that_write_the_same_rows_lose_no_update(database: Database) -> None:
    """Each adds one to rows as it read them: the writes that succeed are one chain for each row."""
    hosts, rounds, names = 50, 8, [f"n{number:02}" for number in range(40)]
    with closing(PostgresStore(database.url)) as store:
        made = store.put_all([Lease(name=name, properties={"count": 0}) for name in names])
        assert all(isinstance(row, Lease) for row in made)
    barrier = threading.Barrier(hosts)
    # (name, revision before) -> revision after, of all writes that succeeded.
    steps: dict[tuple[str, str], str] = {}
    failed: list[BaseException] = []

    def run(number: int) -> None:
        random = Random(number)
        try:
            with closing(PostgresStore(database.url)) as store:
                store.get("n00")  # connects
                barrier.wait(60)
                for _ in range(rounds):
                    known = {row.name: row for row in store.list("n")}
                    before = [known[name] for name in random.sample(names, 10)]
                    after = store.put_all([_more(row, number) for row in before])
                    for old, new in zip(before, after, strict=True):
                        if isinstance(new, Lease):
                            assert (old.name, old.revision) not in steps, "two wrote over one"
                            steps[old.name, old.revision] = new.revision
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(hosts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with closing(PostgresStore(database.url)) as store:
        rows = store.list("n")
    assert len(steps) >= len(names), "they hindered each other all the time"
    for row in rows:
        assert isinstance(row.properties["count"], int)
        revision, count = "1", 0
        while (row.name, revision) in steps:
            revision, count = steps.pop((row.name, revision)), count + 1
        assert (revision, count) == (row.revision, row.properties["count"])
    assert steps == {}, "writes that succeeded are in no row's chain"


def _more(row: Lease, host: int) -> Lease:
    return replace(row, owner=f"h{host}", properties={"count": row.properties["count"] + 1})


def test_of_many_rows_none_is_written_when_one_can_not_be(database: Database) -> None:
    store = PostgresStore(database.url)
    with pytest.raises(SettingsError):
        store.put_all([Lease(name="a"), Lease(name="b\0"), Lease(name="c")])
    assert store.list("") == []
    assert isinstance(store.put_all([Lease(name="a")])[0], Lease)
    store.close()


@pytest.mark.parametrize(
    ("prefix", "setting", "value", "found"),
    [
        ("default_", "transaction_isolation", "serializable", "read committed"),
        ("", "synchronous_commit", "off", "on"),
    ],
)
def test_rows_are_compared_and_durable_whatever_the_database_prefers(
    database: Database, prefix: str, setting: str, value: str, found: str
) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        chosen = f"{prefix}{setting} = {value}"
        connection.execute(f'ALTER DATABASE "{database.name}" SET {chosen}'.encode())
    store = PostgresStore(database.url)
    store.put(Lease(name="a"))
    assert store._run(f"SHOW {setting}", {}) == [(found,)]
    store.close()


def test_a_server_that_goes_is_unavailable_and_comes_back() -> None:
    with Postgres(version=16, settings={"fsync": False}) as server:
        store = PostgresStore(server.url)
        row = store.put(Lease(name="a"))
        server.stop("immediate")
        with pytest.raises(Unavailable):
            store.get("a")
        server.start()
        assert store.get("a") == row
        store.close()


def test_a_role_that_may_not_is_told_what_it_needs(database: Database) -> None:
    role = f"r_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN")
    try:
        store = PostgresStore(database.url.replace("postgres@", f"{role}@"))
        with pytest.raises(SettingsError, match="permission denied") as caught:
            store.put(Lease(name="a"))
        assert "CREATE" in caught.value.hint
        store.close()
    finally:
        database.execute(f"DROP ROLE {role}")


def test_a_table_of_an_earlier_version_is_used_without_a_right_to_alter_it(
    database: Database,
) -> None:
    role = f"r_{database.name}"
    database.execute(OF_BEFORE)
    database.execute("""INSERT INTO penstock_lease VALUES ('a', 'me', '{"place": null}', 7)""")
    database.execute(f"CREATE ROLE {role} LOGIN")
    database.execute(f"GRANT SELECT, INSERT, UPDATE ON penstock_lease TO {role}")
    try:
        store = PostgresStore(database.url.replace("postgres@", f"{role}@"))
        found = store.get("a")
        assert found == Lease(name="a", owner="me", continuation='{"place": null}', revision="7")
        rows = [replace(found, properties={"team": "x"}), Lease(name="b", properties={"y": 1})]
        assert store.put_all(rows) == store.list("")
        assert [row.properties for row in store.list("")] == [{"team": "x"}, {"y": 1}]
        assert [row.continuation for row in store.list("")] == ['{"place": null}', ""]
        store.close()
    finally:
        database.execute(f"DROP OWNED BY {role}")
        database.execute(f"DROP ROLE {role}")
