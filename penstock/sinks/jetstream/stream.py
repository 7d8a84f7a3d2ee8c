"""The stream: made when it is missing, verified when it is there, and else left as it is.

With one exception: where message ids come to matter, a stream that was made to keep none gets a
duplicate window (`remembering`)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.model.errors import SettingsError
from penstock.nats.api import JetStream, unfit
from penstock.nats.connection import Connection
from penstock.nats.subjects import covers
from penstock.sinks.jetstream.settings import LEAST_WINDOW, Delivery, JetStreamSettings
from penstock.sinks.subject import Template

ATOMIC_SINCE = (2, 12, 1)  # 2.12.0 has batches, but refuses message ids inside them
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TargetStream:
    """What STREAM.INFO says, as far as it matters to a writer."""

    name: str
    config: Mapping[str, Any]
    servers: tuple[str, ...] = ()  # that have a copy; known in a cluster only

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> "TargetStream":
        """From the answer to STREAM.INFO or STREAM.CREATE."""
        cluster = info.get("cluster") or {}
        names = [cluster.get("leader"), *(one["name"] for one in cluster.get("replicas") or ())]
        return cls(
            info["config"]["name"], info["config"], tuple(str(name) for name in names if name)
        )

    @property
    def atomic(self) -> bool:
        return bool(self.config.get("allow_atomic"))

    @property
    def replicated(self) -> bool:
        return int(self.config.get("num_replicas") or 1) > 1

    def is_ours(self, template: Template) -> bool:
        """True when nothing can be stored but under the subjects of `template`."""
        return not self.config.get("sources") and all(
            covers(template.wildcard, subject) for subject in self.config.get("subjects") or ()
        )

    @property
    def retention(self) -> str:
        """limits, interest or workqueue."""
        return str(self.config.get("retention", "limits"))

    @property
    def duplicate_window(self) -> float:
        """Seconds."""
        return int(self.config.get("duplicate_window") or 0) / _NANOSECONDS

    @property
    def largest(self) -> int:
        """Bytes that a message may have, or 0 for what the server takes."""
        return max(int(self.config.get("max_msg_size") or 0), 0)


def wanted(
    settings: JetStreamSettings, template: Template, version: tuple[int, ...]
) -> dict[str, Any]:
    """The configuration of a stream that we make."""
    atomic = version >= ATOMIC_SINCE
    exact = atomic and settings.delivery in ("auto", "exactly-once")
    exact = exact and settings.retention == "limits"
    config = own_stream(settings.stream, template.wildcard, settings) | {
        "retention": settings.retention,
        "max_age": int(settings.max_age * _NANOSECONDS),
        "max_bytes": settings.max_bytes or -1,
        "duplicate_window": int(settings.remembers(exact=exact) * _NANOSECONDS),
        "allow_direct": True,  # the places of many partitions in a few requests
    }
    return config | {"allow_atomic": True} if atomic else config


def own_stream(name: str, subject: str, settings: JetStreamSettings) -> dict[str, Any]:
    """What all streams have that we make."""
    return {
        "name": name,
        "subjects": [subject],
        "retention": "limits",
        "discard": "old",
        "storage": settings.storage,
        "num_replicas": settings.replicas,
    }


def ensure(
    connection: Connection, api: JetStream, settings: JetStreamSettings, template: Template
) -> tuple[TargetStream, bool]:
    """The stream, and whether we made it now. Raises SettingsError if it is unfit, Unavailable."""
    info = api.stream(settings.stream)
    made = info is None
    if info is None:
        info = api.create(wanted(settings, template, connection.version))
    stream = TargetStream.of(info)
    for problem, remedy in problems(stream, template):
        raise SettingsError(
            f"the stream {stream.name} {problem}", "jetstream.stream-unfit", hint=remedy
        )
    return stream, made


def is_widened(stream: TargetStream, settings: JetStreamSettings) -> bool:
    """Whether `remembering` changes it."""
    return settings.duplicate_window is None and stream.duplicate_window == LEAST_WINDOW


def remembering(api: JetStream, stream: TargetStream, settings: JetStreamSettings) -> TargetStream:
    """The stream, for a delivery that relies on message ids: one that was made for exactly-once,
    to keep them for no time, keeps them for the usual time from now on. Raises SettingsError,
    Unavailable."""
    if not is_widened(stream, settings):
        return stream
    window = int(settings.remembers(exact=False) * _NANOSECONDS)
    window = min(window, int(stream.config.get("max_age") or window))  # more is refused
    return TargetStream.of(api.update({**stream.config, "duplicate_window": window}))


def problems(stream: TargetStream, template: Template) -> Iterator[tuple[str, str]]:
    """What keeps a stream from taking our messages: (problem, remedy)."""
    subjects = stream.config.get("subjects") or ()
    if not any(covers(one, template.wildcard) for one in subjects):
        yield (
            f"does not take {template.wildcard} (its subjects: {', '.join(subjects) or 'none'})",
            f"nats stream edit {stream.name} --subjects '{template.wildcard}', or change the "
            "sink's subject or stream",
        )
    yield from unfit(stream.name, stream.config, template.wildcard)


# Settings that shape a stream: the server's name, and what a unit is there.
_SHAPES = {
    "replicas": ("num_replicas", 1), "storage": ("storage", None), "retention": ("retention", None),
    "max_age": ("max_age", _NANOSECONDS), "max_bytes": ("max_bytes", 1),
}  # fmt: skip


def differences(stream: TargetStream, settings: JetStreamSettings) -> Iterator[tuple[str, str]]:
    """Settings that were given and that a stream does not have: (name, what the stream has)."""
    for name in sorted(settings.model_fields_set & _SHAPES.keys()):
        key, unit = _SHAPES[name]
        asked, found = getattr(settings, name), stream.config.get(key)
        if unit:
            found = max(int(found or 0), 0) / unit  # no limit is -1 there
        if asked != found:
            yield name, f"{found:g}" if unit else str(found)


class Choice(NamedTuple):
    """A delivery, why it is this one, and what would make a better one possible."""

    delivery: Delivery
    reason: str
    remedy: str = ""


def is_exact(asked: Delivery, stream: TargetStream, version: tuple[int, ...]) -> bool:
    return asked in ("auto", "exactly-once") and not _obstacle(stream, version)[0]


def choose(asked: Delivery, stream: TargetStream, version: tuple[int, ...]) -> Choice:
    """The delivery; raises SettingsError when what was asked for cannot be."""
    if asked in ("deduplicated", "at-least-once"):
        return Choice(asked, "as configured")
    obstacle, remedy = _obstacle(stream, version)
    if not obstacle:
        return Choice("exactly-once", "the stream takes atomic batches")
    if asked == "exactly-once":
        raise SettingsError(
            f"delivery exactly-once is not possible: {obstacle}",
            "jetstream.not-exactly-once",
            hint=remedy,
        )
    return Choice("deduplicated", obstacle, remedy)


def _obstacle(stream: TargetStream, version: tuple[int, ...]) -> tuple[str, str]:
    shown = ".".join(map(str, version))
    if version < ATOMIC_SINCE:
        return f"nats-server {shown} has no atomic batches", "2.12.1 and later have them"
    if stream.config.get("persist_mode") == "async":
        return (
            f"the stream {stream.name} has persist_mode async, which excludes atomic batches",
            "use another stream: this cannot be changed",
        )
    if not stream.atomic:
        return (
            f"the stream {stream.name} does not allow atomic batches",
            f"nats stream edit {stream.name} --allow-batch",
        )
    if stream.retention != "limits":
        return (
            f"the stream {stream.name} forgets what was consumed ({stream.retention} retention), "
            "so its last message is no record",
            "use a stream with limits retention",
        )
    return "", ""
