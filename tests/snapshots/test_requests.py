"""Requests, and what becomes of runs, on real servers; without the service's thread."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import orjson
import pytest

from penstock.config import Pipeline, parse_pipeline
from penstock.model.errors import Unavailable
from penstock.nats.buckets import Bucket, KeyValue
from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.server import JetStreamServer
from penstock.snapshots.followed_tables import FollowedTable, sources, tables_of
from penstock.snapshots.init_stream import InitStream
from penstock.snapshots.records import Records, RunRecord
from penstock.snapshots.requests import SnapshotRequests
from tests.servers import Database, Nats
from tests.snapshots.conftest import World
from tests.snapshots.gate import Gate
from tests.snapshots.pipeline import StatedPipeline
from tests.waiting import until

pytestmark = pytest.mark.live

Json = dict[str, Any]


class Office:
    """A pipeline with one table of 300 rows, whose snapshots have 3 chunks, and its requests."""

    def __init__(self, world: World, stack: ExitStack) -> None:
        self.world, self._stack = world, stack
        self.table = f"t_{world.database.name}"
        world.database.execute(
            f"CREATE TABLE {self.table} (id int PRIMARY KEY);"
            f"INSERT INTO {self.table} SELECT generate_series(1, 300)"
        )
        world.feed.begin()
        self.sink = {"url": world.settings.url.get_secret_value(), "encoding": "json"}
        document: Json = {
            "name": f"pipe-{world.database.name}",
            "backends": [{
                "name": "shop", "type": "postgres", "connection": world.database.url,
                "slot": f"s_{world.database.name}", "publication": "p",
            }],
            "sink": {"type": "jetstream", **self.sink},
            "snapshot": {"chunk_rows": 100},
        }  # fmt: skip
        self.pipeline: Pipeline = parse_pipeline(orjson.dumps(document).decode())
        self.tables: list[FollowedTable] = tables_of(sources(self.pipeline)[0])

    def requests(self, url: str = "", state: StatedPipeline | None = None) -> SnapshotRequests:
        given = {"url": url} if url else {}
        sink = JetStreamServer(JetStreamSettings.model_validate(self.sink | given))
        stream = self._stack.enter_context(InitStream(sink.nats, "INIT"))
        made = SnapshotRequests(
            self.pipeline, state or StatedPipeline(self.pipeline.name), sink, stream
        )
        return self._stack.enter_context(closing(made))

    def request(self, requests: SnapshotRequests) -> RunRecord:
        return requests.request((self.table,), self.tables)

    def ended(self, requests: SnapshotRequests, snapshot_id: str) -> RunRecord:
        """After ticks until it has."""

        def ended() -> RunRecord | None:
            requests.tick()
            record = requests.records.get(snapshot_id)
            return record if record is not None and record.has_ended else None

        found = until(ended)
        assert found is not None
        return found

    def complete(self) -> str:
        """Returns when there is a meta of the table: the id of its snapshot."""
        until(lambda: self.world.api.last("INIT", f"init.meta.{self.table}"))
        return str(self.world.meta(self.table)["snapshot_id"])

    def chunks(self, snapshot_id: str) -> int:
        return len(self.world.messages(f"init.snap.{self.table}.{snapshot_id}.>"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def office(world: World, stack: ExitStack) -> Office:
    return Office(world, stack)


def test_a_complete_snapshot_is_not_taken_again(office: Office) -> None:
    """Whose service ended between its meta and its record."""
    before = office.requests()
    snapshot_id = office.request(before).snapshot_id
    assert office.complete() == snapshot_id
    before.close()
    after = office.requests()
    after.resume(office.tables)
    record = after.records.get(snapshot_id)
    assert record is not None
    assert (record.state, record.rows, record.chunks) == ("done", 300, 3)
    assert record.position
    assert office.chunks(snapshot_id) == 3
    assert len(after.records.all()) == 1


def test_a_snapshot_whose_answer_to_the_meta_was_lost_is_complete(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    Gate(monkeypatch, "init.meta.", then=Unavailable("away")).open()
    requests = office.requests()
    record = office.ended(requests, office.request(requests).snapshot_id)
    assert (record.state, record.rows, record.error) == ("done", 300, "")
    assert office.chunks(record.snapshot_id) == 3


def test_what_runs_here_is_not_taken_up(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the tables were not all known at the start, requests come first."""
    gate, requests = Gate(monkeypatch, "init.snap.", 3), office.requests()
    snapshot_id = office.request(requests).snapshot_id
    gate.reached()
    requests.resume(office.tables)
    gate.open()
    record = office.ended(requests, snapshot_id)
    assert (record.state, record.rows) == ("done", 300)
    assert office.chunks(snapshot_id) == 3
    assert len(requests.records.all()) == 1


def test_an_ended_run_is_not_shared(office: Office) -> None:
    """Its rows are older than the request."""
    requests = office.requests()
    first = office.request(requests).snapshot_id
    office.complete()
    # Its connections are not closed yet.
    until(lambda: office.request(requests).snapshot_id != first)
    second = office.request(requests).snapshot_id
    assert [office.ended(requests, one).state for one in (first, second)] == ["done", "done"]


def test_a_cancelled_run_is_not_shared(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, requests = Gate(monkeypatch, "init.snap.", 2), office.requests()
    first = office.request(requests).snapshot_id
    gate.reached()
    requests.cancel(first)
    second = office.request(requests).snapshot_id
    gate.open()
    assert [office.ended(requests, one).state for one in (first, second)] == ["cancelled", "done"]


def test_a_run_that_ended_for_the_lease_stays_for_the_next_owner(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, state = Gate(monkeypatch, "init.snap.", 3), StatedPipeline(office.pipeline.name)
    requests = office.requests(state=state)
    snapshot_id = office.request(requests).snapshot_id
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
    assert office.ended(heir, record.by).state == "done"
    assert (office.complete(), office.chunks(snapshot_id)) == (record.by, 0)


def test_missing_rights_do_not_keep_a_record_from_its_end(
    database: Database,
    own_nats: Callable[..., Nats],
    stack: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    denied = ["$JS.API.STREAM.PURGE.>", "init.error.>"]
    users = [
        {"user": "all", "password": "x"},
        {"user": "few", "password": "x", "permissions": {"publish": {"deny": denied}}},
    ]
    server = own_nats({"authorization": {"users": users}, "no_auth_user": "all"})
    world = stack.enter_context(closing(World(database, server)))
    office = Office(world, stack)
    gate = Gate(monkeypatch, "init.snap.", 2)
    requests = office.requests(server.url.replace("//", "//few:x@"))
    snapshot_id = office.request(requests).snapshot_id
    gate.reached()
    requests.cancel(snapshot_id)
    gate.open()
    record = office.ended(requests, snapshot_id)
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
