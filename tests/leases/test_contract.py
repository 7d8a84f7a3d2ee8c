"""What every lease store promises; a new store adds a line to STORES."""

import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from examples.file_store import FileStore
from penstock.leases import Lease, LeaseStore
from penstock.leases.cosmos import CosmosStore
from penstock.leases.etcd import EtcdStore
from penstock.leases.first_start import FirstStart
from penstock.leases.holder import LeaseHolder
from penstock.leases.memory import MemoryStore
from penstock.leases.mongodb import MongoStore
from penstock.leases.nats import NatsStore
from penstock.leases.owned import OwnedRows
from penstock.leases.postgres import PostgresStore
from penstock.leases.sqlite import SqliteStore
from penstock.model.errors import LeaseLost, Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.reading.host_positions import HostPositions
from tests.cosmos.reading import store_url as cosmos_url
from tests.cosmos.server import CosmosServer
from tests.servers import Database, Etcd, Nats

STORES: dict[str, Callable[[Path], LeaseStore]] = {
    "file": lambda folder: FileStore(f"jsonfile://{folder}/leases.json"),
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "leases.db"),
}


@pytest.fixture(params=[*sorted(STORES), "cosmos", "etcd", "mongodb", "nats", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LeaseStore]:
    if request.param == "postgres":
        database: Database = request.getfixturevalue("database")
        found: LeaseStore = PostgresStore(database.url)
    elif request.param == "etcd":
        etcd: Etcd = request.getfixturevalue("etcd")
        found = EtcdStore(f"{etcd.url}/tests/{uuid.uuid4().hex}")
    elif request.param == "cosmos":
        with CosmosServer() as cosmos:
            found = CosmosStore(cosmos_url(cosmos))
            yield found
        return
    elif request.param == "mongodb":
        mongo_url: str = request.getfixturevalue("lease_mongo_url")
        found = MongoStore(mongo_url)
    elif request.param == "nats":
        server: Nats = request.getfixturevalue("nats")
        found = NatsStore(f"{server.url}/{uuid.uuid4().hex}")
    else:
        found = STORES[request.param](tmp_path)
    yield found
    found.close()


def copy_of(store: LeaseStore) -> LeaseStore:
    """Over a connection of its own; what lives in memory is the same."""
    if isinstance(store, MemoryStore):
        return store
    copy: LeaseStore = pickle.loads(pickle.dumps(store))
    return copy


@pytest.mark.slow
def test_a_row_that_was_never_put_is_none(store: LeaseStore) -> None:
    assert store.get("a") is None


def test_what_was_put_is_got(store: LeaseStore) -> None:
    put = store.put(Lease(name="a", owner="me", continuation='{"é": 1}'))
    assert store.get("a") == put == replace(put, owner="me", continuation='{"é": 1}')
    assert put.revision


def test_properties_are_kept_beside_the_continuation(store: LeaseStore) -> None:
    properties = {"since": "2026-11-24", "term": 60.5, "é.$x": {"deep": [1, None, True, "a\x1eb"]}}
    first = store.put(Lease(name="a", continuation='{"a": 1}', properties=properties))
    assert store.get("a") == first
    assert store.list("") == [first]
    assert (first.continuation, first.properties) == ('{"a": 1}', properties)
    (second,) = store.put_all([replace(first, continuation="", properties={"mine": 1})])
    assert isinstance(second, Lease)
    assert store.get("a") == second == replace(second, continuation="", properties={"mine": 1})
    third = store.put(replace(second, properties={}))
    assert store.get("a") == third == replace(third, properties={})


def test_a_put_with_the_current_revision_wins(store: LeaseStore) -> None:
    first = store.put(Lease(name="a"))
    second = store.put(replace(first, continuation="2"))
    assert second.revision != first.revision
    assert store.get("a") == second


@pytest.mark.slow
def test_any_text_is_a_name(store: LeaseStore) -> None:
    for name in ("a/b c.d*>=%$", "ü/€", ".", "^a", "=41", "x" * 200, "\U0010ffff"):
        put = store.put(Lease(name=name, owner="me"))
        assert store.get(name) == put
        assert store.list(name[:2]) == [put]
        store.delete(put)
        assert store.list("") == []


def test_a_put_with_an_old_revision_is_lost(store: LeaseStore) -> None:
    other = copy_of(store)
    first = store.put(Lease(name="a"))
    assert other.get("a") == first
    second = other.put(replace(first, continuation="2"))
    other.close()
    with pytest.raises(LeaseLost, match="'a'"):
        store.put(replace(first, continuation="3"))
    assert store.get("a") == second


def test_a_first_put_of_a_row_that_exists_is_lost(store: LeaseStore) -> None:
    first = store.put(Lease(name="a", owner="me"))
    with pytest.raises(LeaseLost):
        store.put(Lease(name="a", owner="you"))
    assert store.get("a") == first


@pytest.mark.parametrize("revision", ["7", "0", '"0000-etag"', "9" * 30])
def test_a_put_of_a_revision_that_never_was_is_lost(store: LeaseStore, revision: str) -> None:
    with pytest.raises(LeaseLost):
        store.put(Lease(name="a", revision=revision))
    assert store.get("a") is None


def test_a_deleted_row_is_gone(store: LeaseStore) -> None:
    store.delete(store.put(Lease(name="a")))
    assert store.get("a") is None
    assert store.list("") == []


def test_a_delete_with_an_old_revision_is_lost(store: LeaseStore) -> None:
    first = store.put(Lease(name="a"))
    second = store.put(first)
    for lease in (first, Lease(name="a")):
        with pytest.raises(LeaseLost):
            store.delete(lease)
    assert store.get("a") == second


def test_deleting_what_never_was_is_nothing(store: LeaseStore) -> None:
    store.delete(Lease(name="a"))
    with pytest.raises(LeaseLost):
        store.delete(Lease(name="a", revision="1"))


def test_a_row_that_is_made_again_does_not_repeat_a_revision(store: LeaseStore) -> None:
    first = store.put(Lease(name="a"))
    store.delete(first)
    store.put(Lease(name="a", owner="new"))
    with pytest.raises(LeaseLost):
        store.put(replace(first, owner="zombie"))
    found = store.get("a")
    assert found is not None
    assert found.owner == "new"


def test_a_list_has_the_rows_of_the_prefix_by_name(store: LeaseStore) -> None:
    for name in ("b/2", "a/1", "b/1", "b%", "B/1"):
        store.put(Lease(name=name))
    assert [lease.name for lease in store.list("b/")] == ["b/1", "b/2"]
    assert len(store.list("")) == 5


def test_of_many_threads_that_put_one_wins(store: LeaseStore) -> None:
    base = store.put(Lease(name="a"))
    start = threading.Barrier(8)
    won: list[Lease] = []

    def race(owner: str) -> None:
        start.wait()
        with suppress(LeaseLost):
            won.append(store.put(replace(base, owner=owner)))

    threads = [threading.Thread(target=race, args=(f"t{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.get("a")] == won


def test_many_rows_are_put_in_one_write(store: LeaseStore) -> None:
    known = store.put(Lease(name="m"))
    rows = [Lease(name="z"), replace(known, owner="me"), Lease(name="a", continuation="1")]
    outcomes = store.put_all(rows)
    assert [outcome for outcome in outcomes if isinstance(outcome, LeaseLost)] == []
    assert outcomes == [store.get("z"), store.get("m"), store.get("a")]
    assert store.put_all([]) == []


@pytest.mark.slow
def test_a_row_that_is_lost_does_not_fail_the_others(store: LeaseStore) -> None:
    taken = store.put(Lease(name="b"))
    store.put(replace(taken, owner="another"))
    deleted = store.put(Lease(name="d"))
    store.delete(deleted)
    first, lost, existing, gone, last = store.put_all(
        [Lease(name="a"), replace(taken, owner="me"), Lease(name="b"), deleted, Lease(name="c")]
    )
    assert [first, last] == [store.get("a"), store.get("c")]
    for outcome, name in ((lost, "'b'"), (existing, "'b'"), (gone, "'d'")):
        assert isinstance(outcome, LeaseLost)
        assert name in str(outcome)
    found = store.get("b")
    assert found is not None
    assert found.owner == "another"
    assert store.get("d") is None


def test_a_row_that_is_put_twice_in_one_write_is_put_once(store: LeaseStore) -> None:
    first, second = store.put_all([Lease(name="a", owner="1"), Lease(name="a", owner="2")])
    assert first == store.get("a")
    assert isinstance(second, LeaseLost)


@pytest.mark.slow
def test_of_many_writers_of_many_rows_one_wins_each_row(store: LeaseStore) -> None:
    names = [f"n{number:02}" for number in range(40)]
    base = {row.name: row for row in (store.put(Lease(name=name)) for name in names[:20])}
    start = threading.Barrier(6)
    won: list[Lease] = []
    failed: list[BaseException] = []

    def race(owner: int) -> None:
        # Each in another order.
        turned = names[owner * 7 :] + names[: owner * 7]
        rows = [replace(base.get(name, Lease(name=name)), owner=f"t{owner}") for name in turned]
        mine = copy_of(store)
        start.wait()
        try:
            won.extend(each for each in mine.put_all(rows) if isinstance(each, Lease))
            mine.close()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(won, key=lambda row: row.name) == store.list("")
    assert [row.name for row in store.list("")] == names


@pytest.mark.slow
def test_holders_take_and_hand_over_leases(store: LeaseStore) -> None:
    store.put_all([Lease(name=f"s/{number}") for number in range(3)])
    first, second = (LeaseHolder(OwnedRows(store, "s/", owner)) for owner in ("first", "second"))
    rows = store.list("s/")
    assert first.take(first.free(rows)) == ["s/0", "s/1", "s/2"]
    assert second.take(rows) == [], "they changed meanwhile"
    assert second.free(store.list("s/")) == []
    second.ask(store.list("s/")[:2])
    first.renew()
    assert first.asked == {"s/0": "second", "s/1": "second"}
    first.release(first.asked)
    assert second.take(second.free(store.list("s/"))) == ["s/0", "s/1"]
    first.renew()
    second.renew()
    assert (first.held, second.held) == (["s/2"], ["s/0", "s/1"])
    store.put_all([replace(row, owner="third") for row in store.list("s/")[1:]])
    first.renew()
    second.renew()
    assert (first.held, second.held) == ([], ["s/0"])
    assert (first.lost, second.lost) == ({"s/2"}, {"s/1"})


@pytest.mark.slow
def test_of_hosts_that_start_together_one_asks_the_source(store: LeaseStore) -> None:
    asked: list[str] = []
    away: list[Unavailable] = []
    beginning = threading.Barrier(4)
    done: list[str] = []

    def start(host: str) -> None:
        def begin() -> Bookmarks:
            asked.append(host)
            return {PartitionId(f"p{number}"): Bookmark(mark={"by": host}) for number in range(3)}

        mine = copy_of(store)  # several make the table together
        kept = HostPositions(mine, "s/b", host)
        first = FirstStart(mine, "s/b", host, begin=begin, make=kept.plant)
        beginning.wait(60)
        until = time.monotonic() + 60
        while not begun(first):
            assert time.monotonic() < until
            time.sleep(0.01)
        mine.close()
        done.append(host)

    def begun(first: FirstStart) -> bool:
        try:
            return first.attempt()
        except Unavailable as error:  # a machine that is busy
            away.append(error)
            return False

    threads = [threading.Thread(target=start, args=(f"h{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == ["h0", "h1", "h2", "h3"]
    assert len(asked) <= 1 + len(away)
    rows = store.list("s/b/")
    assert len(rows) == 3
    assert len({row.continuation for row in rows}) == 1, "they begin where one host was told"


def test_a_store_that_was_closed_opens_again(store: LeaseStore) -> None:
    put = store.put(Lease(name="a"))
    store.close()
    store.close()
    assert store.get("a") == put
