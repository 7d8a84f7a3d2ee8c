"""The sink's settings."""

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.config.pipeline import SinkChoice
from penstock.process.plugins import plugin
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from penstock.sinks.memory import MemorySinkSettings


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = JetStreamSettings(url="nats://h")
    assert settings.stream == "CDC"
    assert settings.subject == "cdc.{collection}.{operation}"
    assert settings.encoding == "msgpack"
    assert settings.delivery == "auto"
    assert settings.batch.model_dump() == {
        "max_size": 500, "max_wait": "100ms", "max_bytes": 262144,
    }  # fmt: skip


def test_a_pipeline_files_values_are_understood() -> None:
    settings = JetStreamSettings.model_validate(
        {
            "type": "jetstream",
            "url": "nats://h",
            "batch": {"max_size": 100, "max_wait": "50ms", "max_bytes": "1MiB"},
            "max_age": "7d",
        }
    )
    assert (settings.batch.max_wait, settings.batch.max_bytes) == (0.05, 1 << 20)
    assert settings.max_age == 7 * 86400


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", "has space"), ("stream", "a.b"), ("stream", ""), ("subject", "cdc.{tabel}"),
        ("encoding", "xml"), ("delivery", "exactly_once"), ("batch", {"max_size": 0}),
        ("batch", {"max_size": 1001}), ("replicas", 0), ("duplicate_window", "soon"),
        ("duplicate_window", "10ms"), ("max_age", "soon"), ("unknown", 1),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        JetStreamSettings.model_validate({"url": "nats://h", field: value})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_age": "1s", "duplicate_window": "2m"}, "max_age must not be shorter"),
        ({"retention": "interest", "delivery": "exactly-once"}, "needs retention: limits"),
        ({"dictionaries": True}, "dictionaries are for compression: zstd"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(fields: Any, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        JetStreamSettings(url="nats://h", **fields)


def test_defaults_follow_other_settings() -> None:
    settings = JetStreamSettings(url="nats://h", max_age="1s")
    assert (settings.remembers(exact=False), settings.remembers(exact=True)) == (1, 0.1)
    assert JetStreamSettings(url="nats://h", retention="interest").delivery == "auto"


def test_secrets_do_not_print() -> None:
    settings = JetStreamSettings(
        url="nats://u:s3cret@h", password="s3cret", token="s3cret", nkey="s3cret"
    )
    for text in (repr(settings), str(settings), repr(JetStreamSink(settings))):
        assert "s3cret" not in text
    assert settings.url.get_secret_value() == "nats://u:s3cret@h"
    assert pickle.loads(pickle.dumps(JetStreamSink(settings))).settings == settings


@pytest.mark.parametrize("name", ["jetstream", "memory"])
def test_the_sink_is_found_by_name(name: str) -> None:
    found = plugin("sinks", name)
    fields = {"url": "nats://h"} if name == "jetstream" else {}
    sink = found.build(found.settings(**fields))
    assert type(sink).__name__.lower() == f"{name}sink"


@pytest.mark.parametrize(
    ("encoding", "images"), [("json", "json"), ("msgpack", "msgpack"), ("arrow", "msgpack")]
)
def test_a_sink_says_how_it_wants_images(encoding: str, images: str) -> None:
    settings = JetStreamSettings.model_validate(
        {"url": "nats://h", "encoding": encoding, "messages": "batch"}
    )
    assert SinkChoice(type="jetstream", settings=settings).images == images
    memory = SinkChoice(type="memory", settings=MemorySinkSettings())
    assert memory.images == "json"
