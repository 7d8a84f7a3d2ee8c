"""The rows of one owner: what another wrote is lost, and what we wrote is ours, answered or not."""

from collections.abc import Callable, Sequence

import pytest

from penstock.leases import Lease, replace
from penstock.leases.memory import MemoryStore
from penstock.leases.owned import OwnedRows
from penstock.model.errors import LeaseLost, Unavailable

NAMES = ["s/a", "s/b"]


class Store(MemoryStore):
    """`late`: answers are lost. `meanwhile` happens before each write."""

    late = False
    meanwhile: Callable[[], None] | None = None

    def put_all(self, leases: Sequence[Lease]) -> Sequence[Lease | LeaseLost]:  # type: ignore[override]
        if self.meanwhile:
            self.meanwhile()
        answers = super().put_all(leases)
        if self.late:
            raise Unavailable("the answer is lost")
        return answers

    def by(self, owner: str, name: str = "s/a", text: str = "") -> None:
        """Somebody writes a row."""
        row = self.get(name) or Lease(name=name)
        self.put(replace(row, owner=owner, continuation=text or row.continuation))


def writing(text: str, owner: str = "me") -> Callable[[Lease], Lease]:
    return lambda row: replace(row, owner=owner, continuation=text)


def made(*, exact: bool = False) -> tuple[Store, OwnedRows]:
    """With both rows, which are ours."""
    store = Store()
    rows = OwnedRows(store, "s/", "me", exact=exact)
    assert set(rows.write(NAMES, writing("1"))) == set(NAMES)
    return store, rows


@pytest.mark.parametrize("exact", [True, False])
def test_a_row_that_another_owner_wrote_is_lost_and_the_others_are_written(exact: bool) -> None:
    store, rows = made(exact=exact)
    store.by("you")
    assert set(rows.write(NAMES, writing("2"))) == {"s/b"}
    assert rows.lost == {"s/a"}
    assert [row.continuation for row in rows.list()] == ["1", "2"]


@pytest.mark.parametrize("exact", [True, False])
def test_a_lost_row_is_not_made_again_after_its_owner_removed_it(exact: bool) -> None:
    store, rows = made(exact=exact)
    store.by("you")
    assert rows.verify() == []
    row = store.get("s/a")
    assert row is not None
    store.delete(row)
    assert rows.write(["s/a"], writing("2")) == {}
    assert store.get("s/a") is None
    rows.adopt([Lease(name="s/a")])
    assert set(rows.write(["s/a"], writing("3"))) == {"s/a"}


def test_a_row_that_keeps_our_name_is_written_as_it_is_now() -> None:
    store, rows = made()
    store.by("me", text="1, and asked for")
    written = rows.write(NAMES, lambda row: replace(row, continuation=f"{row.continuation}!"))
    assert written["s/a"].continuation == "1, and asked for!"
    assert rows.lost == set()


def test_a_row_with_our_name_that_another_process_took_is_lost() -> None:
    store, rows = made()
    row = store.get("s/a")
    assert row is not None
    store.put(replace(row, properties={"nonce": "drawn by another process"}))
    assert set(rows.write(NAMES, writing("2"))) == {"s/b"}
    assert rows.lost == {"s/a"}


def test_where_processes_share_a_name_a_row_that_another_wrote_is_lost() -> None:
    store, rows = made(exact=True)
    store.by("me", text="another process of ours")
    assert set(rows.write(NAMES, writing("2"))) == {"s/b"}
    assert rows.lost == {"s/a"}


@pytest.mark.parametrize("exact", [True, False])
def test_what_was_written_without_an_answer_is_ours(exact: bool) -> None:
    store, rows = made(exact=exact)
    store.late = True
    with pytest.raises(Unavailable):
        rows.write(NAMES, writing("2"))
    store.late = False
    assert [row.continuation for row in rows.resolve()] == ["2", "2"]
    assert rows.resolve() == []


@pytest.mark.parametrize("exact", [True, False])
def test_a_write_after_one_without_an_answer_reads_first(exact: bool) -> None:
    store, rows = made(exact=exact)
    store.late = True
    with pytest.raises(Unavailable):
        rows.write(NAMES, writing("2"))
    store.late = False
    assert set(rows.write(NAMES, writing("3"))) == set(NAMES)
    assert rows.lost == set()


def test_a_row_that_others_change_all_the_time_is_left_for_later() -> None:
    store, rows = made()
    store.meanwhile = lambda: store.by("me")
    with pytest.raises(Unavailable, match="s/a"):
        rows.write(NAMES, writing("2"))
    store.meanwhile = None
    assert set(rows.write(NAMES, writing("3"))) == set(NAMES)


def test_a_row_that_was_changed_is_not_removed() -> None:
    store, rows = made()
    store.by("me", text="asked for")
    rows.remove("s/a")
    assert store.get("s/a") is not None
    assert rows.lost == set()
    rows.remove("s/a")
    assert store.get("s/a") is None, "it was read again"
    store.by("you", "s/b")
    rows.remove("s/b")
    assert store.get("s/b") is not None
    assert rows.lost == {"s/b"}


def test_nothing_known_is_nothing_to_verify() -> None:
    class Away(MemoryStore):
        def list(self, prefix: str) -> list[Lease]:
            raise Unavailable("it is not asked")

    assert OwnedRows(Away(), "s/", "me").verify() == []
