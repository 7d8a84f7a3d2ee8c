"""How far the stream has each partition: the position of the last message under its subjects.

The stream is the truth. Reading the last message of a shard (the subjects of one partition) back
gives the place after which to continue, and the sequence that the fence needs.

That record is only as good as the order it was stored in. Batches cannot be stored with a hole, nor
can single messages in a chain (`individual`). On replicated streams single messages can, when one
of many in flight is refused and the process dies before it is sent again: stop a pipeline there in
order before changing it from deduplicated to exactly-once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.model.errors import LeaseLost, SettingsError, Unavailable
from penstock.model.position import Mark, Place
from penstock.nats.api import JetStream, Stored
from penstock.sinks.jetstream.owners import instances
from penstock.sinks.jetstream.publishing.flight import FlightBatch, Queue
from penstock.sinks.messages.message import read_bookmark, read_position
from penstock.sinks.rows.loop import Tally
from penstock.sinks.rows.part import Origin, OriginRun
from penstock.sinks.subject import Template
from penstock.wire.eras import is_comparable

_START = Place("", 0)  # before every place


class OtherWriters(SettingsError):
    """The shard has messages of others, so its last message is no record of the place."""


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
    if (found := read_bookmark(last.headers)) is None:
        raise OtherWriters(
            f"the last message of {stream} under {subject} ({last.subject}, sequence "
            f"{last.sequence}) is not from penstock",
            "jetstream",
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
        "jetstream",
        hint="put {backend} and {source_partition} into the subject, each in a token of its own, "
        "or use delivery: deduplicated",
    )


class OtherSource(SettingsError):
    """The stream has messages of a source that only has the same names."""


def other_source(what: str, origin: Origin, why: str) -> OtherSource:
    return OtherSource(
        f"{what} is of another source that is also named {origin.backend}/{origin.partition}:"
        f" {why}, and its changes would be taken for those of this source",
        "jetstream.other-source",
        hint="give one of the two pipelines another name of its backend, or a stream of its"
        " own; if the source was replaced, remove what the stream has of it",
    )


class StoredPlaces:
    """What of the changes of one write is stored, as it was read back, and as it was acknowledged.
    `stored` is the last place that is known to be stored of each origin that was
    read (None: nothing); `unread` are the origins that have to be read before they are sent."""

    def __init__(self, tally: Tally, stream: str, template: Template) -> None:
        self.api: JetStream | None = None
        self.stored: dict[Origin, Place | None] = {}
        self.unread: set[Origin] = set()
        # A cursor of each origin, and of which source it is.
        self.histories: dict[Origin, tuple[str, Mark]] = {}
        self._tally, self._stream, self._template = tally, stream, template
        self._sent: dict[Origin, Place] = {}  # the last place that ever was in flight
        self._owners: dict[str, Origin] = {}  # of the shards
        self._floor = 0  # the stream's sequence up to which it is known what is stored

    def meet(self, runs: Iterable[OriginRun]) -> bool:
        """Takes note of the origins; whether some rows are stored already, as far as is known.
        Raises OtherWriters when two origins share a shard."""
        stored = self.stored
        found = False
        for run in runs:
            if run.origin in stored:
                place = stored[run.origin]
                found = found or (place is not None and run.first <= place)
            elif run.origin not in self.unread:
                shard = self._template.shard(*run.origin)
                owner = self._owners.setdefault(shard, run.origin)
                if owner != run.origin:
                    raise shared(self._stream, shard, owner, run.origin)
                self.unread.add(run.origin)
        return found

    def read_back(self, queue: Queue) -> tuple[StreamState, bool]:
        """Reads the shards of all that is queued, and drops what is stored. Also returns whether
        another writer wrote to the stream after us. Raises LeaseLost, OtherWriters, Unavailable."""
        origins = {run.origin for messages in queue for run in messages.runs}
        state = self._read([*origins, *(self.unread - origins)], queue)
        ours = max((shard.sequence for shard in state.shards.values()), default=0)
        others = state.sequence > max(ours, self._floor)
        self._floor = state.sequence
        if others:  # what they stored of partitions that are not queued has to be read
            self.stored = {origin: self.stored[origin] for origin in state.shards}
        return state, others

    def learn(self, queue: Queue) -> StreamState:
        """Reads the shards that were not read yet, and drops what is stored."""
        return self._read(list(self.unread), queue)

    def _read(self, origins: list[Origin], queue: Queue) -> StreamState:
        if self.api is None:
            raise Unavailable("the sink has no connection to its server now", "jetstream")
        state = read_shards(self.api, self._stream, self._template, origins)
        for origin, shard in state.shards.items():
            if shard.place is not None:
                self._compare(origin, shard.place, shard.mark)
                self._guard(origin, shard.place, queue)
        self.stored.update((origin, shard.place) for origin, shard in state.shards.items())
        self.unread.difference_update(origins)
        self.drop_stored(queue)
        return state

    def _compare(self, origin: Origin, place: Place, mark: Mark) -> None:
        """Raises OtherSource where the last message of a shard has no place of our source."""
        cursor, own = self.histories.get(origin, (place.cursor, mark))
        if not is_comparable(place.cursor, mark, cursor, own):
            shard = self._template.shard(*origin)
            raise other_source(
                f"the last message of {self._stream} under {shard}", origin,
                "places of the two do not compare",
            )  # fmt: skip

    def _guard(self, origin: Origin, place: Place, queue: Queue) -> None:
        """Raises LeaseLost when the shard is neither where we left it nor at a place of ours.

        A chain may have ended anywhere in what was in flight: what follows is an atomic batch,
        whose refusal tells. So may a batch, when the server ran out of its storage limit in its
        middle: it keeps the beginning and answers nothing (2.15.1).
        """
        known = self.stored.get(origin, place)
        if place == known or (known or _START) < place <= self._sent.get(origin, _START):
            return
        ends = [run.last for messages in queue for run in messages.runs if run.origin == origin]
        if place not in ends and not (ends and place >= ends[-1]):
            raise self.taken_over(origin, place)

    def taken_over(self, origin: Origin, place: Place) -> LeaseLost:
        """The error for a shard that is where nothing of ours put it; says who may write there."""
        owners = instances(self.api, self._stream) if self.api is not None else ""
        return LeaseLost(
            f"the shard of {origin.partition} in {self._stream} is at {place}, and penstock left "
            f"it at {self.stored.get(origin)}: another writer uses it, or it was rolled back"
            + (f" (instances that have its lease: {owners})" if owners else ""),
            "jetstream",
            hint="one pipeline owns a partition; start again from what is stored",
        )

    def drop_stored(self, queue: Queue) -> None:
        """Drops what is stored: ours when we had sent it and only the answer was lost."""
        ours = {
            origin: min(place, self._sent[origin])
            for origin, place in self.stored.items()
            if place is not None and origin in self._sent
        }
        runs = [run for messages in queue for run in messages.runs]
        changes, size = queue.drop(ours) if ours else (0, 0)
        self._tally.published += changes
        self._tally.size += size
        changes, _ = queue.drop(self.stored)
        self._tally.duplicates += changes
        self.note(runs)

    def note(self, runs: Iterable[OriginRun]) -> None:
        """The stored places of origins that were sent or stored already count as this write's."""
        for run in runs:
            place = self.stored.get(run.origin)
            if place is not None and (run.origin in self._sent or run.first <= place):
                self._tally.mark_stored(run.origin.partition, place)

    def sent(self, batch: FlightBatch) -> None:
        """A batch is in flight."""
        self._sent.update(batch.lasts)

    def unsend(self, batches: Iterable[FlightBatch]) -> None:
        """Nothing of these was stored."""
        for batch in batches:
            for origin in batch.lasts:
                if (place := self.stored.get(origin)) is None:
                    self._sent.pop(origin, None)
                else:
                    self._sent[origin] = place

    def acknowledged(self, batch: FlightBatch, sequence: int) -> None:
        """A batch is stored; its last message has this sequence."""
        self.stored.update(batch.lasts)
        self._floor = sequence
        tally = self._tally
        for origin, place in batch.lasts.items():
            tally.mark_stored(origin.partition, place)
        tally.published += batch.changes
        tally.size += sum(piece.weight for piece in batch.pieces)
        tally.count_batch(batch.changes)

    def find_stored(self, api: JetStream, queue: Queue) -> None:
        """Looks for messages of ours after those that were acknowledged, and drops what is stored;
        they need not be the last of their shards. Raises Unavailable."""
        # Of what was never read or sent, nothing is ours.
        queued = {run.origin for messages in queue for run in messages.runs}
        for origin in queued & self.stored.keys():
            for found in api.each(self._stream, self._template.shard(*origin), after=self._floor):
                position = read_position(found.headers)
                if position is not None and position[0] == origin:
                    self.stored[origin] = position[1]
        self.drop_stored(queue)
