"""A pipeline whose source lost changes: it says so everywhere, and its policy is obeyed."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.feeds.postgres.copies import copy_of
from tests.pipeline.running import Run, document, eventually, messages, running
from tests.servers import Database, Nats, Postgres
from tests.slots import drop_slot

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.fault]

FAST = {"fsync": False, "full_page_writes": False}
TABLE = """
CREATE TABLE items (id int PRIMARY KEY, note text);
CREATE PUBLICATION pub FOR TABLE items
"""


@pytest.fixture
def source() -> Iterator[tuple[Postgres, Database]]:
    """A server of its own, because it is restored."""
    with Postgres(version=16, settings=FAST) as server, server.database() as database:
        database.execute(TABLE)
        yield server, database


@pytest.fixture
def nats() -> Iterator[Nats]:
    """A server of its own: an account has one stream of news."""
    with Nats() as server:
        yield server


def pipeline_of(
    folder: Path, database: Database, nats: Nats, stream: str, **backend: Any
) -> dict[str, Any]:
    made = document(folder, database, nats, stream)
    made["backends"][0] |= backend
    made["sink"]["events"] = f"{stream}_EVENTS"
    made["sink"]["encoding"] = "json"
    made["checkpoint"] = {"interval": "500ms"}
    return made


def insert(database: Database, first: int, last: int, note: str) -> None:
    database.execute(
        "INSERT INTO items SELECT g, %s FROM generate_series(%s::int, %s::int) g",
        (note, first, last),
    )


def notes(nats: Nats, stream: str, note: str) -> list[int]:
    """The ids of the stored rows with that note."""
    bodies = [message.body for message in messages(nats, stream)]
    return [body["data"]["id"] for body in bodies if body["data"]["note"] == note]


def lose_the_slot(database: Database) -> None:
    drop_slot(database, f"slot_{database.name}", taken=True)


def gaps_of(run: Run, database: Database) -> dict[str, Any]:
    row: dict[str, Any] = run.status()["backends"][0]["gaps"][f"slot_{database.name}"]
    return row


def penstock_gaps(file: Path, *options: str) -> Any:
    command = [sys.executable, "-m", "penstock", "gaps", str(file), "--json", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


@pytest.mark.timeout(300)
def test_a_slot_that_is_dropped_while_we_run_stops_the_backend_and_is_told_everywhere(
    source: tuple[Postgres, Database], nats: Nats, stream: str, tmp_path: Path
) -> None:
    _, database = source
    pipeline = pipeline_of(tmp_path, database, nats, stream)
    with running(tmp_path, pipeline) as run:
        eventually(lambda: run.status()["backends"][0]["connected"], run=run)
        insert(database, 1, 10, "before")
        eventually(lambda: len(notes(nats, stream, "before")) == 10, run=run)
        eventually(lambda: penstock_positions(run.file), run=run)
        lose_the_slot(database)
        insert(database, 11, 20, "lost")
        eventually(lambda: run.get("/health")[0] == 503, run=run)
        status = eventually(lambda: run.status() if run.status()["backends"][0]["blocked"] else 0)
        assert "the slot is gone" in status["backends"][0]["blocked"]
        assert any("stands still" in reason for reason in status["reasons"])
        row = gaps_of(run, database)
        assert (row["stale"], row["counts"]) == (True, {"slot_missing": 1})
        assert row["gaps"][0]["policy"] == "fail"
        assert row["gaps"][0]["from"]
        metrics = run.get("/metrics")[1]
        where = f'backend="default",cause="slot_missing",partition="slot_{database.name}"'
        assert f"penstock_gaps_total{{{where}}} 1.0" in metrics
        where = f'backend="default",partition="slot_{database.name}"'
        assert f"penstock_partition_stale{{{where}}} 1.0" in metrics
        told = eventually(lambda: messages(nats, f"{stream}_EVENTS"), run=run)
        assert [message.subject for message in told] == ["penstock.gap.default"]
        assert told[0].body["cause"] == "slot_missing"
        assert told[0].body["pipeline"] == "test"
        assert penstock_gaps(run.file)[0]["counts"] == {"slot_missing": 1}
        assert 'event="history lost"' in run.log
        assert run.stop() == 0
    pipeline["backends"][0]["on_gap"] = "continue"
    with running(tmp_path, pipeline) as run:
        eventually(lambda: gaps_of(run, database)["gaps"][0]["to"], run=run)
        insert(database, 21, 30, "after")
        eventually(lambda: len(notes(nats, stream, "after")) == 10, run=run)
        assert gaps_of(run, database)["counts"] == {"slot_missing": 1}, "it is the same hole"
        told = eventually(lambda: messages(nats, f"{stream}_EVENTS")[1:], run=run)
        assert [message.body["policy"] for message in told] == ["continue"]
        eventually(lambda: run.status()["health"] == "degraded", run=run)
        assert any("is stale" in reason for reason in run.status()["reasons"])
        penstock_gaps(run.file, "mend", f"default/slot_{database.name}")
        eventually(lambda: run.status()["health"] == "ok", run=run)
        assert run.stop() == 0
    assert notes(nats, stream, "lost") == []


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_gap_is_mended_by_a_snapshot_of_every_table(
    source: tuple[Postgres, Database], nats: Nats, stream: str, tmp_path: Path
) -> None:
    _, database = source
    pipeline = pipeline_of(tmp_path, database, nats, stream, on_gap="resnapshot")
    with running(tmp_path, pipeline) as run:
        eventually(lambda: run.status()["backends"][0]["connected"], run=run)
        insert(database, 1, 10, "before")
        eventually(lambda: len(notes(nats, stream, "before")) == 10, run=run)
        eventually(lambda: penstock_positions(run.file), run=run)
        lose_the_slot(database)
        insert(database, 11, 20, "lost")
        eventually(lambda: run.status()["backends"][0]["gaps"], run=run)
        eventually(lambda: not gaps_of(run, database)["stale"], run=run)
        snapshots = run.status()["backends"][0]["snapshots"]
        assert (snapshots["runs"], snapshots["rows"]) == ({"done": 1}, 20)
        insert(database, 21, 30, "after")
        eventually(lambda: len(notes(nats, stream, "after")) == 10, run=run)
        assert run.stop() == 0


def penstock_positions(file: Path) -> bool:
    """Whether a place is stored."""
    command = [sys.executable, "-m", "penstock", "positions", str(file), "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    return bool(found and found[0]["place"])


@pytest.mark.thorough  # tests/feeds/postgres has it without Spark
@pytest.mark.timeout(300)
def test_a_restored_backup_goes_on_in_another_era_and_nothing_is_dropped(
    source: tuple[Postgres, Database], nats: Nats, stream: str, tmp_path: Path
) -> None:
    """Its LSNs are lower than what the stream has: the fence would take it all for old. With
    positions it happens while we run; without, the stream is the only memory of a new start."""
    server, database = source
    kept = pipeline_of(tmp_path, database, nats, stream, on_gap="continue")
    with running(tmp_path, kept) as run:
        eventually(lambda: run.status()["backends"][0]["connected"], run=run)
        insert(database, 1, 10, "before")
        eventually(lambda: len(notes(nats, stream, "before")) == 10, run=run)
        assert run.stop() == 0
    backup = backup_of(server)
    with running(tmp_path, kept) as run:
        insert(database, 11, 2000, "undone")
        eventually(lambda: len(notes(nats, stream, "undone")) == 1990, run=run)
        restore(server, backup)
        insert(database, 11, 20, "anew")
        eventually(lambda: notes(nats, stream, "anew") == list(range(11, 21)), run=run)
        assert_told(run, database, nats, stream, "anew", 1)
        assert run.stop() == 0

    lost = {**kept, "positions": "memory:"}
    backup = backup_of(server)
    with running(tmp_path, lost) as run:
        insert(database, 21, 2000, "undone again")
        eventually(lambda: len(notes(nats, stream, "undone again")) == 1980, run=run)
        assert run.stop() == 0
    restore(server, backup)
    insert(database, 21, 30, "anew again")
    with running(tmp_path, lost) as run:
        eventually(lambda: notes(nats, stream, "anew again") == list(range(21, 31)), run=run)
        assert_told(run, database, nats, stream, "anew again", 2)
        assert run.stop() == 0
    found = messages(nats, stream)
    assert len({message.id for message in found}) == len(found)


def assert_told(run: Run, database: Database, nats: Nats, stream: str, note: str, era: int) -> None:
    """One gap of this run, news of it, and the rows with that note are in that era."""
    assert gaps_of(run, database)["counts"] == {"server_behind": 1}
    (told,) = eventually(lambda: messages(nats, f"{stream}_EVENTS")[era - 1 :], run=run)
    assert told.body["cause"] == "server_behind"
    assert told.body["to"]
    anew = [each.id for each in messages(nats, stream) if each.body["data"]["note"] == note]
    assert all(f":e{era:04}-" in each for each in anew)


@pytest.mark.thorough  # tests/service has it without Spark
@pytest.mark.timeout(300)
def test_an_instance_with_an_older_store_of_its_own_says_so_and_loses_nothing(
    source: tuple[Postgres, Database], nats: Nats, stream: str, tmp_path: Path
) -> None:
    """It cannot know who moved the slot; what the other one delivered, the stream does."""
    _, database = source
    ours = pipeline_of(tmp_path, database, nats, stream, on_gap="continue")
    theirs = {**ours, "state": str(tmp_path / "theirs")}
    for first, pipeline in ((1, ours), (11, theirs), (21, ours)):
        with running(tmp_path, pipeline) as run:
            eventually(lambda run=run: run.status()["backends"][0]["connected"], run=run)
            insert(database, first, first + 9, "x")
            eventually(lambda n=first: len(notes(nats, stream, "x")) >= n + 9, run=run)
            if first == 21:
                assert gaps_of(run, database)["counts"] == {"slot_recreated": 1}
                eventually(lambda run=run: 'event="history lost"' in run.log, run=run)
                assert "or somebody else read it" in str(run.status()["backends"][0]["gaps"])
            assert run.stop() == 0
    assert notes(nats, stream, "x") == list(range(1, 31))


def backup_of(server: Postgres) -> Postgres:
    server.stop()
    backup = copy_of(server)
    server.start()
    return backup


def restore(server: Postgres, backup: Postgres) -> None:
    server.stop("immediate")
    shutil.rmtree(server.data)
    shutil.copytree(backup.data, server.data, copy_function=shutil.copy2)
    give_as(backup, server)
    server.start()
    shutil.rmtree(backup.folder, ignore_errors=True)


def give_as(backup: Postgres, server: Postgres) -> None:
    """The restored files belong to whom the copies belong to."""
    owner = backup.data.stat()
    for path in (server.data, *server.data.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
    server.data.chmod(0o700)
