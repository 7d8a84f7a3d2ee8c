"""How far the stream has each partition: the position of the last message under its subjects.

The stream is the truth. Reading the last message of a shard (the subjects of one partition) back
gives the place after which to continue, and the sequence that the fence needs.

That record is only as good as the order it was stored in. Batches cannot be stored with a hole, nor
can single messages in a chain (`individual`). On replicated streams single messages can, when one
of many in flight is refused and the process dies before it is sent again: stop a pipeline there in
order before changing it from deduplicated to exactly-once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.model.errors import SettingsError
from penstock.model.position import Mark, Place
from penstock.nats.api import JetStream, Stored
from penstock.sinks.encoding.message import Origin, read_bookmark
from penstock.sinks.subject import Template


class OtherWriters(SettingsError):
    """The shard has messages of another origin or of another program, so its last message is no
    record of the place."""


@dataclass(frozen=True, slots=True)
class ShardState:
    """The last message of a shard. `sequence` 0: the stream has none; then `place` is None.
    `mark`: of the message's last change; empty where it has none."""

    sequence: int = 0
    place: Place | None = None
    mark: Mark = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """`sequence` is the stream's last. `emptied`: the stream had messages and has none."""

    sequence: int
    emptied: bool
    shards: Mapping[Origin, ShardState]


def read_shards(
    api: JetStream,
    stream: str,
    template: Template,
    origins: Sequence[Origin],
    *,
    strict: bool = True,
) -> StreamState:
    """Reads the last message of each shard, of all in a few requests where the server can. A shard
    whose last message is no record of it raises OtherWriters if `strict`, and is left out if not.
    Raises Unavailable, SettingsError."""
    # The sequence first: the fence refuses us for what is stored between the two requests. In the
    # other order it would accept a batch although a place was too old.
    info = api.stream(stream)
    sequence = int(info["state"]["last_seq"]) if info else 0
    if info is None or not info["state"]["messages"]:
        states = dict.fromkeys(origins, ShardState())
        return StreamState(sequence=sequence, emptied=sequence > 0, shards=states)
    config = info["config"]
    single = int(config.get("num_replicas") or 1) == 1
    direct = len(origins) > 1 and single and bool(config.get("allow_direct"))
    subjects = [template.shard(*origin) for origin in origins]
    lasts = api.last_of_each(stream, subjects, direct=direct)
    states = {}
    for origin, subject, last in zip(origins, subjects, lasts, strict=True):
        try:
            states[origin] = _state(stream, subject, origin, last)
        except OtherWriters:
            if strict:
                raise
    return StreamState(sequence=sequence, emptied=False, shards=states)


def _state(stream: str, subject: str, origin: Origin, last: Stored | None) -> ShardState:
    if last is None:
        return ShardState()
    found = read_bookmark(last.headers)
    if found is None:
        raise OtherWriters(
            f"the last message of {stream} under {subject} ({last.subject}, sequence "
            f"{last.sequence}) is not from penstock",
            hint="give the sink a stream or subjects of its own, or use delivery: deduplicated",
        )
    owner, (place, mark, _) = found
    if owner != origin:
        raise shared(stream, subject, owner, origin)
    return ShardState(last.sequence, place, mark or {})


def shared(stream: str, subject: str, one: Origin, other: Origin) -> OtherWriters:
    """The error for two origins that write under one wildcard."""
    return OtherWriters(
        f"{one.backend}/{one.partition} and {other.backend}/{other.partition} both write to "
        f"{subject} of {stream}, so its last message is no record of either",
        hint="put {backend} and {source_partition} into the subject, each in a token of its own, "
        "or use delivery: deduplicated",
    )
