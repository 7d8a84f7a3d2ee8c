"""How many leases a host takes: the table of cases, and what holds for all."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.leases import Lease
from penstock.leases.balance import Taking, balance

ME = "me"


def leases(**owned: int) -> list[Lease]:
    """So many leases of each owner; those of `free` are nobody's."""
    return [
        Lease(name=f"{owner}{number}", owner="" if owner == "free" else owner)
        for owner, count in owned.items()
        for number in range(count)
    ]


def names(count: int, owner: str) -> set[str]:
    return {f"{owner}{number}" for number in range(count)}


# What each owner has -> how many are taken, from whom, and why.
CASES = {
    "there are none": ({}, 0, "", ""),
    "only mine": ({ME: 3}, 0, "", ""),
    "two are free": ({"free": 2}, 2, "", "free"),
    "the other has two": ({"a": 2}, 1, "a", "steal"),
    "a 5, b 10, me 0": ({"a": 5, "b": 10}, 1, "b", "steal"),
    "b 10, a 5, me 0": ({"b": 10, "a": 5}, 1, "b", "steal"),
    "the other 5, me 6": ({"a": 5, ME: 6}, 0, "", ""),
    "the other 5, me 5": ({"a": 5, ME: 5}, 0, "", ""),
    "the other 4, me 3": ({"a": 4, ME: 3}, 0, "", ""),
    "the other 4, me 2": ({"a": 4, ME: 2}, 1, "a", "steal"),
    "a 10, b 10, me 8: the last among equals": ({"a": 10, "b": 10, ME: 8}, 1, "b", "steal"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_host_takes_its_share(case: str) -> None:
    owned, count, owner, reason = CASES[case]
    found = balance(leases(**owned), ME)
    assert len(found) == count
    assert all((each.lease.owner, each.reason) == (owner, reason) for each in found)


@pytest.mark.parametrize(
    ("live", "over", "limits", "count"),
    [
        (0, 2, {}, 2),
        (3, 1, {}, 1),
        (1, 10, {}, 6),
        (1, 10, {"min_partitions": 7}, 7),
        (1, 10, {"max_partitions": 3}, 3),
    ],
)
def test_expired_leases_come_before_stealing(
    live: int, over: int, limits: dict[str, int], count: int
) -> None:
    rows = leases(a=live, dead=over)
    found = balance(rows, ME, expired=names(over, "dead"), **limits)
    assert [(each.lease.owner, each.reason) for each in found] == [("dead", "expired")] * count


def test_expired_leases_of_a_live_owner_are_not_its_own() -> None:
    found = balance(leases(a=4), ME, expired={"a0", "a1"})
    assert found == [Taking(each, "expired") for each in leases(a=2)]


def test_what_was_asked_for_counts_as_the_host_that_asked() -> None:
    rows = [replace(row, properties={"asked_by": ME}) for row in leases(a=2)] + leases(b=2)
    assert balance(rows, ME) == []
    (stolen,) = balance([*leases(a=4), *rows], "c")
    assert stolen.lease.owner == "a" and not stolen.lease.properties


def test_the_minimum_is_stronger_than_the_maximum() -> None:
    assert len(balance(leases(free=9), ME, min_partitions=5, max_partitions=3)) == 5


def test_it_is_public() -> None:
    assert penstock.balance is balance


owners = st.sampled_from(["", "a", "b", "c", ME])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Lease], set[str]]:
    rows = [
        Lease(name=str(number), owner=owner)
        for number, owner in enumerate(draw(st.lists(owners, max_size=30)))
    ]
    over = draw(st.sets(st.sampled_from([row.name for row in rows] or ["x"])))
    return rows, {row.name for row in rows if row.name in over and row.owner not in ("", ME)}


@given(worlds())
def test_nothing_live_is_taken_unless_it_is_one_that_is_stolen(
    world: tuple[list[Lease], set[str]],
) -> None:
    rows, expired = world
    found = balance(rows, ME, expired=expired)
    stolen = [each for each in found if each.reason == "steal"]
    assert len(stolen) <= 1 and (not stolen or len(found) == 1)
    for lease, reason in found:
        assert lease.owner != ME
        assert reason == (
            "free" if not lease.owner else "expired" if lease.name in expired else "steal"
        )
    assert len({each.lease.name for each in found}) == len(found)


@given(worlds(), st.integers(0, 5), st.integers(0, 5))
def test_the_limits_hold(world: tuple[list[Lease], set[str]], least: int, most: int) -> None:
    rows, expired = world
    mine = sum(row.owner == ME for row in rows)
    found = balance(rows, ME, expired=expired, min_partitions=least, max_partitions=most)
    if most:
        assert mine + len(found) <= max(most, least, mine)


@given(st.lists(owners, min_size=1, max_size=40), st.integers(1, 4))
def test_hosts_that_take_turns_come_to_equal_shares(owned: list[str], hosts: int) -> None:
    rows = {str(number): Lease(name=str(number), owner=each) for number, each in enumerate(owned)}
    alive = [*"abcd"][:hosts]
    gone = {name for name, row in rows.items() if row.owner and row.owner not in alive}
    for _ in range(len(owned) + 2):
        for host in alive:
            for lease, _reason in balance(list(rows.values()), host, expired=gone):
                rows[lease.name] = replace(lease, owner=host)
                gone.discard(lease.name)
    counts = Counter(dict.fromkeys(alive, 0))
    counts.update(row.owner for row in rows.values())
    assert set(counts) == set(alive)
    assert max(counts.values()) - min(counts.values()) <= 1
