"""Several sources, of one pipeline or of several, in one ledger: what befalls one is its own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.model.position import PartitionId
from tests.servers import Database, Postgres
from tests.sinks.tables.kept import Kept
from tests.waiting import until

MADE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
FIRST, SECOND = PartitionId("eu"), PartitionId("us")
# What is kept of the destination, and put back.
_OWN = "penstock.ledger", "penstock.source", "penstock.known", "t"


@pytest.fixture
def sources(postgres: Postgres) -> Iterator[dict[str, Database]]:
    with ExitStack() as stack:
        made = {sid: stack.enter_context(postgres.database()) for sid in (FIRST, SECOND)}
        for sid, each in made.items():
            each.execute(MADE)
            each.execute("INSERT INTO t SELECT n, %s FROM generate_series(1, 100) n", [sid])
        yield made


class Shared:
    """A destination with all sources, and what flows into it: with `pipelines` one for each source,
    whose backends have one name, or one pipeline for all."""

    def __init__(self, target: Database, folder: Path, *, pipelines: bool) -> None:
        self.target, self._folder, self._pipelines = target, folder, pipelines
        target.execute("CREATE TABLE t (sid text, id int, v text, PRIMARY KEY (sid, id))")

    def flows(self, stack: ExitStack, sources: dict[str, Database], **options: Any) -> list[Kept]:
        """Entered; the order of `sources`."""
        divided = [{sid: each} for sid, each in sources.items()] if self._pipelines else [sources]
        saves = options.pop("saves", dict.fromkeys(sources, True))
        found = []
        for some in divided:
            store = self._folder / ("-".join(some) if self._pipelines else "all")
            flow = Kept(some, self.target, {"t": {}}, store, **options)
            flow.saves = {PartitionId(sid) for sid in some if saves[sid]}
            found.append(stack.enter_context(flow))
        return found

    def keep(self) -> None:
        self.target.execute("CREATE SCHEMA kept")
        for name in _OWN:
            self.target.execute(f"CREATE TABLE kept.{name.rpartition('.')[2]} AS TABLE {name}")

    def put_back(self) -> None:
        own = "".join(
            f"INSERT INTO {name} OVERRIDING SYSTEM VALUE TABLE kept.{name.rpartition('.')[2]};"
            for name in _OWN
        )
        self.target.execute(f"BEGIN; TRUNCATE {', '.join(_OWN)}; {own} COMMIT")

    def equals(self, sid: str, source: Database) -> bool:
        rows = "SELECT id, v FROM t {} ORDER BY id"
        own = self.target.execute(rows.format("WHERE sid = %s"), [sid])
        return own == source.execute(rows.format(""))

    def row(self, sid: str) -> list[tuple[Any, ...]]:
        """What the ledger says of the loads of a source's table."""
        return self.target.execute(
            "SELECT state, point, losses, is_again FROM penstock.ledger WHERE sid = %s", [sid]
        )


