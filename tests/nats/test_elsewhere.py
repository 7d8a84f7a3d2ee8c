"""JetStream across a leaf node, and through another account's import; a user whose answers come
under a prefix of its own. Real servers, and each thing that penstock does with one."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from penstock import cli
from penstock.cli.options import settings_of
from penstock.consumer.tail.reader import TailReader
from penstock.leases import Lease
from penstock.leases.nats import NatsStore
from penstock.model.errors import SettingsError, Unavailable
from penstock.nats.api import JetStream
from penstock.nats.buckets import Bucket
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from tests.consumer.mirror.world import World, same
from tests.servers import Database, Nats, free_port
from tests.sinks.changes import batch_of
from tests.waiting import until

Way = tuple[str, dict[str, Any]]  # a server's URL, and the settings that reach the hub's JetStream
Both = tuple[Nats, dict[str, Any], Way]  # the hub's server, its login, and the way from elsewhere


def _leaf(own_nats: Callable[..., Nats]) -> Both:
    port = free_port()
    hub = own_nats({
        "jetstream": {"domain": "hub"},
        "leafnodes": {"host": "127.0.0.1", "port": port},
    })  # fmt: skip
    leaf = own_nats({
        "jetstream": {"domain": "edge"},
        "leafnodes": {"remotes": [{"url": f"nats://127.0.0.1:{port}"}]},
    })  # fmt: skip
    return hub, {}, (leaf.url, {"domain": "hub"})


_EXPORTS = [
    {"service": "$JS.API.>", "response_type": "stream"},
    {"service": "$KV.>"},
    {"service": "cdc.>"},
    {"service": "penstock.>"},
    {"service": "init.>"},
    {"service": "snapshot.>"},
]
_IMPORTS = [
    {"service": {"account": "HUB", "subject": "$JS.API.>"}, "to": "JS.hub.API.>"},
    {"service": {"account": "HUB", "subject": "$KV.>"}, "to": "JS.hub.API.$KV.>"},
    {"service": {"account": "HUB", "subject": "cdc.>"}},
    {"service": {"account": "HUB", "subject": "penstock.>"}},
    {"service": {"account": "HUB", "subject": "init.>"}},
    {"service": {"account": "HUB", "subject": "snapshot.>"}},
]


def _import(own_nats: Callable[..., Nats]) -> Both:
    """The account APP has a JetStream of its own, and imports that of HUB."""
    server = own_nats({
        "accounts": {
            "HUB": {
                "jetstream": "enabled",
                "users": [{"user": "hub", "password": "h"}],
                "exports": _EXPORTS,
            },
            "APP": {
                "jetstream": "enabled",
                "users": [{
                    "user": "app", "password": "a",
                    "permissions": {"publish": [">"], "subscribe": ["_APP.>", "snapshot.>"]},
                }],
                "imports": _IMPORTS,
            },
        },
    })  # fmt: skip
    ways = {"user": "app", "password": "a", "api_prefix": "JS.hub.API", "inbox_prefix": "_APP"}
    return server, {"user": "hub", "password": "h"}, (server.url, ways)


@pytest.fixture(params=[_leaf, _import])
def both(request: pytest.FixtureRequest, own_nats: Callable[..., Nats]) -> Both:
    found: Both = request.param(own_nats)
    return found


@pytest.fixture
def way(both: Both) -> Iterator[Way]:
    found = both[2]
    with closing(Connection(_settings(found))) as connection:

        def is_reached() -> bool:
            connection.open()
            try:
                return bool(JetStream(connection).account())
            except Unavailable:  # the leaf node is not connected yet
                return False

        until(is_reached)
    yield found


def _settings(way: Way) -> NatsSettings:
    url, settings = way
    return NatsSettings.model_validate({"url": url, "timeout": 20, **settings})


@pytest.mark.parametrize("delivery", ["exactly-once", "deduplicated"])
def test_changes_are_stored_and_read_elsewhere(way: Way, delivery: str) -> None:
    url, settings = way
    sink = JetStreamSink(
        JetStreamSettings.model_validate(
            {"url": url, "delivery": delivery, "timeout": 20, "encoding": "json", **settings}
        )
    )
    sink.prepare()
    assert sink.write([batch_of(30)], ignore).published == 30
    assert sink.write([batch_of(30)], ignore).published == 0
    assert [each for each in sink.check() if each.level == "error"] == []
    with closing(TailReader(_settings(way), "CDC")) as reader:
        found: list[Any] = []

        def is_read() -> bool:  # what has arrived may be a part
            found.extend(change for _, changes in reader.read() for change in changes)
            return len(found) >= 30

        until(is_read)
        assert len(found) == 30


def test_the_local_jetstream_has_none_of_it(way: Way) -> None:
    url, settings = way
    JetStreamSink(JetStreamSettings.model_validate({"url": url, **settings})).prepare()
    local = {
        name: value for name, value in settings.items() if name not in ("domain", "api_prefix")
    }
    with closing(Connection(_settings((url, local)))) as connection:
        connection.open()
        assert JetStream(connection).stream("CDC") is None


def test_buckets_elsewhere_are_written_and_read(way: Way) -> None:
    with closing(Connection(_settings(way))) as connection:
        connection.open()
        bucket = Bucket(connection, "things")
        bucket.create()
        first = bucket.put("a.b", b"1")
        assert bucket.swap([("a.b", b"2", first), ("c", b"3", 0)])[0] == first + 1
        found = {each.key: each.value for each in bucket.entries()}
        assert found == {"a.b": b"2", "c": b"3"}
        bucket.delete("c")
        assert bucket.get("c") is None


def test_positions_are_kept_elsewhere(way: Way) -> None:
    url, settings = way
    options = {name: value for name, value in settings.items() if name not in ("user", "password")}
    login = f"{settings['user']}:{settings['password']}@" if "user" in settings else ""
    query = "&".join(f"{name}={value}" for name, value in options.items())
    store = NatsStore(f"{url.replace('://', f'://{login}')}/POSITIONS?{query}")
    put = store.put(Lease(name="orders/p", continuation="x"))
    assert store.list("orders/") == [put]
    store.close()


def test_a_tail_is_told_the_way_by_options(way: Way) -> None:
    url, settings = way
    sink = JetStreamSink(JetStreamSettings.model_validate({"url": url, **settings}))
    sink.prepare()
    sink.write([batch_of(3)], ignore)
    login = f"{settings['user']}:{settings['password']}@" if "user" in settings else ""
    options = [
        text
        for name, value in settings.items()
        if name not in ("user", "password")
        for text in (f"--{name.replace('_', '-')}", value)
    ]
    asked = ["tail", "--url", url.replace("://", f"://{login}"), "--no-follow", "--json", *options]
    found = CliRunner().invoke(cli.main, asked)
    assert found.exit_code == 0, found.output
    assert len(found.output.splitlines()) == 3


@pytest.mark.parametrize("pipeline", ["hub", "elsewhere"])
def test_a_mirror_elsewhere_is_loaded_and_follows(
    pipeline: str, both: Both, way: Way, database: Database, tmp_path: Path
) -> None:
    """First it asks for a snapshot. Later none is to be had: it goes on with the changes alone, and
    another mirror is loaded from the snapshot that is stored."""
    server, login, _ = both
    url, settings = (server.url, login) if pipeline == "hub" else way
    first, second = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second"))
    database.execute("CREATE TABLE t (id int PRIMARY KEY, name text); INSERT INTO t VALUES (1)")
    with closing(World(database, server, tmp_path, url=url, **settings)) as world:
        made = world.start().mirror(first, server=_settings(way))
        assert made.status.snapshots == 1
        same(database, first, "t")
        world.stop_service()
        database.execute("INSERT INTO t VALUES (2, 'x'); UPDATE t SET name = 'y' || id")
        made = world.mirror(first, server=_settings(way))
        assert (made.status.snapshots, made.status.changes) == (0, 3)
        same(database, first, "t")
        world.mirror(second, server=_settings(way))
        same(database, second, "t")


def test_a_domain_that_nobody_answers_for_is_named(nats: Nats) -> None:
    with closing(Connection(_settings((nats.url, {"domain": "moon"})))) as connection:
        connection.open()
        with pytest.raises(Unavailable, match=r"on \$JS\.moon\.API") as caught:
            JetStream(connection).account()
    assert "leaf node" in caught.value.hint


def test_answers_come_under_the_prefix_that_the_user_may_subscribe_to(
    own_nats: Callable[..., Nats],
) -> None:
    permissions = {"publish": [">"], "subscribe": ["_INBOX_penstock.>"]}
    users = [{"user": "u", "password": "p", "permissions": permissions}]
    server = own_nats({"accounts": {"A": {"jetstream": "enabled", "users": users}}})
    login = {"user": "u", "password": "p"}
    ways = {**login, "inbox_prefix": "_INBOX_penstock"}
    with closing(Connection(_settings((server.url, ways)))) as connection:
        connection.open()
        assert JetStream(connection).account()
    with (
        closing(Connection(_settings((server.url, login)))) as connection,
        pytest.raises(SettingsError, match="_INBOX"),
    ):
        connection.open()


@pytest.mark.parametrize(
    ("settings", "api"),
    [
        ({}, "$JS.API"),
        ({"domain": "hub"}, "$JS.hub.API"),
        ({"api_prefix": "$JS.hub.API"}, "$JS.hub.API"),
        ({"api_prefix": "JS.of.hub"}, "JS.of.hub"),
    ],
)
def test_a_domain_is_a_prefix(settings: dict[str, str], api: str) -> None:
    assert NatsSettings.model_validate({"url": "nats://h", **settings}).api == api
    login = dict.fromkeys(("credentials", "nkey", "tls_ca", "inbox_prefix"))
    assert settings_of("nats://h", {**login, **settings}).inbox_prefix == "_INBOX"


@pytest.mark.parametrize(
    "wrong",
    [{"domain": "a.b"}, {"domain": "*"}, {"api_prefix": "a."}, {"inbox_prefix": "a.>"},
     {"inbox_prefix": ""}, {"domain": "a", "api_prefix": "b"}],
)  # fmt: skip
def test_what_is_no_subject_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        NatsSettings.model_validate({"url": "nats://h", **wrong})
