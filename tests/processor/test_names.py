"""A pipeline and a processor of one name: neither goes on at the other's places."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.preflight import check_name
from penstock.config import load_file, load_pipeline
from penstock.leases import Lease, replace
from penstock.leases.sqlite import SqliteStore
from penstock.model.errors import SettingsError
from penstock.model.position import Bookmark, PartitionId
from penstock.processor.settings import ProcessorFile
from penstock.reading.host_positions import HostPositions
from penstock.reading.positions import Positions
from penstock.service.ownership import Ownership
from tests.processor.world import World, memory
from tests.reading.made import place
from tests.waiting import Clock

P0 = PartitionId("p0")


def plain(world: World, backend: str = "memory") -> Positions:
    """As `penstock run` uses them."""
    return Positions(
        world.store,
        f"test/{backend}",
        interval=1,
        event_count=1,
        clock=world.clock,
        owner="pipeline:1:abc",
    )


def run_plain(world: World, backend: str = "memory") -> None:
    positions = plain(world, backend)
    positions.verify_name()
    positions.claim()
    if not positions.load():
        positions.begin({P0: Bookmark(place(19), {})})


@pytest.mark.parametrize("backend", ["memory", "other"])
def test_a_processor_refuses_the_name_of_a_pipeline(backend: str) -> None:
    world = World()
    run_plain(world, backend)
    before = world.store.list("")
    host = world.host("a")
    world.pass_time(100, host)
    assert isinstance(host._error, SettingsError)
    assert "is the position of a pipeline, and this is a processor" in str(host._error)
    assert (host.partitions, world.log) == ([], [])
    assert world.store.list("") == before


@pytest.mark.parametrize("backend", ["memory", "other"])
@pytest.mark.parametrize("is_over", [True, False])
def test_a_pipeline_refuses_the_name_of_a_processor(backend: str, is_over: bool) -> None:
    world = World()
    host = world.host("a", memory(changes=25))
    world.pass_time(10, host)
    if is_over:
        world.leave(host)
    before = world.store.list("")
    with pytest.raises(SettingsError, match="position of a processor, and this is a pipeline"):
        run_plain(world, backend)
    assert world.store.list("") == before


def test_a_row_of_another_kind_that_comes_later_is_refused() -> None:
    world = World()
    run_plain(world)
    positions = HostPositions(world.store, "test/memory", "host")
    with pytest.raises(SettingsError, match="position of a pipeline"):
        positions.survey()


def test_a_processor_does_not_begin_while_a_pipeline_of_its_name_runs() -> None:
    world = World()
    pipeline = Ownership(world.store, "test", instance="elsewhere:1:abc", clock=world.clock)
    assert pipeline.attempt() is None
    pipeline._holder.stop()
    host = world.host("a")
    for _ in range(5):
        pipeline._holder.renew()
        world.pass_time(1, host)
    assert "a pipeline with the name 'test' runs" in str(host._error)
    assert world.log == []
    again = world.host("a")  # the pipeline was killed
    world.pass_time(10, again)
    assert (again._error, again.partitions) == (None, ["p0"])


def without_kinds(world: World) -> None:
    """As earlier versions left the rows."""
    for row in world.store.list(""):
        kept = {key: each for key, each in row.properties.items() if key not in ("kind", "nonce")}
        world.store.put(replace(row, properties=kept))


def test_a_processor_goes_on_at_the_places_of_an_earlier_version_and_makes_them_its_own() -> None:
    world = World()
    host = world.host("a", memory(changes=25))
    world.pass_time(10, host)
    world.leave(host)
    without_kinds(world)
    again = world.host("a", memory(changes=40))
    world.pass_time(10, again)
    assert world.numbers == {"p0": list(range(40))}
    with pytest.raises(SettingsError, match="position of a processor"):
        run_plain(world)


def test_a_pipeline_goes_on_at_the_places_of_an_earlier_version_and_makes_them_its_own() -> None:
    world = World()
    run_plain(world)
    without_kinds(world)
    run_plain(world)
    assert plain(world).rows.list()[0].properties["kind"] == "pipeline"
    assert plain(world).load() == {P0: Bookmark(place(19), {})}


def test_a_processor_knows_the_rows_that_a_pipeline_of_an_earlier_version_left() -> None:
    world = World()
    run_plain(world)
    without_kinds(world)
    host = world.host("a")
    world.pass_time(10, host)
    assert "position of a pipeline" in str(host._error)


FILE = """\
{name}backends:
  - {{name: memory, type: memory}}
{where}"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ProcessorFile]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def made(name: str = "", where: str = "") -> ProcessorFile:
        path = tmp_path / "file.yaml"
        path.write_text(FILE.format(name=f"name: {name}\n" if name else "", where=where))
        return load_file(path, ProcessorFile)

    return made


@pytest.mark.slow
@pytest.mark.parametrize("where", ["", "positions: sqlite:///{}/p.db", "state: {}/s"])
def test_a_file_without_a_name_does_not_begin_anew_where_it_was_called_penstock(
    file: Callable[..., ProcessorFile], where: str, tmp_path: Path
) -> None:
    where = where.format(tmp_path)
    file(where=where).verify_name()  # the first start of all
    url = file("penstock", where).positions
    row = Lease(name="penstock/memory/p0", continuation='{"place": "1:0"}')
    SqliteStore.of_url(url).put(row)
    assert file(where=where).name != "penstock"
    with pytest.raises(SettingsError, match="earlier versions") as raised:
        file(where=where).verify_name()
    assert "name: penstock" in raised.value.hint
    file("penstock", where).verify_name()


def test_a_pipeline_called_penstock_keeps_no_processor_without_a_name_from_beginning(
    file: Callable[..., ProcessorFile], tmp_path: Path
) -> None:
    where = f"positions: sqlite:///{tmp_path}/p.db"
    store: Any = SqliteStore(tmp_path / "p.db")
    clock = Clock()
    positions = Positions(
        store, "penstock/memory", interval=1, event_count=1, clock=clock, owner="x"
    )
    positions.begin({P0: Bookmark(place(19), {})})
    file(where=where).verify_name()


@pytest.mark.slow
@pytest.mark.parametrize("is_running", [False, True])
def test_the_preflight_refuses_the_name_of_the_other_kind(
    file: Callable[..., ProcessorFile], tmp_path: Path, is_running: bool
) -> None:
    where = f"positions: sqlite:///{tmp_path}/p.db"
    store = SqliteStore(tmp_path / "p.db")
    processor = file("shop", where)
    path = tmp_path / "pipeline.yaml"
    path.write_text(FILE.format(name="name: shop\n", where=f"{where}\nsink: {{type: memory}}\n"))
    pipeline = load_pipeline(path)
    assert [*check_name(processor), *check_name(pipeline)] == []
    clock = Clock()
    if is_running:
        owner = Ownership(store, "shop", instance="x", clock=clock)
        assert owner.attempt() is None
        expected = "a pipeline with the name 'shop' runs"
    else:
        Positions(store, "shop/memory", interval=1, event_count=1, clock=clock, owner="x").begin(
            {P0: Bookmark(place(19), {})}
        )
        expected = "is the position of a pipeline, and this is a processor"
    (found,) = check_name(processor)
    assert (found.level, expected in found.message) == ("error", True)
    assert "`name`" in found.remedy
    assert list(check_name(pipeline)) == []
    if is_running:
        owner.release()
    for row in store.list("shop/"):
        store.put(replace(row, properties={"kind": "processor"}))
    levels = [each.level for each in check_name(pipeline)]
    assert levels == ([] if is_running else ["error"])
