"""The JetStream sink: changes in, acknowledged messages out, for as long as it takes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from penstock.model.finding import Finding
from penstock.model.position import Bookmark, PartitionId
from penstock.native.batch import Batch
from penstock.sinks import Progress, Receipt, Record, ReportsPositions, Sink
from penstock.sinks.jetstream.check import check
from penstock.sinks.jetstream.publishing.places import read_shards
from penstock.sinks.jetstream.replays import Replays
from penstock.sinks.jetstream.session import borrowed
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.jetstream.write import WriteRun
from penstock.sinks.messages.message import read_bookmark
from penstock.sinks.rows.part import Origin


class JetStreamSink(Replays, Sink, ReportsPositions):
    """One message per change. See `settings` for what it can do."""

    takes_native: Literal[True] = True

    def __init__(self, settings: JetStreamSettings) -> None:
        self.settings = settings

    def write(self, changes: Iterable[Batch], progress: Progress) -> Receipt:
        """An empty batch is a tick: acknowledgements are taken in."""
        with borrowed(self.settings) as session:
            return WriteRun(session, progress).run(changes)

    def prepare(self) -> None:
        """Makes the stream, or verifies it. Raises SettingsError, Unavailable."""
        with borrowed(self.settings) as session:
            session.open()

    def check(self) -> Sequence[Finding]:
        return list(check(self.settings))

    def records(
        self, backend: str, partitions: Sequence[PartitionId]
    ) -> Mapping[PartitionId, Record]:
        with borrowed(self.settings) as session:
            origins = [Origin(backend, partition) for partition in partitions]
            stream, template = self.settings.stream, session.template
            state = session.asked(
                lambda api: read_shards(api, stream, template, origins, strict=False)
            )
            # With other deliveries a change may be stored after later ones: the last message is no
            # record of it.
            exact = session.chosen.delivery == "exactly-once"
            found = {
                origin.partition: Record(
                    bookmark=Bookmark(shard.place, shard.mark) if exact and shard.place else None,
                    begun=shard.place is not None or state.emptied,
                    emptied=state.emptied,
                )
                for origin, shard in state.shards.items()
            }
            return {**dict.fromkeys(partitions, Record()), **found}

    def last(self, backend: str) -> tuple[PartitionId, Record] | None:
        with borrowed(self.settings) as session:
            stream, subject = self.settings.stream, session.template.of_backend(backend)
            if session.asked(lambda api: api.stream(stream)) is None:
                return None
            [last] = session.asked(lambda api: api.last_of_each(stream, [subject], direct=False))
            found = None if last is None else read_bookmark(last.headers)
            if found is None or found[0].backend != backend:
                return None
            origin, (place, mark, _) = found
            exact = session.chosen.delivery == "exactly-once"
            bookmark = Bookmark(place, mark or {}) if exact else None
            return origin.partition, Record(bookmark=bookmark, begun=True)
