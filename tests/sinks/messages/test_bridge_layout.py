"""The layout `bridge`, as its consumers have it in hand: names, shapes and values."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import ormsgpack
import pytest

from penstock.consumer.tail.reader import TailReader
from penstock.model.errors import SettingsError
from penstock.ops.reports import SnapshotsReport
from penstock.sinks.messages.encoders import encoder
from penstock.sinks.messages.message import Framing
from penstock.sinks.rows.part import Part
from penstock.sinks.subject import parse_template
from tests.consumer.mirror.conftest import world_of
from tests.consumer.mirror.world import World
from tests.servers import Database
from tests.service.pipelines import pipeline_of
from tests.waiting import until

__all__ = ["world_of"]

pytestmark = pytest.mark.live

TYPES = """
CREATE TABLE test_types (
    id int PRIMARY KEY, uid uuid, age int, temperature float8, price numeric, is_true bool,
    some_text text, tags text[], matrix int[][], metadata jsonb, created_at timestamptz, mood mood)
"""
FIRST = """
INSERT INTO test_types VALUES (12, 'f4b0611f-7258-47f8-bceb-0eba9ac5195a', 30, 36.6, 123.4500, true,
    'Sample text', '{"tag1","tag 2"}', '{{1,2},{3,4}}', '{"a": [[1, 2], null], "n": {"d": "v"}}',
    '2025-12-12 12:00:34.338547Z', 'calm')
