"""Requests, and what becomes of runs, on real servers; without the service's thread."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model.errors import Unavailable
from penstock.nats.buckets import Bucket, KeyValue
from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.server import JetStreamServer
from penstock.snapshots.followed_tables import FollowedTable, sources, tables_of
from penstock.snapshots.init_stream import InitStream
from penstock.snapshots.records import Records, RunRecord
from penstock.snapshots.requests import SnapshotRequests
from tests.servers import Database, Nats
from tests.service.served import Served
from tests.snapshots.conftest import StatedPipeline, World
from tests.snapshots.gate import Gate
from tests.waiting import until


class Office(Served):
    """A pipeline with one table of 300 rows, whose snapshots have 3 chunks, and its requests."""

    def __init__(self, database: Database, nats: Nats, folder: Path, stack: ExitStack) -> None:
        table = f"t_{database.name}"
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY);"
            f"INSERT INTO {table} SELECT generate_series(1, 300)"
        )
        super().__init__(database, nats, folder, chunk_rows=100)
        self._stack = stack
        self.tables: list[FollowedTable] = tables_of(sources(self.pipeline)[0])

    def requests(self, url: str = "", state: StatedPipeline | None = None) -> SnapshotRequests:
        sink = JetStreamServer(JetStreamSettings(url=url or self.nats.url, encoding="json"))
        stream = self._stack.enter_context(InitStream(sink.nats, "INIT"))
        made = SnapshotRequests(self.pipeline, state or StatedPipeline(self.name), sink, stream)
        return self._stack.enter_context(closing(made))

    def request(self, requests: SnapshotRequests) -> str:
        """The id of the snapshot."""
        return requests.request((self.table,), self.tables).snapshot_id

    def over(self, requests: SnapshotRequests, snapshot_id: str) -> RunRecord:
        """After ticks until it has ended."""

        def over() -> RunRecord | None:
            requests.tick()
            record = self.records.get(snapshot_id)
            return record if record is not None and record.has_ended else None

        found = until(over)
        assert found is not None
        return found

    def complete(self) -> str:
        """Returns when there is a meta of the table: the id of its snapshot."""
        until(lambda: self.api.last("INIT", f"init.meta.{self.table}"))
        return str(self.last(f"init.meta.{self.table}")["snapshot_id"])


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def office(database: Database, nats: Nats, tmp_path: Path, stack: ExitStack) -> Office:
    return stack.enter_context(closing(Office(database, nats, tmp_path, stack)))


def test_a_complete_snapshot_is_not_taken_again(office: Office) -> None:
    """Whose service ended between its meta and its record."""
    before = office.requests()
    snapshot_id = office.request(before)
    assert office.complete() == snapshot_id
    before.close()
    after = office.requests()
    after.resume(office.tables)
    record = after.records.get(snapshot_id)
    assert record is not None
    assert (record.state, record.rows, record.chunks) == ("done", 300, 3)
    assert record.position
    assert len(office.chunks(snapshot_id)) == 3
    assert len(after.records.all()) == 1


def test_a_snapshot_whose_answer_to_the_meta_was_lost_is_complete(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    Gate(monkeypatch, "init.meta.", then=Unavailable("away")).open()
    requests = office.requests()
    record = office.over(requests, office.request(requests))
    assert (record.state, record.rows, record.error) == ("done", 300, "")
    assert len(office.chunks(record.snapshot_id)) == 3


def test_what_runs_here_is_not_taken_up(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tables were not all known at the start, requests come first."""
    gate, requests = Gate(monkeypatch, "init.snap.", 3), office.requests()
    snapshot_id = office.request(requests)
    gate.reached()
    requests.resume(office.tables)
    gate.open()
    record = office.over(requests, snapshot_id)
    assert (record.state, record.rows) == ("done", 300)
    assert len(office.chunks(snapshot_id)) == 3
    assert len(requests.records.all()) == 1


def test_an_ended_run_is_not_shared(office: Office) -> None:
    """Its rows are older than the request."""
    requests = office.requests()
    first = office.request(requests)
    office.complete()
    # Its connections are not closed yet.
    until(lambda: office.request(requests) != first)
    second = office.request(requests)
    assert [office.over(requests, one).state for one in (first, second)] == ["done", "done"]


def test_a_cancelled_run_is_not_shared(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, requests = Gate(monkeypatch, "init.snap.", 2), office.requests()
    first = office.request(requests)
    gate.reached()
    requests.cancel(first)
    second = office.request(requests)
    gate.open()
    assert [office.over(requests, one).state for one in (first, second)] == ["cancelled", "done"]


def test_a_run_that_ended_for_the_lease_stays_for_the_next_owner(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, state = Gate(monkeypatch, "init.snap.", 3), StatedPipeline(office.name)
    requests = office.requests(state=state)
    snapshot_id = office.request(requests)
    gate.reached()
    state.is_ours = False
    gate.open()
    requests.close()
    requests.tick()
    record = requests.records.get(snapshot_id)
    assert record is not None and not record.has_ended
    monkeypatch.undo()
    heir = office.requests()
    heir.resume(office.tables)
    record = heir.records.get(snapshot_id)
    assert record is not None and record.state == "replaced"
    assert office.over(heir, record.by).state == "done"
    assert (office.complete(), office.chunks(snapshot_id)) == (record.by, [])


def test_missing_rights_do_not_keep_a_record_from_its_end(
    database: Database,
    own_nats: Callable[..., Nats],
    tmp_path: Path,
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    denied = ["$JS.API.STREAM.PURGE.>", "init.error.>"]
    users = [
        {"user": "all", "password": "x"},
        {"user": "few", "password": "x", "permissions": {"publish": {"deny": denied}}},
    ]
    server = own_nats({"authorization": {"users": users}, "no_auth_user": "all"})
    office = stack.enter_context(closing(Office(database, server, tmp_path, stack)))
    gate = Gate(monkeypatch, "init.snap.", 2)
    requests = office.requests(server.url.replace("//", "//few:x@"))
    snapshot_id = office.request(requests)
    gate.reached()
    requests.cancel(snapshot_id)
    gate.open()
    record = office.over(requests, snapshot_id)
    assert record.state == "cancelled"
    assert office.chunks(snapshot_id)  # it may not delete them
    requests.records.put(replace(record, snapshot_id="snap-left", state="running"))
    requests.resume(office.tables)
    left = requests.records.get("snap-left")
    assert left is not None and left.state == "replaced"


def test_a_record_that_changes_while_all_are_read_is_there_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(world.connection, f"pipe-{world.database.name}")
    records.make(replicas=1)
    old = RunRecord(
        snapshot_id="snap-1", pipeline="p", backend="b", schema="public", table="t", name=("t",),
        state="queued",
    )  # fmt: skip
    records.put(old)
    scan = Bucket.scan

    def meanwhile(bucket: Bucket) -> Iterator[KeyValue]:
        for entry in scan(bucket):
            yield entry
            if b'"queued"' in (entry.value or b"") and b"snap-1" in (entry.value or b""):
                records.put(replace(old, state="running"))

    monkeypatch.setattr(Bucket, "scan", meanwhile)
    assert [each.state for each in records.all()] == ["running"]
