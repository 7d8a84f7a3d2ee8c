"""`penstock positions FILE --remaining`: the work that is left, for people and for autoscalers."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock import cli
from penstock.leases import Lease
from penstock.leases.sqlite import SqliteStore
from penstock.model.errors import Unavailable
from penstock.model.position import Bookmark, PartitionId
from penstock.ops.board import Board
from penstock.ops.reports import PartitionReport
from penstock.ops.requests import Access, OpsRequest
from penstock.ops.respond import Asked, status_endpoints
from penstock.ops.server import OpsServer
from penstock.ops.status import assess
from tests.feeds.staged import StagedFeed, StagedSettings

pytestmark = pytest.mark.usefixtures("staged")

MEMORY = "{name: m, type: staged, changes: 100, unit: 1, partitions: 3}"
GROWN = StagedSettings(partitions=1, generations=1, changes=100)
SLOT = "{name: pg, type: postgres, connection: 'postgresql://h/d', slot: s, publication: p}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "pipeline.yaml", MEMORY)


def write(path: Path, *backends: str, port: int = 0) -> Path:
    listed = ", ".join(backends)
    ops = f"ops: {{port: {port}}}\n"
    text = f"name: shop\nstate: {path.parent}\nbackends: [{listed}]\nsink: {{type: memory}}\n{ops}"
    path.write_text(text)
    return path


def store(file: Path, name: str, continuation: object) -> None:
    with closing(SqliteStore(file.parent / "positions.db")) as rows:
        rows.put(Lease(name=f"shop/{name}", continuation=json.dumps(continuation)))


def remaining(file: Path, *more: str) -> Result:
    found = CliRunner().invoke(cli.main, ["positions", str(file), "--remaining", *more])
    assert found.exit_code == 0, found.output
    return found


def since(number: int, **more: Any) -> dict[str, Any]:
    return {"place": None, "mark": {"since": number}, **more}


@pytest.mark.slow
def test_without_any_position_one_is_left_so_that_something_starts(file: Path) -> None:
    assert remaining(file).output == "in sum: 1\n"
    found = json.loads(remaining(file, "--json").output)
    assert found == {"remaining": 1, "at_least": False, "backends": {"m": 1}, "partitions": []}


@pytest.mark.slow
def test_changes_are_counted_by_partition_and_in_sum(file: Path) -> None:
    store(file, "m/p0", since(40))
    store(file, "m/p1", since(0))
    lines = [line.split() for line in remaining(file).output.splitlines()]
    assert lines[1:] == [["m", "p0", "60"], ["m", "p1", "100"], ["in", "sum:", "160"]]
    found = json.loads(remaining(file, "--json").output)
    assert found["remaining"] == 160
    assert [row["remaining"] for row in found["partitions"]] == [60, 100]


def test_when_all_is_done_nothing_is_left(file: Path) -> None:
    store(file, "m/p0", since(100))
    assert json.loads(remaining(file, "--json").output)["remaining"] == 0


@pytest.mark.slow
def test_one_is_left_while_a_partition_that_ended_has_descendants_without_a_position(
    file: Path,
) -> None:
    """They may have changes: an autoscaler that started no reader would wait for ever."""
    write(file, MEMORY.replace("partitions: 3", "partitions: 1, generations: 1"))
    store(file, "m/p0", since(0, ended=True))
    children = [each.partition for each in StagedFeed(GROWN).partitions() if each.parents]
    for child in children:
        found = json.loads(remaining(file, "--json").output)
        assert (found["remaining"] >= 1, found["at_least"]) == (True, True)
        store(file, f"m/{child}", since(100))
    assert len(children) == 2
    assert json.loads(remaining(file, "--json").output)["remaining"] == 0
    assert "(ended)" in CliRunner().invoke(cli.main, ["positions", str(file)]).output


def test_one_is_left_where_the_descendants_are_not_listed_yet(file: Path) -> None:
    store(file, "m/p0", since(0, ended=True))
    output = remaining(file).output
    assert "p0         not known: it has ended, and its descendants have no position yet" in output
    assert output.endswith("in sum: at least 1\n")


@pytest.mark.slow
def test_a_partition_that_fails_is_named_and_left_out(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = StagedFeed.remaining

    def fails(self: StagedFeed, partition: PartitionId, bookmark: Bookmark) -> int | None:
        if partition == "p1":
            raise Unavailable("p1 is moving")
        return asked(self, partition, bookmark)

    monkeypatch.setattr(StagedFeed, "remaining", fails)
    for name in ("p0", "p1"):
        store(file, f"m/{name}", since(0))
    store(file, "m/p2", "no bookmark")
    found = remaining(file).output
    assert "not known: p1 is moving" in found
    assert "p2         not known: the stored position can't be read" in found
    assert found.endswith("in sum: at least 100\n")


@pytest.mark.slow
def test_a_source_that_is_away_is_not_asked_a_thousand_times_and_the_sum_is_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def away(self: StagedFeed, partition: PartitionId, bookmark: Bookmark) -> int | None:
        asked.append(partition)
        raise Unavailable("the source is away")

    monkeypatch.setattr(StagedFeed, "remaining", away)
    for number in range(20):
        store(file, f"m/p{number:02}", since(0))
    found = json.loads(remaining(file, "--json").output)
    assert (found["remaining"], found["at_least"]) == (1, True)
    assert len(asked) == 3
    assert found["partitions"][3]["error"] == "not asked: the source does not answer"
    assert "in sum: at least 1" in remaining(file).output


@pytest.fixture
def running() -> Iterator[Callable[[str], OpsServer]]:
    """`running(name)`: the ops server of a pipeline that reads the partition `slot` of `pg`."""
    with ExitStack() as stack:

        def start(pipeline: str) -> OpsServer:
            board = Board("/nowhere")
            board.post("pg/slot", PartitionReport(lag_seconds=2.5))

            def asked(request: OpsRequest) -> Asked:
                status = assess(
                    board.snapshot(),
                    name=pipeline,
                    version="1",
                    backends=["pg"],
                    started=board.started,
                    now=time.monotonic(),
                )
                return Asked(request=request, status=status, access=Access(), stop=list)

            server = OpsServer(port=0, access=Access(), endpoints=status_endpoints(asked))
            return stack.enter_context(server)

        yield start


@pytest.mark.slow
def test_a_source_without_a_number_shows_the_lag_that_a_running_pipeline_knows(
    tmp_path: Path, running: Callable[[str], OpsServer]
) -> None:
    file = write(tmp_path / "pipeline.yaml", SLOT, MEMORY, port=running("shop").port)
    store(file, "pg/slot", {"place": "0A:0", "mark": {}})
    store(file, "m/p0", since(90))
    found = remaining(file)
    assert "2.5 s late; how many changes is not known" in found.output
    assert found.output.endswith("in sum: at least 11\n")
    text = remaining(file, "--json").stdout
    rows = json.loads(text[text.index("{\n") :])["partitions"]  # after the server's log
    assert (rows[0]["remaining"], rows[0]["lag_seconds"]) == (None, 2.5)


@pytest.mark.slow
def test_another_pipeline_s_lag_is_not_ours(
    tmp_path: Path, running: Callable[[str], OpsServer]
) -> None:
    file = write(tmp_path / "pipeline.yaml", SLOT, port=running("other").port)
    assert remaining(file).output == "in sum: 1\n"
    store(file, "pg/slot", {"place": "0A:0", "mark": {}})
    found = remaining(file).output
    assert "postgres has no number of changes, and no running pipeline knows a lag" in found
    assert "in sum: at least 1" in found
