"""A run that ends by itself has all that the source had at its start, and ends: on each feed."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.microbatch.options import read_source
from penstock.microbatch.source import Source
from penstock.model.errors import InUse, SettingsError
from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer
from tests.microbatch.runs import Run
from tests.microbatch.sources import (
    Documents,
    Events,
    Items,
    Orders,
    Shards,
    Table,
    Written,
    is_read,
    table_in,
    writing,
)
from tests.mongo import shop_on
from tests.mongodb.history import History
from tests.mongodb.server import ScriptedMongod
from tests.servers import Database, Postgres
from tests.slots import drop_slots
from tests.waiting import until


@pytest.fixture
def table(database: Database) -> Iterator[Table]:
    with table_in(database) as made:
        yield made


@pytest.fixture(
    params=[
        "postgres",
        "postgres-sources",
        "mongodb",
        "mongodb-primary",
        "mongodb-mongos",
        "dynamodb",
        "cosmos",
        "cosmos-every",
    ]
)
def source(request: pytest.FixtureRequest) -> Iterator[Written]:
    kind, _, how = request.param.partition("-")
    if kind == "postgres" and how:
        with ExitStack() as stack:
            server: Postgres = request.getfixturevalue("postgres")
            databases = {sid: stack.enter_context(server.database()) for sid in ("a", "b")}
            yield Shards(databases)
            for each in databases.values():
                drop_slots(each)
    elif kind == "postgres":
        yield request.getfixturevalue("table")
    elif kind == "dynamodb":
        with StreamsServer() as streams:
            yield Items(streams)
    elif kind == "cosmos":
        with CosmosServer() as cosmos:
            yield Orders(cosmos, "all_versions_and_deletes" if how else "latest_version")
    elif how:
        history = History()
        with ScriptedMongod(history, how) as mongod:
            mongod.late = 3 * (how == "mongos")  # replies that are empty though there is more
            yield Events(mongod, history)
    else:
        with shop_on(request.getfixturevalue("mongo")) as shop:
            yield Documents(shop)


def up_to(number: int) -> list[int]:
    return list(range(1, number + 1))


def test_all_that_was_there_comes_in_one_run_of_several_micro_batches(source: Written) -> None:
    run = Run(source.options)
    assert run() == []
    most = int(source.options["max_events"])
    source.write(5 * most)
    assert source.found(run()) == up_to(5 * most)
    assert len(run.batches) > 4
    assert max(map(len, run.batches)) <= most
    began = time.monotonic()
    assert run() == []
    assert time.monotonic() - began < 30


def test_what_is_written_during_a_run_is_for_the_next_one(source: Written) -> None:
    run = Run(source.options)
    run()
    source.write(2 * int(source.options["max_events"]))
    got: list[int] = []
    with writing(lambda: source.write(3)):
        for _ in range(3):
            got += source.found(run())
    got += source.found(run())
    assert sorted(got) == up_to(next(source.numbers) - 1)


def test_a_run_that_is_cut_off_before_a_commit_is_gone_on_with_over_splits(
    source: Written,
) -> None:
    run = Run(source.options)
    run()
    source.write(5 * int(source.options["max_events"]))

    def fails_in(batch: int) -> Callable[[int], None]:
        def fail(number: int) -> None:
            if number == batch:
                raise KeyboardInterrupt

        return fail

    got: list[int] = []
    for batch in (0, 1, 0, 2):
        with pytest.raises(KeyboardInterrupt):
            run(fails_in(batch))
        got += source.found([row for each in run.batches for row in each])
        source.split()
        source.write(10)
    got += source.found(run())
    assert sorted(got) == up_to(next(source.numbers) - 1)


def test_a_partition_that_splits_during_a_run_is_read_with_its_children(source: Written) -> None:
    run = Run(source.options)
    run()
    source.write(3 * int(source.options["max_events"]))

    def split(number: int) -> None:
        if number == 1:
            source.split()

    got = source.found(run(split))
    assert sorted(got) == up_to(next(source.numbers) - 1)


def test_the_source_need_not_keep_what_was_read_and_was_not_for_us(table: Table) -> None:
    run = Run(table.options)
    run()
    table.database.execute("INSERT INTO other SELECT generate_series(1, 20000)")
    assert table.kept() > 1_000_000
    until(lambda: not is_read(table.database))
    findings = read_source(table.options)[1].check()
    assert any(re.search(r"[1-9]\d* MiB of WAL are kept for it", f.message) for f in findings)
    assert run() == []
    until(lambda: table.kept() < 100_000)


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


_ORPHAN = """
import json, sys
from penstock.microbatch.source import Source
import penstock.microbatch.planned
penstock.microbatch.planned.TAKEN = 1e9  # it waits for ever
source = Source.open(json.loads(sys.argv[1]))
print("begun", flush=True)
source.end_by_itself()
source.latest(json.loads(sys.argv[2]))
"""


def test_a_run_that_waits_ends_with_its_driver(table: Table) -> None:
    """Else it would take the slot when that is free again."""
    run = Run(table.options)
    run()
    table.write(100)

    def wait(number: int) -> None:
        if number == 0:
            given = [json.dumps(table.options), json.dumps(run.committed)]
            command = [sys.executable, "-c", _ORPHAN, *given]
            driver = subprocess.Popen(
                ["/bin/sh", "-c", '"$@" & wait', "sh", *command], stdout=subprocess.PIPE
            )
            assert driver.stdout is not None
            assert driver.stdout.readline() == b"begun\n"
            time.sleep(1.0)  # it is refused the slot, or will be
            driver.kill()
            driver.wait()
            assert driver.stdout.read() == b""  # the other process has ended, too

    assert len(run(wait)) == 100


def test_a_query_in_the_mode_realtime_has_no_end(tmp_path: Path) -> None:
    source = Source.open(
        {"backend": "memory", "mode": "realtime", "positions": f"sqlite:///{tmp_path}/p.db"}
    )
    with pytest.raises(SettingsError, match="realtime"):
        source.end_by_itself()
    source.stop()
