"""What is stored besides changes, on a real server: schemas of tables, and news of the pipeline,
never in the stream of the changes."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import nats as nats_py
import orjson
import ormsgpack
import pytest

from penstock.consumer.mirror.published_tables import Catalog
from penstock.model.errors import Unavailable
from penstock.model.table_schema import TableSchema
from penstock.nats.api import JetStream
from penstock.nats.buckets import Bucket
from penstock.nats.connection import Connection
from penstock.reading.announced import Announced
from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.schemas import BUCKET, SchemaBucket
from penstock.sinks.jetstream.server import JetStreamServer
from tests.servers import Nats

COLUMNS = (
    {
        "name": "id", "position": 1, "data_type": "integer", "is_nullable": False,
        "column_default": None, "key": True,
    },
)  # fmt: skip


def schema(table: str, version: str) -> TableSchema:
    return TableSchema(
        schema="public", table=table, name=(table,), version=version, columns=COLUMNS
    )


@contextmanager
def opened(settings: JetStreamSettings) -> Iterator[Bucket]:
    with closing(Connection(settings)) as connection:
        connection.open()
        yield Bucket(connection, BUCKET)


def documents(settings: JetStreamSettings, name: str) -> list[Any]:
    """All that the bucket keeps of a key."""
    load: Any = orjson.loads if settings.encoding == "json" else ormsgpack.unpackb
    with opened(settings) as bucket:
        return [load(one.value) for one in bucket.history(name)]


def keys(settings: JetStreamSettings, start: str) -> set[str]:
    with opened(settings) as bucket:
        return {one.key for one in bucket.entries() if one.key.startswith(start)}


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_a_version_is_stored_once(encoding: Any, nats: Nats) -> None:
    settings = JetStreamSettings(url=nats.url, encoding=encoding)
    name = f"t-{uuid.uuid4().hex}"
    for version in ("one", "one", "two"):
        SchemaBucket(settings, "shop").put(schema(name, version))
    found = documents(settings, name)
    assert [one["version"] for one in found] == ["one", "two"]
    assert found[0] == {
        "table": name, "schema": "public", "qualified_name": f"public.{name}", "version": "one",
        "position": None, "suspended": None, "pipeline": "shop", "backend": None,
        "timestamp": found[0]["timestamp"], "documents": False, "columns": list(COLUMNS),
        "relation_id": None, "origin": "", "state": {}, "current": True,
    }  # fmt: skip


def test_a_backend_that_is_called_as_its_schema_is_no_schema(nats: Nats) -> None:
    backend = f"b-{uuid.uuid4().hex}"
    settings = JetStreamSettings(url=nats.url)
    alone = replace(schema("t", "v"), schema=backend)
    SchemaBucket(settings, "shop", (backend,)).put(alone, replace(alone, name=(backend, "t")))
    SchemaBucket(settings, "shop").put(replace(alone, table="u", name=(backend, "u")))
    connection = Connection(settings)
    connection.open()
    found = Catalog(connection).read()
    connection.close()
    names = {key: each.name for key, each in found.items() if key.startswith(backend)}
    tables = [found[key].mirrored() for key in names]
    assert names == {
        f"{backend}.t": (backend, "t"), f"{backend}.{backend}.t": (backend, backend, "t"),
        f"{backend}.u": (backend, "u"),
    }  # fmt: skip
    assert [table.backend for table in tables] == [backend, backend, ""]
    assert [table.target for table in tables] == [
        f"{backend}_{backend}_t", f"{backend}_{backend}_t", f"{backend}_u",
    ]  # fmt: skip


def test_a_table_that_is_gone_is_deleted(nats: Nats) -> None:
    backend = f"b-{uuid.uuid4().hex}"
    settings = JetStreamSettings(url=nats.url)
    store = SchemaBucket(settings, "shop", (backend,))
    other = SchemaBucket(settings, "shop", (f"{backend}2",))
    for one in (store, other):
        one.put(schema("kept", "v"))
        one.put(schema("töte.x", "v"))
    store.remove(("töte.x",))
    assert keys(settings, backend) == {
        f"{backend}.kept", f"{backend}2.kept", f"{backend}2.t=C3=B6te=2Ex",
    }  # fmt: skip
    store.put(schema("töte.x", "v"))  # it was made again


def test_tables_that_went_while_the_pipeline_did_not_run_are_deleted(nats: Nats) -> None:
    backend, settings = f"b-{uuid.uuid4().hex}", JetStreamSettings(url=nats.url)
    before = SchemaBucket(settings, "shop", (backend,))
    before.put(schema("kept", "v"), schema("gone", "v"))
    SchemaBucket(settings, "shop", (f"{backend}2",)).put(schema("gone", "v"))
    SchemaBucket(settings, "other", (backend,)).put(schema("another's", "v"))
    SchemaBucket(settings, "shop", (backend,)).keep(("kept",))
    with opened(settings) as bucket:
        gone = bucket.history(f"{backend}.gone")
    assert keys(settings, backend) == {
        f"{backend}.kept",
        f"{backend}2.gone",
        f"{backend}.another=27s",
    }
    assert [one.value is None for one in gone] == [False, True]


def test_a_suspended_table_has_its_reason_until_it_is_followed_again(nats: Nats) -> None:
    settings, name = JetStreamSettings(url=nats.url, encoding="json"), f"t-{uuid.uuid4().hex}"
    looked, announced = (SchemaBucket(settings, "shop") for _ in range(2))
    one = schema(name, "v")
    for reason in ("", "decode", "decode", ""):
        looked.put(replace(one, suspended=reason))
        announced.put(one)  # the reader does not know
    assert [one["suspended"] for one in documents(settings, name)] == [None, "decode", None]


def test_what_differs_is_stored_and_what_is_older_than_the_catalogue_is_stored_once(
    nats: Nats,
) -> None:
    settings, name = JetStreamSettings(url=nats.url), f"t-{uuid.uuid4().hex}"
    store, one = SchemaBucket(settings, "shop"), schema(name, "v")
    older, full = replace(one, version="u", is_current=False), {"partitions": [[7, 8, False]]}
    revisions = [
        store.put(each).get((name,))
        for each in (
            one, one, older, one, older,
            replace(one, state={"key_index": 5}),
            replace(one, state={"key_index": 5, "partitions": [[7, 8, True]]}),
            replace(one, state={"key_index": 5, **full}),  # rows that came are in the log
            replace(one, columns=(*COLUMNS, *COLUMNS)),
        )
    ]  # fmt: skip
    found = store.history("public", name)
    assert [(each["version"], each["current"], each["state"]) for each in found] == [
        ("v", True, {}), ("u", False, {}), ("v", True, {}), ("v", True, {"key_index": 5}),
        ("v", True, {"key_index": 5, "partitions": [[7, 8, True]]}), ("v", True, {}),
    ]  # fmt: skip
    assert store.history("other", name) == []
    first, again, _, back, _, *rest = revisions
    assert first == again
    assert back == first + 2
    assert rest == [back + 1, back + 2, back + 2, back + 3]


def test_two_pipelines_do_not_fight_over_a_table(nats: Nats) -> None:
    settings, name = JetStreamSettings(url=nats.url), f"t-{uuid.uuid4().hex}"
    one, other = SchemaBucket(settings, "one"), SchemaBucket(settings, "other")
    for _ in range(3):
        one.put(schema(name, "of one"))
        other.put(schema(name, "of other"))
    one.remove((name,))
    assert [(one["pipeline"], one["version"]) for one in documents(settings, name)] == [
        ("one", "of one"),
        ("other", "of other"),
    ]


def test_a_bucket_outlives_its_server(own_nats: Callable[..., Nats]) -> None:
    server = own_nats()
    settings = JetStreamSettings(url=server.url)
    store = SchemaBucket(settings, "shop")
    store.put(schema("t", "one"))
    server.stop()
    with pytest.raises(Unavailable):
        store.put(schema("t", "three"))
    server.start()
    store.put(schema("t", "three"))


@pytest.mark.parametrize(
    ("account", "said"),
    [
        ({"permissions": {"publish": ["cdc.>", "$JS.API.>"]}}, "KV.schemas"),
        ({"permissions": {"publish": ["cdc.>"]}}, "JS.API"),
        ({"permissions": {"publish": ["cdc.>", "$KV.>"]}}, "JS.API"),
    ],
)
def test_an_account_that_may_publish_its_changes_alone_is_refused_and_reads_on(
    own_nats: Callable[..., Nats],
    account: dict[str, Any],
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    user = {"user": "u", "password": "p", **account}
    settings = JetStreamSettings(
        url=own_nats({"authorization": {"users": [user]}}).url, user="u", password="p"
    )
    announced = Announced(SchemaBucket(settings, "shop"))
    for version in ("one", "two"):
        announced.record(schema("t", version))
    (record,) = caplog.records
    assert said in record.getMessage()


@pytest.mark.parametrize("has_jetstream", [True, False])
def test_without_jetstream_or_room_changes_flow(
    own_nats: Callable[..., Nats], caplog: pytest.LogCaptureFixture, *, has_jetstream: bool
) -> None:
    limits = {"max_mem": 1 << 20, "max_file": 1 << 24, "max_streams": 1}
    account = {"users": [{"user": "u", "password": "p"}], "jetstream": limits}
    server = own_nats({"accounts": {"A": account}} if has_jetstream else {"jetstream": False})
    settings = JetStreamSettings(url=server.url, user="u", password="p")
    if has_jetstream:
        with closing(Connection(settings)) as connection:
            connection.open()
            JetStream(connection).create({"name": "CDC", "subjects": ["cdc.>"]})
    announced = Announced(SchemaBucket(settings, "shop"))
    announced.record(schema("t", "one"))
    (record,) = caplog.records
    assert ("maximum" if has_jetstream else "no JetStream") in record.getMessage()


# News.

NEWS = {"backend": "default", "cause": "slot_missing"}


@pytest.fixture
def server_of(own_nats: Callable[..., Nats], sink_of: Any) -> Callable[..., Any]:
    """A server alone (one stream of an account takes all news), and what the sink has of it."""

    def make(subject: str = "cdc.{collection}") -> tuple[Nats, JetStreamServer]:
        nats = own_nats()
        sink = sink_of(nats.url, stream="CDC", subject=subject)
        sink.prepare()
        return nats, JetStreamServer(sink.settings)

    return make


def asked(nats: Nats, question: Callable[[Any], Any]) -> Any:
    async def ask() -> Any:
        connection = await nats_py.connect(nats.url)
        try:
            return await question(connection.jetstream())
        finally:
            await connection.close()

    return asyncio.run(ask())


def kept(nats: Nats, stream: str) -> int:
    async def question(jetstream: Any) -> int:
        try:
            return int((await jetstream.stream_info(stream)).state.messages)
        except nats_py.js.errors.NotFoundError:
            return -1

    return int(asked(nats, question))


def test_news_is_kept_in_its_own_stream_made_when_there_is_some(server_of: Any) -> None:
    nats, server = server_of()
    assert kept(nats, "PENSTOCK_EVENTS") == -1
    for identity, count in (("1", 1), ("1", 1), ("2", 2)):  # the same news is stored once
        where = server.announce("penstock.gap.default", NEWS, identity=identity)
        assert (where, kept(nats, where)) == ("PENSTOCK_EVENTS", count)
    assert kept(nats, "CDC") == 0


def test_a_stream_of_changes_that_takes_the_subject_refuses_the_news(server_of: Any) -> None:
    """Else a message that is no change would be the last of a shard, and the fence would break."""
    nats, server = server_of("penstock.{operation}.{collection}")
    assert listening(nats, server) == ("", b'{"backend":"default","cause":"slot_missing"}')
    assert kept(nats, "CDC") == 0


def listening(nats: Nats, server: JetStreamServer) -> tuple[str, bytes]:
    """Where news is kept, and what a subscriber gets of it."""

    async def listen() -> tuple[str, bytes]:
        connection = await nats_py.connect(nats.url)
        try:
            subscription = await connection.subscribe("penstock.gap.>")
            await connection.flush()
            where = await asyncio.to_thread(
                server.announce, "penstock.gap.default", NEWS, identity="1"
            )
            return where, (await subscription.next_msg(timeout=60)).data
        finally:
            await connection.close()

    return asyncio.run(listen())


def test_an_events_stream_with_other_subjects_keeps_nothing_and_says_so(server_of: Any) -> None:
    nats, server = server_of()

    async def make(jetstream: Any) -> None:
        await jetstream.add_stream(name="PENSTOCK_EVENTS", subjects=["elsewhere.>"])

    asked(nats, make)
    assert listening(nats, server)[0] == ""