@pytest.fixture(params=["a pipeline", "two pipelines"])
def shared(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Shared:
    return Shared(database, tmp_path, pipelines=request.param == "two pipelines")


def arrived(shared: Shared, sources: dict[str, Database], flows: list[Kept]) -> None:
    """All that the sources have is in the target, and saved."""

    def are_equal() -> bool:
        for flow in flows:
            flow.check()
        return all(shared.equals(*each) for each in sources.items())

    until(are_equal, 60)
    until(lambda: all(flow.is_saved for flow in flows), 60)


def change(sources: dict[str, Database], number: int) -> None:
    for each in sources.values():
        each.execute(
            f"INSERT INTO t VALUES ({number}, 'more'); DELETE FROM t WHERE id = {number}-60"
        )


def test_a_source_that_is_another_server_is_its_own_loss(
    shared: Shared, sources: dict[str, Database], postgres_of: Callable[[int], Postgres]
) -> None:
    with ExitStack() as stack:
        flows = shared.flows(stack, sources)
        change(sources, 101)
        arrived(shared, sources, flows)
        for flow in flows:  # rows are all there before a table is live
            flow.loaded()
    before = shared.row(SECOND)
    with postgres_of(18).database() as moved:
        moved.execute(MADE)
        moved.execute("INSERT INTO t VALUES (1, 'moved')")
        now = {FIRST: moved, SECOND: sources[SECOND]}
        with ExitStack() as stack:
            flows = shared.flows(stack, now)
            change(now, 102)
            until(lambda: "another one" in flows[0].losses_of.get(FIRST, ""), 60)
            until(lambda: shared.equals(SECOND, now[SECOND]), 60)
        with ExitStack() as stack:
            flows = shared.flows(stack, now, on_gap="resnapshot")
            until(lambda: flows[0].gap and not flows[0].gap["stale"], 60)
            change(now, 103)
            arrived(shared, now, flows)
    assert shared.row(SECOND) == before, "what is well is not loaded anew"


def test_each_source_finds_what_it_lacks_in_a_destination_that_went_back(
    shared: Shared, sources: dict[str, Database]
) -> None:
    """The first has not saved what is lost, so that it is read again; the second has."""
    with ExitStack() as stack:
        flows = shared.flows(stack, sources)
        change(sources, 101)
        arrived(shared, sources, flows)
    shared.keep()
    with ExitStack() as stack:
        flows = shared.flows(stack, sources, saves={FIRST: False, SECOND: True})
        change(sources, 102)
        arrived(shared, sources, flows)
    before = shared.row(FIRST)
    shared.put_back()
    with ExitStack() as stack:
        flows = shared.flows(stack, sources)
        until(lambda: "the destination went back" in flows[-1].losses_of.get(SECOND, ""), 60)
        until(lambda: shared.equals(FIRST, sources[FIRST]), 60)
        assert not flows[0].losses_of.get(FIRST)
    with ExitStack() as stack:
        flows = shared.flows(stack, sources, on_gap="resnapshot")
        until(lambda: flows[-1].gap and not flows[-1].gap["stale"], 60)
        change(sources, 103)
        arrived(shared, sources, flows)
    assert shared.row(FIRST) == before, "what is well is not loaded anew"


def test_a_pipeline_leaves_no_table_of_another(
    shared: Shared, sources: dict[str, Database]
) -> None:
    """Though their backends have one name: its map is not theirs."""
    with ExitStack() as stack:
        flows = shared.flows(stack, sources)
        arrived(shared, sources, flows)
    before = shared.row(FIRST), shared.row(SECOND)
    other = Kept(sources, shared.target, {"else": {}}, shared._folder / "other")
    assert not other._sink.leave("shop", None, {PartitionId("asia")})
    assert not other._sink.leave("shop", [PartitionId("asia")], {PartitionId("asia")})
    assert (shared.row(FIRST), shared.row(SECOND)) == before
    assert other._sink.leave("shop", None, {FIRST})
    assert (shared.row(FIRST)[0][0], shared.row(SECOND)) == ("left", before[1])


def test_a_server_with_the_names_of_another_replaces_none_of_its_rows(
    sources: dict[str, Database],
    database: Database,
    postgres_of: Callable[[int], Postgres],
    tmp_path: Path,
) -> None:
    """A pipeline file that was copied for another server, and the same destination."""
    shared = Shared(database, tmp_path, pipelines=False)
    first = sources[FIRST]
    with postgres_of(18).database() as other, ExitStack() as stack:
        other.execute(MADE)
        other.execute("INSERT INTO t VALUES (1, 'other')")
        one = stack.enter_context(Kept({FIRST: first}, database, {"t": {}}, tmp_path / "one"))
        arrived(shared, {FIRST: first}, [one])
        first.execute("INSERT INTO t VALUES (101, 'more')")
        arrived(shared, {FIRST: first}, [one])
        before = shared.row(FIRST)
        two = stack.enter_context(Kept({FIRST: other}, database, {"t": {}}, tmp_path / "two"))
        until(lambda: "the server is another one" in two.lost, 60)
        change({FIRST: first}, 102)
        arrived(shared, {FIRST: first}, [one])
        assert shared.row(FIRST) == before, "nothing is loaded from the other"
