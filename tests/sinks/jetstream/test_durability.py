"""`durability: fsync` runs only where somebody can tell that an acknowledged change is on disk."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.model.errors import SettingsError
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.durability import synced
from penstock.sinks.jetstream.stream import TargetStream
from tests.progress import Noted
from tests.servers import Nats, free_port
from tests.sinks.changes import batch_of
from tests.sinks.jetstream.raw import prepared, three_servers

ALWAYS = {"sync_always": True, "sync_interval": 120_000_000_000}
USUAL = {"sync_interval": 120_000_000_000}


def settings_for(*servers: str, **others: Any) -> JetStreamSettings:
    return JetStreamSettings(
        url="nats://h",
        durability="fsync",
        monitoring=",".join(f"http://{name}:8222" for name in servers) or None,
        **others,
    )


def stream_of(*servers: str, **config: Any) -> TargetStream:
    return TargetStream("S", {"storage": "file", **config}, servers)


def asking(**servers: Any) -> Any:
    """Monitoring endpoints: name -> JetStream's configuration, a version, or nothing."""

    def ask(url: str, timeout: float) -> Mapping[str, Any]:
        name = url.removeprefix("http://").removesuffix(":8222")
        told = servers.get(name)
        if told is None:
            raise ConnectionRefusedError(url)
        if isinstance(told, str):
            return {"server_name": name, "version": told, "jetstream": {"config": {}}}
        return {"server_name": name, "version": "2.15.1", "jetstream": {"config": told}}

    return ask


@pytest.mark.parametrize(
    ("settings", "stream", "servers", "reason"),
    [
        (settings_for("a"), stream_of(), {"a": ALWAYS}, "a of 1 syncs always"),
        # One of three may be down: it acknowledges nothing.
        (
            settings_for("a", "b", "c"), stream_of("a", "b", "c"), {"a": ALWAYS, "c": ALWAYS},
            "a, c of 3 sync always",
        ),
        (
            settings_for(assume_synced=True), stream_of(), {},
            "the operator says that the servers sync (assume_synced)",
        ),
    ],
)  # fmt: skip
def test_servers_that_sync_always_and_the_operators_word_are_enough(
    settings: JetStreamSettings, stream: TargetStream, servers: Any, reason: str
) -> None:
    assert synced(settings, stream, "a", asking(**servers)) == reason


@pytest.mark.parametrize(
    ("settings", "stream", "servers", "says"),
    [
        (settings_for(), stream_of(), {}, "it is not known"),
        (settings_for("a"), stream_of(), {"a": USUAL}, "a does not sync always"),
        (settings_for("a"), stream_of(), {"a": "2.9.10"}, "a is too old to tell"),
        (settings_for("a"), stream_of(), {}, "no answer from a:8222"),
        (settings_for("b"), stream_of(), {"b": ALWAYS}, "a could not be asked"),
        (settings_for("a"), stream_of(storage="memory"), {"a": ALWAYS}, "kept in memory"),
        (settings_for("a"), stream_of(persist_mode="async"), {"a": ALWAYS}, "before it writes"),
        (
            settings_for("a", "b", "c"),
            stream_of("a", "b", "c"),
            {"a": ALWAYS, "b": ALWAYS, "c": USUAL},
            "c does not sync always",
        ),
        (settings_for("a", "b"), stream_of("a", "b", "c"), {"a": ALWAYS}, "b, c could not"),
        (settings_for("a", "b"), stream_of("a", "b"), {"a": ALWAYS}, "b could not be asked"),
        (settings_for(assume_synced=True), stream_of(persist_mode="async"), {}, "before it writes"),
    ],
)
def test_what_does_not_sync_or_cannot_be_asked_is_refused_with_the_remedy(
    settings: JetStreamSettings, stream: TargetStream, servers: Any, says: str
) -> None:
    with pytest.raises(SettingsError, match=says) as caught:
        synced(settings, stream, "a", asking(**servers))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("fields", "known"),
    [
        ({}, False),
        ({"assume_synced": True}, True),
        ({"monitoring": "http://a:8222,http://b:8222"}, True),
        ({"monitoring": "http://b:8222"}, False),
        ({"monitoring": "http://silent:8222"}, False),
    ],
)
def test_servers_sync_each_message_where_something_says_so(fields: Any, known: bool) -> None:
    """Without `durability: fsync`; the server that holds the stream is `a`."""
    settings = JetStreamSettings(url="nats://h", **fields)
    for holder, is_known in (("a", known), ("b", "assume_synced" in fields)):
        with nullcontext() if is_known else pytest.raises(SettingsError):
            synced(settings, stream_of(holder), holder, asking(a=ALWAYS, b=USUAL))


@pytest.mark.parametrize(
    "wrong", [{"storage": "memory"}, {"monitoring": "localhost:8222"}, {"monitoring": "file:///x"}]
)
def test_settings_that_cannot_be_are_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        JetStreamSettings(url="nats://h", durability="fsync", **wrong)


def test_a_real_server_is_asked_and_a_restart_without_syncing_is_noticed(
    own_nats: Any, sink_of: Any
) -> None:
    port = free_port()
    server: Nats = own_nats({"http": f"127.0.0.1:{port}", "jetstream": {"sync_interval": "always"}})
    sink = sink_of(server.url, durability="fsync", monitoring=f"http://127.0.0.1:{port}")
    told = Noted()
    assert sink.write([batch_of(1, 1)], told).published == 1
    assert told[0]["durability"] == "fsync"
    assert "syncs always" in told[0]["details"]["durability_reason"]
    assert [f.level for f in sink.check() if f.subject == "durability"] == ["ok"]
    server.stop()
    server.config = {"http": f"127.0.0.1:{port}"}
    server.start()
    with pytest.raises(SettingsError, match="does not sync always"):
        sink.write([batch_of(1, 2)], ignore)
    with pytest.raises(SettingsError):
        sink.prepare()
    (finding,) = [f for f in sink.check() if f.subject == "durability"]
    assert (finding.level, "sync_interval: always" in finding.remedy) == ("error", True)


def test_every_server_of_a_replicated_stream_is_asked(sink_of: Any) -> None:
    ports = [free_port() for _ in range(3)]
    always = {"sync_interval": "always"}
    with three_servers(
        *({"http": f"127.0.0.1:{port}", "jetstream": always} for port in ports)
    ) as nodes:
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        fields = {"durability": "fsync", "replicas": 3, "timeout": "5s"}
        sink = sink_of(nodes[0].url, monitoring=",".join(urls), **fields)
        prepared(sink)
        assert sink.write([batch_of(100)], Noted()).published == 100
        lone = sink_of(nodes[0].url, monitoring=urls[0], **fields)
        with pytest.raises(SettingsError, match="could not be asked"):
            lone.prepare()
