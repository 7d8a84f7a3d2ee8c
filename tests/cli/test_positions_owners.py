"""Whose rows are: shown with their age, and released or changed only without a live owner."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock import Observer, Processor, cli
from penstock.cli.positions_edit import age, age_text, wait_for_owners
from penstock.leases import Lease, replace
from penstock.leases.holder import TERM
from penstock.leases.memory import MemoryStore
from penstock.leases.sqlite import SqliteStore
from penstock.model.errors import SettingsError
from penstock.process.processes import Machine
from penstock.processor.observer import Changes, PartitionContext

PLACE = json.dumps({"place": "0A:0", "mark": {}})
NAME = "shop/default/p0"
ELSEWHERE = {"machine": "elsewhere", "pid": 1, "term": TERM}


@pytest.fixture
def ended() -> int:
    """The id of a process of this machine that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def rows(file: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(file.parent / "positions.db")) as store:
        yield store


def positions(file: Path, *more: str) -> Result:
    return CliRunner().invoke(cli.main, ["positions", str(file), *more])


def own(store: SqliteStore, owner: str, **properties: Any) -> Lease:
    row = Lease(name=NAME, owner=owner, continuation=PLACE, properties=properties)
    return store.put(row)


def test_the_list_shows_owners_and_how_long_ago_they_made_a_checkpoint(
    file: Path, rows: SqliteStore, ended: int
) -> None:
    then = (datetime.now(UTC) - timedelta(minutes=30)).isoformat()
    here = {"machine": Machine().name, "pid": ended, "term": 60.0, "since": then, "asked_by": "you"}
    own(rows, "host:1:a", **here)
    (row,) = json.loads(positions(file, "--json").output)
    assert (row["owner"], row["owner_ended"], row["asked_by"]) == ("host:1:a", True, "you")
    assert 1800 <= row["age_seconds"] < 2400
    shown = positions(file).output
    assert "host:1:a (ended, asked for by you)" in shown
    assert " 30m " in shown


def test_the_age_is_that_of_the_checkpoint_or_else_of_the_owner() -> None:
    now = datetime(2026, 11, 24, 12, tzinfo=UTC)
    both = {"since": "2026-11-24T10:00:00+00:00", "saved": "2026-11-24T11:59:30+00:00"}
    assert age(Lease(name="a", properties=both), now) == 30
    assert age(Lease(name="a", properties={"since": both["since"]}), now) == 7200
    assert age(Lease(name="a", properties={"since": "2026-11-24T13:00:00"}), now) == 0
    assert age(Lease(name="a", properties={"since": 1, "saved": None}), now) is None
    texts = [age_text(each) for each in (None, 0, 119.9, 120, 7200, 172_800)]
    assert texts == ["", "0s", "119s", "2m", "2h", "2d"]


def test_a_row_of_a_process_that_ended_is_released_at_once_and_keeps_its_place(
    file: Path, rows: SqliteStore, ended: int
) -> None:
    for more in ([], ["--now"]):
        row = rows.get(NAME)
        mine = {"machine": Machine().name, "pid": ended, "term": 60.0, "team": "x"}
        held = replace(row or Lease(name=NAME), owner="host:1:a", properties=mine)
        rows.put(replace(held, continuation=PLACE))
        done = positions(file, "release", "default/p0", *more)
        assert (done.exit_code, done.output) == (0, "default/p0 has no owner any more\n")
        row = rows.get(NAME)
        assert row is not None
        assert (row.owner, row.continuation, row.properties) == ("", PLACE, {"team": "x"})
    assert positions(file, "release", "default/p0").output == "default/p0 has no owner\n"


def test_now_is_refused_unless_the_owner_is_a_process_of_this_machine_that_ended(
    file: Path, rows: SqliteStore
) -> None:
    row = own(rows, "there:1:a", **ELSEWHERE)
    refused = positions(file, "release", "default/p0", "--now")
    assert refused.exit_code == 2
    assert "there:1:a" in refused.output
    assert "without --now" in refused.output
    lives = {"machine": Machine().name, "pid": os.getpid(), "term": TERM}
    row = rows.put(replace(row, owner="here:1:a", properties=lives))
    assert positions(file, "release", "default/p0", "--now").exit_code == 2
    assert rows.get(NAME) == row


