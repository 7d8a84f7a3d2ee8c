"""What every positions store promises: `CLAIMS`, each called with an empty store."""

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from penstock.leases import Lease, LeaseStore
from penstock.leases.first_start import FirstStart
from penstock.leases.holder import LeaseHolder
from penstock.leases.memory import MemoryStore
from penstock.leases.owned import OwnedRows
from penstock.model.errors import LeaseLost, Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.reading.host_positions import HostPositions
from penstock.testing.claims import Broken, hold, same


def _copy_of(store: LeaseStore) -> LeaseStore:
    """Over a connection of its own; what lives in memory is the same."""
    if isinstance(store, MemoryStore):
        return store
    copy: LeaseStore = pickle.loads(pickle.dumps(store))  # noqa: S301
    return copy


@contextmanager
def _losing(name: str = "") -> Iterator[None]:
    """What is refused, with this name."""
    try:
        yield
    except LeaseLost as error:
        hold(name in str(error), f"no name in {error}")
    else:
        raise Broken("it was taken, and another revision is there")


def a_row_that_was_never_put_is_none(store: LeaseStore) -> None:
    same(store.get("a"), None, "the row")


def what_was_put_is_got(store: LeaseStore) -> None:
    put = store.put(Lease(name="a", owner="me", continuation='{"é": 1}'))
    same(
        [store.get("a"), put],
        [replace(put, owner="me", continuation='{"é": 1}')] * 2,
        "store.get(a)",
    )
    hold(put.revision, "no revision")


def properties_are_kept_beside_the_continuation(store: LeaseStore) -> None:
    properties = {"since": "2026-11-24", "term": 60.5, "é.$x": {"deep": [1, None, True, "a\x1eb"]}}
    first = store.put(Lease(name="a", continuation='{"a": 1}', properties=properties))
    same(store.get("a"), first, "store.get(a)")
    same(store.list(""), [first], "store.list()")
    same(
        (first.continuation, first.properties),
        ('{"a": 1}', properties),
        "(first.continuation, first.properties)",
    )
    (second,) = store.put_all([replace(first, continuation="", properties={"mine": 1})])
    if isinstance(second, LeaseLost):
        raise second
    same(
        [store.get("a"), second],
        [replace(second, continuation="", properties={"mine": 1})] * 2,
        "store.get(a)",
    )
    third = store.put(replace(second, properties={}))
    same([store.get("a"), third], [replace(third, properties={})] * 2, "store.get(a)")


def a_put_with_the_current_revision_wins(store: LeaseStore) -> None:
    first = store.put(Lease(name="a"))
    second = store.put(replace(first, continuation="2"))
    hold(second.revision != first.revision, f"again the revision {first.revision}")
    same(store.get("a"), second, "store.get(a)")


def any_text_is_a_name(store: LeaseStore) -> None:
    for name in ("a/b c.d*>=%$", "ü/€", ".", "^a", "=41", "x" * 200, "\U0010ffff"):
        put = store.put(Lease(name=name, owner="me"))
        same(store.get(name), put, "store.get(name)")
        same(store.list(name[:2]), [put], "store.list(name[:2])")
        store.delete(put)
        same(store.list(""), [], "store.list()")


def a_put_with_an_old_revision_is_lost(store: LeaseStore) -> None:
    other = _copy_of(store)
    first = store.put(Lease(name="a"))
    same(other.get("a"), first, "other.get(a)")
    second = other.put(replace(first, continuation="2"))
    other.close()
    with _losing("'a'"):
        store.put(replace(first, continuation="3"))
    same(store.get("a"), second, "store.get(a)")


def a_first_put_of_a_row_that_exists_is_lost(store: LeaseStore) -> None:
    first = store.put(Lease(name="a", owner="me"))
    with _losing():
        store.put(Lease(name="a", owner="you"))
    same(store.get("a"), first, "store.get(a)")


def a_put_of_a_revision_that_never_was_is_lost(store: LeaseStore) -> None:
    for revision in ("7", "0", '"0000-etag"', "9" * 30):
        with _losing():
            store.put(Lease(name="a", revision=revision))
    same(store.get("a"), None, "the row")


