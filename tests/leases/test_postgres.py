"""Leases in PostgreSQL: two hosts, a server that comes and goes, and what an operator must mend."""

import pickle
import threading
from contextlib import closing
from random import Random

import psycopg
import pytest

from penstock.leases import Lease, replace
from penstock.leases.open import open_store
from penstock.leases.postgres import PostgresStore
from penstock.model.errors import LeaseLost, SettingsError, Unavailable
from tests.servers import Database, Postgres

pytestmark = pytest.mark.live

# The table as the first version made it.
OF_BEFORE = """CREATE TABLE penstock_lease (
    name text PRIMARY KEY, owner text NOT NULL, continuation text NOT NULL,
    revision bigint NOT NULL, deleted boolean NOT NULL DEFAULT false)"""


def test_two_stores_share_their_rows(database: Database) -> None:
    one, other = open_store(database.url), open_store(database.url)
    assert isinstance(one, PostgresStore)
    first = one.put(Lease(name="a", owner="one"))
    assert other.get("a") == first
    second = other.put(replace(first, owner="other"))
    with pytest.raises(LeaseLost):
        one.put(replace(first, owner="one"))
    assert one.get("a") == second
    one.close()
    other.close()


def test_of_many_that_begin_at_once_one_wins(database: Database) -> None:
    won: list[str] = []
    barrier = threading.Barrier(8)

    def run(name: str) -> None:
        store = PostgresStore(database.url)
        barrier.wait()
        for _ in range(20):
            try:
                store.put(Lease(name="a", owner=name))
                won.append(name)
                break
            except LeaseLost:
                break
        store.close()

    threads = [threading.Thread(target=run, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    store = PostgresStore(database.url)
    assert store.get("a") == Lease(name="a", owner=won[0], revision="1")
    store.close()


def test_two_stores_race_for_many_rows_and_neither_waits_for_ever(database: Database) -> None:
    stores = [PostgresStore(database.url) for _ in range(4)]
    names = [f"n{number:03}" for number in range(300)]
    base = stores[0].put_all([Lease(name=name) for name in names])
    barrier = threading.Barrier(len(stores))
    won: list[list[str]] = [[] for _ in stores]

    def run(number: int) -> None:
        rows = [replace(row, owner=str(number)) for row in base if isinstance(row, Lease)]
        barrier.wait()
        outcomes = stores[number].put_all(rows if number % 2 else rows[::-1])
        won[number] = [each.name for each in outcomes if isinstance(each, Lease)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(name for names in won for name in names) == names
    owned = {row.name: row.owner for row in stores[0].list("")}
    assert owned == {name: str(number) for number, names in enumerate(won) for name in names}
    for store in stores:
        store.close()


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


def test_a_row_is_lost_whatever_isolation_the_database_prefers(database: Database) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        name, setting = database.name, "default_transaction_isolation"
        connection.execute(f'ALTER DATABASE "{name}" SET {setting} = serializable'.encode())
    store = PostgresStore(database.url)
    store.put(Lease(name="a"))
    assert store._run("SHOW transaction_isolation", {}) == [("read committed",)]
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


def test_it_pickles_and_shows_no_password(database: Database) -> None:
    store = PostgresStore(database.url.replace("postgres@", "postgres:hunter22@"))
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get("a") is None
    assert "hunter22" not in repr(copy)
    copy.close()


def test_what_was_put_is_on_disk_whatever_the_database_prefers(database: Database) -> None:
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(
            f'ALTER DATABASE "{database.name}" SET synchronous_commit = off'.encode()
        )
    store = PostgresStore(database.url)
    store.put(Lease(name="a"))
    assert store._run("SHOW synchronous_commit", {}) == [("on",)]
    store.close()