def test_a_row_of_penstock_run_is_released_while_that_does_not_run(
    file: Path, rows: SqliteStore
) -> None:
    """It states no term of its own: the pipeline's lease decides, which nobody has."""
    own(rows, "host:1:a")
    assert positions(file, "release", "default/p0", "--now").exit_code == 0
    row = rows.get(NAME)
    assert row is not None
    assert row.owner == ""


@pytest.mark.slow  # waits out the term of a lease
def test_a_row_of_another_host_is_changed_after_its_term(file: Path, rows: SqliteStore) -> None:
    own(rows, "there:1:a", **ELSEWHERE)
    done = positions(file, "set", "default/p0", "0B:0", "--yes")
    assert done.exit_code == 0, done.output
    assert "shop/default/p0 belongs to there:1:a: waiting up to 4 s" in done.stderr
    assert "0B:0" in positions(file, "show", "default/p0").output


@pytest.mark.slow
def test_a_partition_that_a_processor_works_on_is_not_changed_until_that_has_stopped(
    tmp_path: Path,
) -> None:
    file = tmp_path / "processor.yaml"
    file.write_text(
        f"name: shop\nstate: {tmp_path}\nprocessor: {{}}\n"
        "backends: [{name: memory, type: memory}]\n"
    )
    working = threading.Event()

    class Waiting(Observer):
        def process(self, changes: Changes, context: PartitionContext) -> None:
            working.set()

    with Processor(
        "memory",
        {"partitions": 1, "changes": 5},
        leases=f"sqlite:///{tmp_path}/positions.db",
        name="shop",
        observer=Waiting,
        host="worker",
        renew=0.1,
        acquire=0.1,
        expire=30,
    ) as processor:
        running = threading.Thread(target=processor.run, daemon=True)
        running.start()
        assert working.wait(60)
        for arguments in (["set", "memory/p0", "0B:0", "--yes"], ["release", "memory/p0"]):
            refused = positions(file, *arguments)
            assert refused.exit_code == 2, refused.output
            assert "shop/memory/p0 has a live owner: worker" in refused.output
        assert positions(file, "release", "memory/p0", "--now").exit_code == 2
        (row,) = json.loads(positions(file, "--json").output)
        assert (row["owner"], row["owner_ended"]) == ("worker", False)
        processor.stop()
        running.join(60)
    assert positions(file, "release", "memory/p0").output == "memory/p0 has no owner\n"
    assert positions(file, "set", "memory/p0", row["place"] or "0B:0", "--yes").exit_code == 0


class Looking:
    """Time that passes while `wait_for_owners` sleeps."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.now = 0.0
        self.texts: list[str] = []
        self.renews: list[str] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for name in self.renews if self.now > 2 else ():
            row = self.store.get(name)
            assert row is not None
            self.store.put(row)

    def look(self, *names: str) -> dict[str, Lease]:
        return wait_for_owners(
            self.store,
            "s/",
            names,
            report=self.texts.append,
            clock=lambda: self.now,
            sleep=self.sleep,
        )


def test_rows_are_looked_at_for_the_longest_term() -> None:
    looking = Looking()
    for name, term in (("s/a", 4.0), ("s/b", 60.0), ("s/c", 9.0)):
        properties = {"machine": "elsewhere", "pid": 1, "term": term}
        looking.store.put(Lease(name=name, owner="h", properties=properties))
    assert looking.look("s/d") == {}
    assert looking.now == 0
    assert looking.look("s/a", "s/b").keys() == {"s/a", "s/b"}
    assert 60 <= looking.now < 62
    assert looking.texts == ["s/a belongs to h: waiting up to 60 s for a renewal"]


def test_an_owner_that_renews_is_alive() -> None:
    looking = Looking()
    for name in ("s/a", "s/b"):
        looking.store.put(Lease(name=name, owner="h", properties=ELSEWHERE))
    looking.renews = ["s/b"]
    with pytest.raises(SettingsError, match="s/b has a live owner: h") as refused:
        looking.look("s/a", "s/b")
    assert "stop that process" in refused.value.hint
    assert looking.now < 4


def test_a_row_that_its_owner_gives_back_meanwhile_is_free() -> None:
    looking = Looking()
    row = looking.store.put(Lease(name="s/a", owner="h", properties=ELSEWHERE))
    sleep = looking.sleep

    def released(seconds: float) -> None:
        sleep(seconds)
        if looking.store.get("s/a") == row:
            looking.store.put(replace(row, owner="", properties={}))

    looking.sleep = released  # type: ignore[method-assign]
    assert looking.look("s/a")["s/a"].owner == ""
    assert looking.now < 2