"""
ROW = {
    "id": 12, "uid": "f4b0611f-7258-47f8-bceb-0eba9ac5195a", "age": 30, "temperature": 36.6,
    "price": "123.4500", "is_true": True, "some_text": "Sample text", "tags": '{tag1,"tag 2"}',
    "matrix": "{{1,2},{3,4}}", "metadata": {"a": [[1, 2], None], "n": {"d": "v"}},
    "created_at": "2025-12-12T12:00:34.338547Z", "mood": "calm",
}  # fmt: skip
FIELDS = {"subject", "table", "operation", "msg_id", "relation_id", "lsn", "data", "before"}
READERS: dict[str, Callable[[bytes], Any]] = {"json": orjson.loads, "msgpack": ormsgpack.unpackb}


def events(world: World, encoding: str, subject: str = "cdc.>") -> list[dict[str, Any]]:
    world.published()
    found = [one for one in world.api.each("CDC", subject) if ".message" not in one.subject]
    bodies = [READERS[encoding](one.payload) for one in found]
    assert [one.subject for one in found] == [one["subject"] for one in bodies]
    return bodies


@pytest.fixture(params=READERS)
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(database: Database, world_of: Callable[..., World], encoding: str) -> World:
    database.execute("CREATE TYPE mood AS ENUM ('calm')")
    database.execute(TYPES)
    subject = "cdc.{collection}.{operation}"
    return world_of(encoding=encoding, layout="bridge", subject=subject).start()


def test_an_event_has_the_fields_and_values_of_the_page(world: World, encoding: str) -> None:
    world.database.execute(FIRST)
    world.database.execute("UPDATE test_types SET age = 31, temperature = 37")
    world.database.execute("DELETE FROM test_types")
    (oid,) = world.database.execute("SELECT 'test_types'::regclass::oid::int")[0]
    first, second, third = events(world, encoding)
    assert all(set(each) == FIELDS for each in (first, second, third))
    assert first["data"] == ROW
    assert second["data"] == ROW | {"age": 31, "temperature": 37}
    assert third["data"] == dict.fromkeys(ROW) | {"id": 12}
    assert [each["operation"] for each in (first, second, third)] == ["INSERT", "UPDATE", "DELETE"]
    assert {each["relation_id"] for each in (first, second, third)} == {oid}
    assert {each["table"] for each in (first, second, third)} == {"test_types"}
    for each in (first, second, third):
        high, _, low = each["lsn"].partition("/")
        number, *rest = each["msg_id"].split("-")
        assert int(number, 16) == int(high, 16) << 32 | int(low, 16)
        assert rest == ["test_types", each["operation"].lower(), "0"]


def test_events_of_one_transaction_have_ids_of_their_own(world: World, encoding: str) -> None:
    world.database.execute("INSERT INTO test_types (id) SELECT generate_series(1, 50)")
    found = events(world, encoding)
    assert len({each["msg_id"] for each in found}) == 50
    assert {each["data"]["tags"] for each in found} == {None}


def test_a_deleted_row_has_what_the_source_sends_of_it(world: World, encoding: str) -> None:
    """With REPLICA IDENTITY FULL that is all of it. An update that has a new key has both."""
    world.database.execute(FIRST)
    world.database.execute("UPDATE test_types SET id = 13")
    world.database.execute("ALTER TABLE test_types REPLICA IDENTITY FULL")
    world.database.execute("DELETE FROM test_types")
    _, moved, deleted = events(world, encoding)
    assert moved["data"] == deleted["data"] == ROW | {"id": 13}
    assert moved["before"] == dict.fromkeys(ROW) | {"id": 12}


def test_the_kernel_and_python_write_the_same(
    world: World, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.stop_pump()
    for statement in (FIRST, "UPDATE test_types SET id = 13", "DELETE FROM test_types"):
        world.database.execute(statement)
    pages = pages_of(world, 3)

    def written() -> list[dict[str, Any]]:
        made = encoder(world.settings, parse_template(world.settings.subject), Framing(limit=2**20))
        batches = [batch for page in pages for batch in decoder.decode(page)]
        bodies = [body for each in batches for body in made.encode(Part.of(each)).bodies]
        return [READERS[encoding](body.as_py()) for body in bodies]

    decoder = world.feed.decoder(world.settings.images)
    by_kernel = written()
    monkeypatch.setattr("penstock.sinks.rows.kernel.kernel", lambda: None)
    monkeypatch.setattr(decoder.decoder, "_kernel", None)
    assert written() == by_kernel
    assert [each["operation"] for each in by_kernel] == ["INSERT", "UPDATE", "DELETE"]


def pages_of(world: World, count: int) -> list[Any]:
    pages = list[Any]()
    with closing(world.feed.follow(world.slot, world.first)) as following:
        until(lambda: pages.extend(following.read(0.1)) or sum(p.count for p in pages) >= count, 60)
    return pages


def test_truncate_has_no_data(world: World, encoding: str) -> None:
    world.database.execute("TRUNCATE test_types")
    (found,) = events(world, encoding)
    assert (found["operation"], found["data"]) == ("TRUNCATE", None)


def test_a_replica_refuses_it_with_a_remedy(world: World, tmp_path: Path) -> None:
    for tables in (None, ["test_types"]):
        with (
            pytest.raises(SettingsError, match="layout bridge, which a replica cannot") as error,
            world.replica(f"sqlite:///{tmp_path}/m.db", tables=tables) as replica,
        ):
            replica.run(once=True)
        assert "--layout penstock" in str(error.value)


def test_tail_reads_it(world: World) -> None:
    world.database.execute(FIRST)
    world.database.execute("DELETE FROM test_types")
    world.published()
    with TailReader(world.nats.url, "CDC", subject="cdc.test_types.>") as reader:
        found, gone = until(lambda: reader.fetch(10, 10.0), 60)
    assert (found.operation, found.collection, found.body["data"]) == ("INSERT", "test_types", ROW)
    assert (gone.operation, gone.body["key"], gone.body["data"]) == ("DELETE", {"id": 12}, None)


def test_its_pipeline_is_degraded_where_snapshots_would_be_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.service.snapshots._RETENTION", 0.05)
    config = {**(world.api.stream("CDC") or {})["config"], "max_age": 60 * 10**9}
    world.api.update({**config, "duplicate_window": 60 * 10**9})
    assert world.service is not None
    world.service._look_at = 0.0
    board = world.owned._board
    until(lambda: "0:01:00" in board.snapshot().latest(SnapshotsReport, "default").refusal, 120)


def test_it_is_of_postgresql_alone(tmp_path: Path) -> None:
    sink = {"type": "jetstream", "url": "nats://x", "layout": "bridge"}
    backend = {"name": "b", "type": "mongodb", "connection": "mongodb://x/d"}
    with pytest.raises(SettingsError, match="the sink's layout needs backends of type postgres"):
        pipeline_of(backend, sink=sink, folder=tmp_path)
