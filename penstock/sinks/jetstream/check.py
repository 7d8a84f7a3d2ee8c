"""Preflight of the JetStream side: one finding for everything that could keep us from running, or
could lose data. Changes nothing: a missing stream is not made here."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from penstock.model.errors import PenstockError, SettingsError
from penstock.model.finding import Finding, Level, failed, finding
from penstock.nats.api import JetStream, unfit
from penstock.nats.compression import DictionaryBucket
from penstock.nats.connection import Connection
from penstock.nats.protocol import hpub
from penstock.nats.subjects import overlaps
from penstock.process.plugins import driver
from penstock.sinks.jetstream.durability import synced
from penstock.sinks.jetstream.owners import owners_stream, owners_subject
from penstock.sinks.jetstream.poison import dead_stream, record_subject, subject_of, tables_stream
from penstock.sinks.jetstream.settings import LEAST_WINDOW, USUAL_WINDOW, JetStreamSettings
from penstock.sinks.jetstream.stream import (
    TargetStream,
    choose,
    differences,
    is_exact,
    is_widened,
    problems,
    wanted,
)
from penstock.sinks.subject import Template, parse_template

_LONG_WINDOW = 10  # seconds
_OLDEST = (2, 9)  # what the tests run against begins there


def check(settings: JetStreamSettings) -> Iterator[Finding]:
    """Findings in the order that an operator mends them; stops at what makes the rest moot."""
    connection, name = Connection(settings), f"stream {settings.stream}"
    try:
        connection.open()
        yield from _server(connection)
        api = JetStream(connection)
        account = api.account()
        used, most = account.get("streams", 0), account.get("limits", {}).get("max_streams", -1)
        yield finding("ok", "JetStream", "is enabled for the account")
        info = api.stream(settings.stream)
        template = parse_template(settings.subject)
        if info is None:
            if 0 <= most <= used:
                yield finding(
                    "error", name, f"is missing, and the account has all {most} streams",
                    "raise the account's max_streams, or name a stream that exists",
                    code="jetstream.stream-limit",
                )  # fmt: skip
            yield _to_be_made(settings)
            stream = TargetStream(settings.stream, wanted(settings, template, connection.version))
        else:
            stream = TargetStream.of(info)
            yield finding("ok", name, "exists")
            yield from _fit(stream, template)
            yield from _as_asked(stream, settings)
        yield from _others(api, settings, template)
        yield from _beside(api, settings.stream)
        yield from _compression(settings, connection)
        yield from _sanity(stream, settings, connection)
        yield from _memory(stream, settings, connection)
        yield _delivery(settings, stream, connection)
        yield _durability(settings, stream, connection)
        subject = template.render(dict.fromkeys(template.fields, "penstock-check"))
        _try_to_publish(connection, subject)
        yield finding("ok", "NATS", f"may publish to {template.wildcard}")
        yield from _permission_beside(connection, settings.stream)
    except PenstockError as error:
        yield failed("NATS", error)
    finally:
        connection.close()


def _compression(settings: JetStreamSettings, connection: Connection) -> Iterator[Finding]:
    try:
        if settings.compression == "zstd":
            driver("zstandard")
        if settings.dictionaries and not DictionaryBucket(connection).tables(settings.stream):
            yield finding(
                "warning", "sink.dictionaries", f"no table of {settings.stream} has one yet",
                "penstock dictionaries train FILE, once the stream has some changes",
                code="jetstream.sink-dictionaries",
            )  # fmt: skip
    except SettingsError as error:
        yield failed("sink.compression", error)


def _server(connection: Connection) -> Iterator[Finding]:
    version = connection.info.get("version", "unknown")
    yield finding("ok", "NATS", f"nats-server {version} at {connection.address}")
    if connection.version < _OLDEST:
        yield finding(
            "warning", "NATS", f"nats-server {version} is older than what penstock is tested with",
            "use nats-server 2.10 or later", code="jetstream.server-old",
        )  # fmt: skip
    if not connection.info.get("headers"):
        yield finding(
            "error", "NATS", "the server has message headers switched off",
            "remove no_header_support from its configuration", code="jetstream.server-headers",
        )  # fmt: skip


def _to_be_made(settings: JetStreamSettings) -> Finding:
    subject = parse_template(settings.subject).wildcard
    copies = f"{settings.replicas} replica{'s' if settings.replicas > 1 else ''}"
    message = f"does not exist; it will be made for {subject} ({copies})"
    return finding("ok", f"stream {settings.stream}", message)


def _fit(stream: TargetStream, template: Template) -> Iterator[Finding]:
    found = list(problems(stream, template))
    for problem, remedy in found:
        yield finding(
            "error", f"stream {stream.name}", problem, remedy, code="jetstream.stream-unfit"
        )
    if not found:
        yield finding("ok", f"stream {stream.name}", f"takes {template.wildcard}")


def _as_asked(stream: TargetStream, settings: JetStreamSettings) -> Iterator[Finding]:
    """The pipeline file shapes a stream only when it is made."""
    for name, found in differences(stream, settings):
        yield finding(
            "warning", f"stream {stream.name}",
            f"was made with another {name} ({found}) than the file has: what exists is not changed",
            f"nats stream edit {stream.name}, or correct sink.{name}",
            code="jetstream.stream-differs",
        )  # fmt: skip


def _others(api: JetStream, settings: JetStreamSettings, template: Template) -> Iterator[Finding]:
    """A second stream with our subjects would answer too, and its acknowledgement is not ours."""
    for name in api.names(template.wildcard):
        if name == settings.stream:
            continue
        info = api.stream(name)
        subjects = info["config"].get("subjects") or () if info else ()
        if any(overlaps(subject, template.wildcard) for subject in subjects):
            yield finding(
                "error", f"stream {name}", f"takes subjects of {template.wildcard} as well",
                f"change the sink's subject, or the subjects of {name}",
                code="jetstream.subjects-shared",
            )  # fmt: skip


def _beside(api: JetStream, stream: str) -> Iterator[Finding]:
    """Streams beside the main one that are made on demand, and could not be then."""
    for name, subject in (
        (dead_stream(stream), subject_of(stream)),
        (tables_stream(stream), record_subject(stream)),
        (owners_stream(stream), owners_subject(stream)),
    ):
        for other in api.names(subject):
            if other != name:
                yield finding(
                    "warning", f"stream {other}",
                    f"takes {subject}, so {name} cannot be made when it is needed",
                    f"leave penstock.> out of the subjects of {other}",
                    code="jetstream.subjects-taken",
                )  # fmt: skip
        info = api.stream(name)
        for problem, remedy in unfit(name, info["config"], subject) if info else ():
            yield finding("error", f"stream {name}", problem, remedy, code="jetstream.stream-unfit")


def _sanity(
    stream: TargetStream, settings: JetStreamSettings, connection: Connection
) -> Iterator[Finding]:
    name, config = f"stream {stream.name}", stream.config
    if stream.retention != "limits":
        yield finding(
            "warning", name, f"has {stream.retention} retention: consumed changes are gone (all at "
            "once while there is no consumer), and a later consumer cannot bootstrap",
            "make a stream with limits retention, or create all consumers before the first start",
            code="jetstream.stream-retention",
        )  # fmt: skip
    yield from _limits(name, config)
    if 0 < stream.largest < min(connection.max_payload, settings.batch.max_bytes):
        yield finding(
            "warning", name, f"takes messages of {stream.largest} bytes at most: larger changes "
            "are rejected", f"nats stream edit {stream.name} --max-msg-size=-1",
            code="jetstream.stream-message-size",
        )  # fmt: skip
    for key, value, message, remedy in _LOSING:
        if (found := config.get(key)) and value in (found, None):
            yield finding("warning", name, message, remedy, code="jetstream.stream-loses")


# Configuration that loses changes, or adds what are none: (key, value, message, remedy).
_LOSING = (
    (
        "storage", "memory", "is kept in memory: a restart of the server loses what the source no "
        "longer has", "make a stream with file storage",
    ),
    (
        "persist_mode", "async", "acknowledges before it writes (persist_mode async): a crash of "
        "the server loses what the source no longer has", "make a stream without persist_mode",
    ),
    (
        "sources", None, "is filled from other streams, too (sources): under our subjects that "
        "ends exactly-once, and misleads readers", "give the sources a stream of their own",
    ),
    (
        "subject_delete_marker_ttl", None, "stores markers of what expired: they end exactly-once, "
        "and are no changes for readers", "make a stream without subject_delete_marker_ttl",
    ),
)  # fmt: skip


def _memory(
    stream: TargetStream, settings: JetStreamSettings, connection: Connection
) -> Iterator[Finding]:
    """Whether the server keeps message ids for as long as the delivery needs, and not more."""
    name, window = f"stream {stream.name}", stream.duplicate_window
    if is_exact(settings.delivery, stream, connection.version):
        if window > _LONG_WINDOW:
            yield finding(
                "ok", name, f"remembers message ids for {window:g} s, which exactly-once does not "
                "need: some thousands a second cost the server memory, and pauses to look at it",
                f"nats stream edit {stream.name} --dupe-window {LEAST_WINDOW * 1000:g}ms",
            )  # fmt: skip
    elif window < USUAL_WINDOW and not is_widened(stream, settings):
        yield finding(
            "warning", name, f"keeps message ids for {window:g} s: a later replay is stored "
            "twice, except with delivery exactly-once",
            f"nats stream edit {stream.name} --dupe-window 2m", code="jetstream.duplicate-window",
        )  # fmt: skip


_CAPS = {
    "max_msgs": "{} messages",
    "max_bytes": "{} bytes",
    "max_msgs_per_subject": "{} messages a subject",
}


def _limits(name: str, config: Mapping[str, Any]) -> Iterator[Finding]:
    """What a limit takes away, and what it keeps out."""
    caps = {key: text.format(config[key]) for key, text in _CAPS.items() if config.get(key, 0) > 0}
    full = []
    if config.get("discard") == "new":
        full = [caps.pop(key) for key in ("max_msgs", "max_bytes") if key in caps]
        if config.get("discard_new_per_subject") and "max_msgs_per_subject" in caps:
            full.append(caps.pop("max_msgs_per_subject"))
    if full:
        yield finding(
            "warning", name, f"accepts no more messages once it holds {' or '.join(full)}: the "
            "pipeline then waits, and the source keeps its log",
            "watch its size, or raise the limit", code="jetstream.stream-fills",
        )  # fmt: skip
    gone = list(caps.values())
    if (age := config.get("max_age", 0)) > 0:
        gone.append(str(timedelta(microseconds=age // 1000)))
    if gone:
        yield finding(
            "warning", name, f"keeps only {' and '.join(gone)}: a later consumer misses "
            "changes", "raise the limit to cover the longest outage of a consumer",
            code="jetstream.stream-forgets",
        )  # fmt: skip


def _delivery(settings: JetStreamSettings, stream: TargetStream, connection: Connection) -> Finding:
    try:
        choice = choose(settings.delivery, stream, connection.version)
    except PenstockError as error:
        return failed("delivery", error)
    level: Level = "ok" if choice.delivery in ("exactly-once", settings.delivery) else "warning"
    return finding(
        level, "delivery", f"{choice.delivery}: {choice.reason}", choice.remedy,
        code="jetstream.delivery",
    )  # fmt: skip


def _durability(
    settings: JetStreamSettings, stream: TargetStream, connection: Connection
) -> Finding:
    if settings.durability == "default":
        return finding(
            "ok", "durability", "default: a power loss can take what was acknowledged last, unless "
            "the servers sync always; if they do, durability: fsync also publishes faster there",
        )  # fmt: skip
    try:
        reason = synced(settings, stream, str(connection.info.get("server_name", "")))
    except PenstockError as error:
        return failed("durability", error)
    return finding("ok", "durability", f"fsync: {reason}")


def _permission_beside(connection: Connection, stream: str) -> Iterator[Finding]:
    """A pipeline runs without this, and what it then lacks shows only when it is needed."""
    try:
        _try_to_publish(connection, owners_subject(stream).replace(">", "penstock-check"))
    except SettingsError:
        yield finding(
            "warning", "NATS", "may not publish to penstock.>: no dead letters, no notices, and no"
            " lease that keeps an instance with other positions from writing as well",
            "permit the user to publish to penstock.>", code="jetstream.may-not-publish",
        )  # fmt: skip


def _try_to_publish(connection: Connection, subject: str) -> None:
    """A denial shows only when it is tried: with a message that no stream stores."""
    headers = b"NATS/1.0\r\nNats-Expected-Stream: penstock-check\r\n\r\n"
    connection.send(hpub(subject.encode(), b"", headers, b""))
    connection.ping()  # a denial comes before the answer, and raises
