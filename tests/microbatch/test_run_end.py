"""A run that ends by itself has all that the source had at its start, and ends: on each feed."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from penstock.microbatch.source import Source
from penstock.model.errors import InUse, SettingsError
from tests.microbatch.runs import Row, Run
from tests.servers import Database
from tests.waiting import until


class Table:
    """A table of PostgreSQL that a source follows, whose changes have numbers."""

    def __init__(self, database: Database) -> None:
        self.database = database
        database.execute("CREATE TABLE t (id serial PRIMARY KEY); CREATE TABLE other (id int)")

    @property
    def options(self) -> dict[str, str]:
        return {
            "backend": "postgres", "connection": self.database.url, "slot": "runs",
            "publication": "runs", "create_publication": "true", "tables": "public.t",
            "max_events": "1000", "page_rows": "300", "patience": "100ms",
        }  # fmt: skip

    def write(self, count: int, *, each: int = 10) -> None:
        for _ in range(count // each):
            self.database.execute(f"INSERT INTO t SELECT FROM generate_series(1, {each})")

    def confirmed(self) -> int:
        """How many bytes of WAL the server still has to keep for the slot."""
        ((behind,),) = self.database.execute(
            "SELECT (pg_current_wal_flush_lsn() - confirmed_flush_lsn)::bigint"
            " FROM pg_replication_slots WHERE slot_name = 'runs'"
        )
        return int(behind)


def ids(rows: list[Row]) -> list[int]:
    return [int(row["document_id"]) for row in rows]


@pytest.fixture
def table(database: Database) -> Iterator[Table]:
    yield Table(database)
    database.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        " WHERE slot_name = 'runs' AND NOT active"
    )


@contextmanager
def writing(write: Callable[[], None]) -> Iterator[None]:
    """Writes in another thread until the end."""
    stopped = threading.Event()

    def go_on() -> None:
        while not stopped.is_set():
            write()

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def test_all_that_was_there_comes_in_one_run_of_several_micro_batches(table: Table) -> None:
    run = Run(table.options)
    assert run() == []
    table.write(5_000)
    assert ids(run()) == list(range(1, 5_001))
    assert len(run.batches) > 4
    assert max(map(len, run.batches)) <= 1_000


def test_an_empty_run_ends_in_seconds_and_the_source_need_not_keep_what_it_read(
    table: Table,
) -> None:
    run = Run(table.options)
    run()
    table.database.execute("INSERT INTO other SELECT generate_series(1, 20000)")
    assert table.confirmed() > 1_000_000
    began = time.monotonic()
    assert run() == []
    assert time.monotonic() - began < 30
    until(lambda: table.confirmed() < 100_000)


def test_what_is_written_during_a_run_is_for_the_next_one(table: Table) -> None:
    run = Run(table.options)
    run()
    table.write(2_000)
    got: list[int] = []
    with writing(lambda: table.write(3, each=1)):
        for _ in range(3):
            got += ids(run())
    got += ids(run())
    ((most,),) = table.database.execute("SELECT max(id) FROM t")
    assert got == list(range(1, most + 1))


def test_a_run_that_is_cut_off_before_any_commit_is_gone_on_with(table: Table) -> None:
    run = Run(table.options)
    run()
    table.write(5_000)

    def fails_in(batch: int) -> Callable[[int], None]:
        def fail(number: int) -> None:
            if number == batch:
                raise KeyboardInterrupt

        return fail

    got: list[int] = []
    for batch in (0, 1, 0, 2):
        with pytest.raises(KeyboardInterrupt):
            run(fails_in(batch))
        got += ids([row for each in run.batches for row in each])
        table.write(10)
    got += ids(run())
    assert got == list(range(1, 5_041))


def test_a_second_job_on_the_same_slot_is_told(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.microbatch.planned.TAKEN", 1.0)
    run, second = Run(table.options), Run(table.options)
    run()
    table.write(100)

    def other(number: int) -> None:
        if number == 0:
            with pytest.raises(InUse, match="is in use by the process"):
                second()

    assert len(run(other)) == 100


def test_a_query_in_the_mode_realtime_has_no_end(tmp_path: object) -> None:
    source = Source.open(
        {"backend": "memory", "mode": "realtime", "positions": f"sqlite:///{tmp_path}/p.db"}
    )
    with pytest.raises(SettingsError, match="realtime"):
        source.end_by_itself()
    source.stop()
