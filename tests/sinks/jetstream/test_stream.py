"""The stream: made, verified, and looked at by the preflight check."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.model.errors import Rejected, SettingsError, Unavailable
from penstock.model.finding import Finding
from penstock.nats.api import ApiError, JetStream, error_of
from penstock.sinks import Record, ignore
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from penstock.sinks.jetstream.poison import ensure_stream
from penstock.sinks.jetstream.stream import TargetStream, choose, wanted
from penstock.sinks.subject import parse_template
from tests.progress import Noted
from tests.servers import Nats
from tests.sinks.changes import batch_of
from tests.sinks.jetstream.raw import Raw

pytestmark = pytest.mark.live
DAY = 86_400 * 10**9
TEMPLATE = parse_template("cdc.{collection}.{operation}")


@pytest.fixture
def check(sink_of: Any) -> Any:
    def run(**settings: Any) -> list[Finding]:
        return list(sink_of(**settings).check())

    return run


def levels(findings: list[Finding], level: str) -> list[str]:
    assert all(finding.remedy for finding in findings if finding.level != "ok")
    return [finding.message for finding in findings if finding.level == level]


def test_a_missing_stream_is_made_once(nats: Nats, settings_of: Any, raw: Raw) -> None:
    settings = settings_of(nats.url, max_age="7d", max_bytes="1MiB", duplicate_window="3m")
    sink = JetStreamSink(settings)
    sink.prepare()
    sink.prepare()
    config = raw.info(settings.stream)["config"]
    assert config["subjects"] == [f"{settings.stream}.*.*"]
    assert (config["retention"], config["storage"], config["discard"]) == ("limits", "file", "old")
    assert config["max_age"] == 7 * 86400 * 10**9
    assert config["max_bytes"] == 1 << 20
    assert config["duplicate_window"] == 180 * 10**9
    assert config["allow_atomic"] is True
    assert config["num_replicas"] == 1


def test_the_defaults_keep_everything_for_ever() -> None:
    config = wanted(JetStreamSettings(url="nats://h"), TEMPLATE, (2, 10))
    assert (config["max_age"], config["max_bytes"]) == (0, -1)
    assert config["duplicate_window"] == 120 * 10**9
    assert "allow_atomic" not in config


@pytest.mark.parametrize(
    ("settings", "version", "seconds"),
    [
        ({}, (2, 12, 1), 0.1), ({"delivery": "exactly-once"}, (2, 15, 1), 0.1),
        ({"delivery": "deduplicated"}, (2, 15, 1), 120),
        ({"delivery": "deduplicated", "max_age": "30s"}, (2, 15, 1), 30), ({}, (2, 12, 0), 120),
        ({"duplicate_window": "1m"}, (2, 15, 1), 60),
    ],
)  # fmt: skip
def test_message_ids_are_remembered_where_something_relies_on_them(
    settings: dict[str, Any], version: tuple[int, ...], seconds: float
) -> None:
    config = wanted(JetStreamSettings(url="nats://h", **settings), TEMPLATE, version)
    assert config["duplicate_window"] == seconds * 10**9


def test_a_stream_made_for_exactly_once_remembers_ids_where_they_matter_later(
    nats: Nats, stream: str, settings_of: Any, sink_of: Any, raw: Raw
) -> None:
    def window() -> float:
        return float(raw.info(stream)["config"]["duplicate_window"]) / 10**9

    sink_of(delivery="exactly-once").write([batch_of(3)], ignore)
    assert window() == 0.1
    chosen = settings_of(nats.url, delivery="deduplicated", duplicate_window="100ms")
    JetStreamSink(chosen).write([batch_of(3, 2)], ignore)
    assert window() == 0.1
    sink_of(delivery="deduplicated").write([batch_of(3, 3)], ignore)
    assert window() == 120
    sink_of(delivery="exactly-once").write([batch_of(3, 4)], ignore)
    assert window() == 120


def test_who_is_not_alone_relies_on_ids_that_are_remembered(
    stream: str, sink_of: Any, raw: Raw
) -> None:
    told = Noted()
    sink = sink_of(delivery="auto")
    sink.write([batch_of(3), batch_of(3, backend="other"), batch_of(3, 2)], told)
    assert [note["delivery"] for note in told if "delivery" in note][-1] == "deduplicated"
    info = raw.info(stream)
    assert (info["config"]["duplicate_window"], info["state"]["messages"]) == (120 * 10**9, 9)


def test_a_stream_that_exists_is_not_changed(stream: str, api: JetStream, sink_of: Any) -> None:
    before = api.create({"name": stream, "subjects": [f"{stream}.>"], "max_msgs": 77})
    sink_of(max_age="1h").write([batch_of(3)], ignore)
    after = api.stream(stream)
    assert after is not None
    assert after["config"] == before["config"]


def test_a_stream_with_other_subjects_is_a_settings_error(
    stream: str, api: JetStream, check: Any, sink_of: Any
) -> None:
    api.create({"name": stream, "subjects": [f"{stream}.only.this"]})
    with pytest.raises(SettingsError, match=rf"does not take {stream}\.\*\.\*") as caught:
        sink_of().write([batch_of(1)], ignore)
    assert "--subjects" in caught.value.hint
    assert any("does not take" in message for message in levels(check(), "error"))


def test_subjects_that_another_stream_has_are_a_settings_error(
    stream: str, api: JetStream, check: Any, sink_of: Any
) -> None:
    api.create({"name": f"{stream}OTHER", "subjects": [f"{stream}.users.*"]})
    with pytest.raises(SettingsError, match="subjects overlap"):
        sink_of().prepare()
    assert any("as well" in message for message in levels(check(), "error"))


UNFIT = [
    ({"no_ack": True}, "acknowledges nothing"),
    ({"sealed": True}, "is sealed"),
    ({"allow_msg_counter": True}, "takes nothing but increments"),
    ({"subject_transform": {"src": "{}.items.*", "dest": "moved.{}.*"}}, "is not found"),
    ({"subject_transform": {"src": "", "dest": "moved.>"}}, "is not found"),
    ({"subject_transform": {"src": "another.>", "dest": "moved.>"}}, ""),
]


def make_unfit(api: JetStream, name: str, subject: str, config: dict[str, Any]) -> None:
    base = {"name": name, "subjects": [subject], "allow_direct": True, "allow_atomic": True}
    if transform := config.get("subject_transform"):
        prefix = subject.removesuffix(".>")
        there = {
            "src": transform["src"].format(prefix),
            "dest": transform["dest"].format(prefix).replace("*", "{{wildcard(1)}}"),
        }
        config = {"subject_transform": there}
    created = api.create(base if config.get("sealed") else base | config)
    if config.get("sealed"):
        api.update({**created["config"], "sealed": True})


@pytest.mark.parametrize(("config", "says"), UNFIT)
def test_a_stream_that_cannot_be_written_safely_is_a_settings_error(
    config: dict[str, Any], says: str, stream: str, api: JetStream, check: Any, sink_of: Any
) -> None:
    make_unfit(api, stream, f"{stream}.>", config)
    errors = levels(check(), "error")
    assert len(errors) == bool(says) and all(says in message for message in errors)
    if says:
        with pytest.raises(SettingsError, match=says):
            sink_of().prepare()
    else:
        sink_of().prepare()


@pytest.mark.parametrize(("config", "says"), [one for one in UNFIT if "subject" not in str(one)])
def test_so_is_one_for_what_is_set_aside(
    config: dict[str, Any],
    says: str,
    nats: Nats,
    stream: str,
    api: JetStream,
    settings_of: Any,
    check: Any,
) -> None:
    make_unfit(api, f"{stream}_DLQ", f"penstock.dlq.{stream}.>", config)
    assert [says in message for message in levels(check(), "error")] == [True]
    with pytest.raises(SettingsError, match=f"{stream}_DLQ .*{says}"):
        ensure_stream(api, f"{stream}_DLQ", f"penstock.dlq.{stream}.>", settings_of(nats.url))


def test_a_stream_that_keeps_messages_for_less_than_their_ids_is_written_to(
    stream: str, api: JetStream, sink_of: Any
) -> None:
    second = 10**9
    subjects = [f"{stream}.>"]
    api.create(
        {"name": stream, "subjects": subjects, "max_age": second, "duplicate_window": second // 10}
    )
    receipt = sink_of(delivery="deduplicated").write([batch_of(3)], ignore)
    info = api.stream(stream)
    assert receipt.published == 3 and info is not None
    assert info["config"]["duplicate_window"] == second


def test_check_makes_nothing_and_says_what_will_be_made(
    stream: str, api: JetStream, check: Any
) -> None:
    findings = check()
    assert levels(findings, "error") == levels(findings, "warning") == []
    assert any(f"will be made for {stream}.*.*" in one for one in levels(findings, "ok"))
    assert any("nats-server 2." in message for message in levels(findings, "ok"))
    assert any("may publish" in message for message in levels(findings, "ok"))
    assert any(message.startswith("exactly-once") for message in levels(findings, "ok"))
    assert api.stream(stream) is None


def test_check_warns_where_nothing_can_be_set_aside_and_no_lease_kept(
    own_nats: Callable[..., Nats], stream: str, sink_of: Any
) -> None:
    permissions = {"publish": [f"{stream}.>", "$JS.API.>"]}
    user = {"user": "u", "password": "p", "permissions": permissions}
    server = own_nats({"authorization": {"users": [user]}})
    findings = list(sink_of(server.url, user="u", password="p").check())
    assert levels(findings, "error") == []
    (warning,) = levels(findings, "warning")
    assert warning.startswith("may not publish to penstock.>")


def test_a_stream_is_made_with_the_retention_that_was_asked_for(
    nats: Nats, settings_of: Any, raw: Raw
) -> None:
    settings = settings_of(nats.url, retention="interest")
    sink = JetStreamSink(settings)
    sink.prepare()
    config = raw.info(settings.stream)["config"]
    assert (config["retention"], config["duplicate_window"]) == ("interest", 120 * 10**9)
    sink.write([batch_of(3)], ignore)
    again = sink.write([batch_of(3)], ignore)
    assert (again.published, again.duplicates) == (0, 3)
    found = {each.subject: each for each in sink.check()}
    assert found["delivery"].message.startswith("deduplicated")
    assert [each.level for each in found.values() if "retention" in each.message] == [
        "warning",
        "warning",
    ]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"max_age": "10m"}, "another max_age (3600)"),
        ({"retention": "interest"}, "another retention (limits)"),
        ({"storage": "memory"}, "another storage (file)"),
        ({"max_bytes": "1MiB"}, "another max_bytes (0)"),
        ({"max_age": "1h", "retention": "limits", "storage": "file", "replicas": 1}, None),
        ({}, None),
    ],
)
def test_check_says_what_a_stream_that_exists_does_not_have(
    asked: dict[str, Any], said: str | None, sink_of: Any
) -> None:
    sink_of(max_age="1h").prepare()
    findings = sink_of(**asked).check()
    found = [each for each in findings if "was made with" in each.message]
    assert [each.level for each in found] == (["warning"] if said else [])
    assert all(said in each.message for each in found if said)


def test_check_stores_nothing(stream: str, check: Any, sink_of: Any, raw: Raw) -> None:
    sink_of().prepare()
    check()
    assert raw.info(stream)["state"]["last_seq"] == 0


@pytest.mark.parametrize(
    ("config", "settings", "says"),
    [
        ({"retention": "workqueue"}, {}, "workqueue retention"),
        ({"retention": "interest"}, {}, "interest retention"),
        ({"retention": "interest"}, {"retention": "interest"}, "interest retention"),
        ({"max_msgs": 10}, {}, "keeps only 10 messages"),
        ({"max_bytes": 1000}, {}, "keeps only 1000 bytes"),
        ({"max_age": 3600 * 10**9}, {}, "keeps only 1:00:00"),
        ({"max_msgs_per_subject": 1}, {}, "1 messages a subject"),
        ({"max_msgs": 10, "discard": "new"}, {}, "accepts no more"),
        (
            {"duplicate_window": 10**9},
            {"delivery": "deduplicated"},
            "keeps message ids for 1 s",
        ),
        ({"max_msg_size": 1000}, {}, "takes messages of 1000 bytes at most"),
        ({"storage": "memory"}, {}, "kept in memory"),
        ({"persist_mode": "async", "allow_atomic": False}, {}, "acknowledges before it writes"),
        ({"persist_mode": "async", "allow_atomic": False}, {}, "excludes atomic batches"),
        ({"sources": [{"name": "ELSEWHERE"}]}, {}, "is filled from other streams"),
        (
            {"max_age": DAY, "allow_msg_ttl": True, "subject_delete_marker_ttl": DAY},
            {},
            "stores markers",
        ),
        ({"max_msgs": 10, "max_age": DAY, "discard": "new"}, {}, "keeps only 1 day, 0:00:00"),
        (
            {"max_msgs": 10, "max_age": DAY, "discard": "new"},
            {},
            "accepts no more messages once it holds 10",
        ),
        ({"max_msgs_per_subject": 2, "discard": "new", "max_bytes": 99}, {}, "keeps only 2 "),
        (
            {"max_msgs_per_subject": 2, "discard": "new", "discard_new_per_subject": True},
            {},
            "accepts no more messages once it holds 2 messages a subject",
        ),
        ({"allow_atomic": False}, {}, "deduplicated: the stream"),
    ],
)
def test_check_warns_of_what_could_lose_data(
    config: dict[str, Any], settings: dict[str, Any], says: str, stream: str, check: Any, raw: Raw
) -> None:
    raw.make(stream, **config)
    findings = check(**settings)
    assert levels(findings, "error") == []
    assert any(says in message for message in levels(findings, "warning")), findings


@pytest.mark.parametrize(("seconds", "says"), [(0.1, False), (120, True)])
def test_check_tells_that_exactly_once_needs_no_ids(
    seconds: float, says: bool, stream: str, check: Any, raw: Raw
) -> None:
    window = int(seconds * 10**9)
    raw.make(stream, duplicate_window=window)
    findings = check()
    assert levels(findings, "warning") == []
    remedies = [one.remedy for one in findings if "does not need" in one.message]
    assert remedies == [f"nats stream edit {stream} --dupe-window 100ms"] * says


def test_check_counts_what_was_asked_for_and_cannot_be_as_an_error(
    stream: str, check: Any, raw: Raw
) -> None:
    raw.make(stream, allow_atomic=False)
    errors = levels(check(delivery="exactly-once"), "error")
    assert any("does not allow atomic batches" in message for message in errors)


def stream_of(**config: Any) -> TargetStream:
    return TargetStream("S", {"allow_atomic": True, "retention": "limits", **config})


@pytest.mark.parametrize(
    ("stream", "version", "delivery", "says"),
    [
        (stream_of(), (2, 15, 1), "exactly-once", "takes atomic batches"),
        (stream_of(), (2, 12, 1), "exactly-once", "takes atomic batches"),
        (stream_of(), (2, 12, 0), "deduplicated", "2.12.0 has no atomic batches"),
        (stream_of(allow_atomic=None), (2, 10, 29), "deduplicated", "2.10.29"),
        (stream_of(allow_atomic=False), (2, 15, 1), "deduplicated", "--allow-batch"),
        (stream_of(retention="workqueue"), (2, 15, 1), "deduplicated", "workqueue"),
    ],
)
def test_auto_chooses_the_best_there_is_and_says_why(
    stream: TargetStream, version: tuple[int, ...], delivery: str, says: str
) -> None:
    choice = choose("auto", stream, version)
    assert choice.delivery == delivery
    assert says in f"{choice.reason} {choice.remedy}"
    if delivery != "exactly-once":
        with pytest.raises(SettingsError, match="not possible"):
            choose("exactly-once", stream, version)


@pytest.mark.parametrize("asked", ["deduplicated", "at-least-once"])
def test_what_is_asked_for_is_chosen(asked: Any) -> None:
    assert choose(asked, stream_of(), (2, 15))[:2] == (asked, "as configured")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (10039, 503, SettingsError), (10076, 503, SettingsError), (10054, 400, Rejected),
        (10058, 400, SettingsError), (10065, 400, SettingsError), (10174, 400, SettingsError),
        (10074, 400, SettingsError), (10005, 400, SettingsError), (10109, 400, SettingsError),
        (10169, 400, SettingsError), (10052, 500, SettingsError), (10077, 503, Unavailable),
        (10008, 503, Unavailable), (10023, 503, Unavailable), (10002, 400, Unavailable),
        (99999, 400, SettingsError), (99999, 500, Unavailable),
    ],
)  # fmt: skip
def test_each_error_of_jetstream_is_a_retry_decision(code: int, status: int, kind: type) -> None:
    error = error_of(ApiError(code, status, "what happened"), "STREAM.CREATE")
    assert type(error) is kind
    assert str(code) in error.message


# What a sink knows of a partition by its stream alone.


def test_a_stream_that_was_emptied_is_no_new_one(sink_of: Any, api: JetStream, stream: str) -> None:
    sink = sink_of()
    sink.write([batch_of(3, 7)], ignore)
    assert sink.records("another", ["shop"]) == {"shop": Record()}, "the stream is not its own"
    api._call(f"STREAM.PURGE.{stream}", {})
    assert sink.records("default", ["shop"]) == {"shop": Record(begun=True, emptied=True)}


@pytest.mark.parametrize("delivery", ["deduplicated", "at-least-once"])
def test_where_a_change_may_be_stored_behind_later_ones_the_last_says_nothing(
    sink_of: Any, delivery: str
) -> None:
    sink = sink_of(delivery=delivery)
    sink.write([batch_of(3, 7)], ignore)
    assert sink.records("default", ["shop"]) == {"shop": Record(begun=True)}