def a_deleted_row_is_gone(store: LeaseStore) -> None:
    store.delete(store.put(Lease(name="a")))
    same(store.get("a"), None, "the row")
    same(store.list(""), [], "store.list()")


def a_delete_with_an_old_revision_is_lost(store: LeaseStore) -> None:
    first = store.put(Lease(name="a"))
    second = store.put(first)
    for lease in (first, Lease(name="a")):
        with _losing():
            store.delete(lease)
    same(store.get("a"), second, "store.get(a)")


def deleting_what_never_was_is_nothing(store: LeaseStore) -> None:
    store.delete(Lease(name="a"))
    with _losing():
        store.delete(Lease(name="a", revision="1"))


def a_row_that_is_made_again_does_not_repeat_a_revision(store: LeaseStore) -> None:
    first = store.put(Lease(name="a"))
    store.delete(first)
    store.put(Lease(name="a", owner="new"))
    with _losing():
        store.put(replace(first, owner="zombie"))
    found = store.get("a")
    same(found and found.owner, "new", "found.owner")


def a_list_has_the_rows_of_the_prefix_by_name(store: LeaseStore) -> None:
    for name in ("b/2", "a/1", "b/1", "b%", "B/1"):
        store.put(Lease(name=name))
    same(
        [lease.name for lease in store.list("b/")],
        ["b/1", "b/2"],
        "[lease.name for lease in store.list(b/)]",
    )
    same(len(store.list("")), 5, "len(store.list())")


def of_many_threads_that_put_one_wins(store: LeaseStore) -> None:
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
    same([store.get("a")], won, "[store.get(a)]")


def many_rows_are_put_in_one_write(store: LeaseStore) -> None:
    known = store.put(Lease(name="m"))
    rows = [Lease(name="z"), replace(known, owner="me"), Lease(name="a", continuation="1")]
    outcomes = store.put_all(rows)
    same(
        [outcome for outcome in outcomes if isinstance(outcome, LeaseLost)],
        [],
        "[outcome for outcome in outcomes if isinstance(outcome, Leas",
    )
    same(outcomes, [store.get("z"), store.get("m"), store.get("a")], "outcomes")
    same(store.put_all([]), [], "store.put_all([])")


def a_row_that_is_lost_does_not_fail_the_others(store: LeaseStore) -> None:
    taken = store.put(Lease(name="b"))
    store.put(replace(taken, owner="another"))
    deleted = store.put(Lease(name="d"))
    store.delete(deleted)
    first, lost, existing, gone, last = store.put_all(
        [Lease(name="a"), replace(taken, owner="me"), Lease(name="b"), deleted, Lease(name="c")]
    )
    same([first, last], [store.get("a"), store.get("c")], "[first, last]")
    for outcome, name in ((lost, "'b'"), (existing, "'b'"), (gone, "'d'")):
        hold(isinstance(outcome, LeaseLost), f"found {outcome}")
        hold(name in str(outcome), f"no name in {outcome}")
    found = store.get("b")
    same(found and found.owner, "another", "found.owner")
    same(store.get("d"), None, "the row")


def a_row_that_is_put_twice_in_one_write_is_put_once(store: LeaseStore) -> None:
    first, second = store.put_all([Lease(name="a", owner="1"), Lease(name="a", owner="2")])
    same(first, store.get("a"), "first")
    hold(isinstance(second, LeaseLost), f"found {second}")


def of_many_writers_of_many_rows_one_wins_each_row(store: LeaseStore) -> None:
    names = [f"n{number:02}" for number in range(40)]
    base = {row.name: row for row in (store.put(Lease(name=name)) for name in names[:20])}
    start = threading.Barrier(6)
    won: list[Lease] = []
    failed: list[BaseException] = []

    def race(owner: int) -> None:
        # Each in another order.
        turned = names[owner * 7 :] + names[: owner * 7]
        rows = [replace(base.get(name, Lease(name=name)), owner=f"t{owner}") for name in turned]
        mine = _copy_of(store)
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
    same(failed, [], "failed")
    same(
        sorted(won, key=lambda row: row.name),
        store.list(""),
        "sorted(won, key=lambda row: row.name)",
    )
    same([row.name for row in store.list("")], names, "[row.name for row in store.list()]")


