"""A table of a sink that is loading, as a store; on real servers."""

from collections.abc import Iterable

import pytest

from penstock.config import SnapshotSettings
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.model.errors import Unavailable
from penstock.model.position import PartitionId
from penstock.sinks.loading import Part
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.sinks.tables.row_writer import TableRowWriter
from penstock.snapshots.job import Job, RunControl, RunEvent, SnapshotPace
from penstock.snapshots.loading import LoadStore
from penstock.snapshots.reading import TableReader
from tests.progress import Noted
from tests.servers import Database, Postgres
from tests.snapshots.conftest import StatedPipeline
from tests.snapshots.test_interrupted import ENDED


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_load_that_loses_its_source_goes_on_unless_it_is_cancelled(
    is_cancelled: bool, database: Database, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the parts that are left."""
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, note text);"
        "INSERT INTO items SELECT n, 'n' || n FROM generate_series(1, 4000) n"
    )
    feed = PostgresFeed(PostgresSettings(
        connection=database.url, slot=f"s_{database.name}", publication="p",
        create_publication=True,
    ))  # fmt: skip
    feed.begin()
    settings, numbers = SnapshotSettings(chunk_rows=10, slots=1), list[int]()
    control = RunControl(StatedPipeline(), SnapshotPace(settings))
    write = TableRowWriter.write

    def interrupted(writer: TableRowWriter, part: Part, pieces: Iterable[bytes]) -> None:
        numbers.append(part[0])
        if len(numbers) == 3:
            if is_cancelled:
                control.on(RunEvent.CANCEL)
            database.execute(ENDED)
        write(writer, part, pieces)

    monkeypatch.setattr(TableRowWriter, "write", interrupted)
    with postgres.database() as target:
        target.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
        sink = PostgresSink(PostgresSinkSettings(
            connection=target.url, map=[{"backend": "shop", "tables": {"items": None}}],
            initial=True,
        ))  # fmt: skip
        sink.enter("shop", PartitionId(f"s_{database.name}"), initial=True)
        (load,) = sink.unfinished()
        job = Job(
            snapshot_id="", pipeline=StatedPipeline(), backend="shop", feed=feed, schema="public",
            table="items", name=("items",),
        )  # fmt: skip
        store = LoadStore(load, Noted(), settings, control, on_error="stop", tables=1)
        reader = TableReader(job, store, settings, control)
        if is_cancelled:
            with pytest.raises(Unavailable):
                reader.read()
            assert (control.progress.snapshots, numbers) == (1, [0, 1, 2])
            return
        reader.read()
        assert (control.progress.snapshots, numbers) == (2, [0, 1, 2, 2, 3, 4, 5, 6])
        assert load.finish([("public", "items")])
        rows = "SELECT id, note FROM items ORDER BY id"
        assert target.execute(rows) == database.execute(rows)