def holders_take_and_hand_over_leases(store: LeaseStore) -> None:
    store.put_all([Lease(name=f"s/{number}") for number in range(3)])
    first, second = (LeaseHolder(OwnedRows(store, "s/", owner)) for owner in ("first", "second"))
    rows = store.list("s/")
    same(first.take(first.free(rows)), ["s/0", "s/1", "s/2"], "first.take(first.free(rows))")
    same(second.take(rows), [], "they changed meanwhile")
    same(second.free(store.list("s/")), [], "second.free(store.list(s/))")
    second.ask(store.list("s/")[:2])
    first.renew()
    same(first.asked, {"s/0": "second", "s/1": "second"}, "first.asked")
    first.release(first.asked)
    same(
        second.take(second.free(store.list("s/"))),
        ["s/0", "s/1"],
        "second.take(second.free(store.list(s/)))",
    )
    first.renew()
    second.renew()
    same((first.held, second.held), (["s/2"], ["s/0", "s/1"]), "(first.held, second.held)")
    store.put_all([replace(row, owner="third") for row in store.list("s/")[1:]])
    first.renew()
    second.renew()
    same((first.held, second.held), ([], ["s/0"]), "(first.held, second.held)")
    same((first.lost, second.lost), ({"s/2"}, {"s/1"}), "(first.lost, second.lost)")


def of_hosts_that_start_together_one_asks_the_source(store: LeaseStore) -> None:
    asked: list[str] = []
    away: list[Unavailable] = []
    beginning = threading.Barrier(4)
    done: list[str] = []

    def start(host: str) -> None:
        def begin() -> Bookmarks:
            asked.append(host)
            return {PartitionId(f"p{number}"): Bookmark(mark={"by": host}) for number in range(3)}

        mine = _copy_of(store)  # several make the table together
        kept = HostPositions(mine, "s/b", host)
        first = FirstStart(mine, "s/b", host, begin=begin, make=kept.plant)
        beginning.wait(60)
        until = time.monotonic() + 60
        while not begun(first):
            hold(time.monotonic() < until, f"{host} does not begin")
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
    same(sorted(done), ["h0", "h1", "h2", "h3"], "sorted(done)")
    hold(len(asked) <= 1 + len(away), f"{asked} asked")
    rows = store.list("s/b/")
    same(len(rows), 3, "len(rows)")
    same(len({row.continuation for row in rows}), 1, "they begin where one host was told")


def a_store_that_was_closed_opens_again(store: LeaseStore) -> None:
    put = store.put(Lease(name="a"))
    store.close()
    store.close()
    same(store.get("a"), put, "store.get(a)")


CLAIMS: Sequence[Callable[[LeaseStore], None]] = (
    a_row_that_was_never_put_is_none,
    what_was_put_is_got,
    properties_are_kept_beside_the_continuation,
    a_put_with_the_current_revision_wins,
    any_text_is_a_name,
    a_put_with_an_old_revision_is_lost,
    a_first_put_of_a_row_that_exists_is_lost,
    a_put_of_a_revision_that_never_was_is_lost,
    a_deleted_row_is_gone,
    a_delete_with_an_old_revision_is_lost,
    deleting_what_never_was_is_nothing,
    a_row_that_is_made_again_does_not_repeat_a_revision,
    a_list_has_the_rows_of_the_prefix_by_name,
    of_many_threads_that_put_one_wins,
    many_rows_are_put_in_one_write,
    a_row_that_is_lost_does_not_fail_the_others,
    a_row_that_is_put_twice_in_one_write_is_put_once,
    of_many_writers_of_many_rows_one_wins_each_row,
    holders_take_and_hand_over_leases,
    of_hosts_that_start_together_one_asks_the_source,
    a_store_that_was_closed_opens_again,
)
