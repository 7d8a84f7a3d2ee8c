"""A NATS server with JetStream: what a sink of messages and a positions store need, in streams and
buckets of their own."""

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from penstock.leases import LeaseStore
from penstock.leases.nats import BucketStore
from penstock.model.settings import Settings
from penstock.nats.api import JetStream
from penstock.nats.buckets import Bucket
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from penstock.process.plugins import plugin
from penstock.sinks import Sink, SinkPlugin
from penstock.stream.opening import settings_of
from penstock.testing import sinks, stores
from penstock.testing.claims import Trial
from penstock.testing.services import TriedService
from penstock.testing.sinks import StagedSink

_STREAM = "KV_"  # what the stream of a bucket is called


class NatsService(TriedService):
    """See above."""

    kind = "NATS"
    drivers = ()
    makes = "streams {}_N, and buckets of that name"
    needs = "JetStream, and a user that may make and delete streams"

    def __init__(self, url: str, given: Mapping[str, str]) -> None:
        super().__init__(url, given)
        if "nkey" in given:
            given = {**given, "nkey": Path(given["nkey"]).read_text().strip()}
            self.secrets.append(given["nkey"])
        self.settings: NatsSettings = settings_of(NatsSettings, {"url": url, **given})
        self._numbers = count(1)

    def _connected(self) -> Connection:
        connection = Connection(self.settings, "penstock prove")
        connection.open()
        return connection

    def make(self) -> None:
        with closing(self._connected()) as connection:
            JetStream(connection).account()

    def version(self) -> str:
        with closing(self._connected()) as connection:
            return str(connection.info["version"])

    def remove(self) -> None:
        with closing(self._connected()) as connection:
            api = JetStream(connection)
            for name in api.names(">"):
                if name.removeprefix(_STREAM).startswith(self.name):
                    api.delete(name)

    def trials(self) -> Generator[Trial]:
        for claim in (*sinks.CLAIMS, *sinks.EXACT, *sinks.LASTS, *sinks.KNOWS):
            yield Trial(partial(self._with_sink, claim, "auto"), claim)
        for claim in sinks.EXACT:
            yield Trial(partial(self._with_sink, claim, "deduplicated"), claim, "by message ids")
        for store in stores.CLAIMS:
            yield Trial(partial(self._with_store, store), store)

    def _with_sink(self, claim: Callable[[StagedSink], None], delivery: str) -> None:
        stream = f"{self.name}_{next(self._numbers)}"
        claim(_Stream(plugin("sinks", "jetstream"), self._stored_in(stream, delivery)))

    def _stored_in(self, stream: str, delivery: str) -> dict[str, Any]:
        given = self.settings.model_dump(exclude_unset=True)
        subject = f"{stream}.{{collection}}.{{operation}}"
        return {**given, "stream": stream, "subject": subject, "delivery": delivery}

    def _with_store(self, claim: Callable[[LeaseStore], None]) -> None:
        with closing(_Store(self.settings, f"{self.name}_{next(self._numbers)}")) as store:
            claim(store)


class _Stream(StagedSink):
    def __init__(self, plug_in: SinkPlugin, given: Mapping[str, Any]) -> None:
        self._plug_in, self._given = plug_in, given
        self._settings: Settings = plug_in.settings.model_validate(given)
        self.sink: Sink = plug_in.build(self._settings)

    def ids(self) -> list[str]:
        assert self._plug_in.reader is not None
        found = list[str]()
        with self._plug_in.reader(self._settings, None) as reader:
            end = reader.end()
            while reader.sequence < end:
                found += [message.event_id for message in reader.fetch()]
        return found

    def for_partitions(self) -> Sink:
        subject = f"{self._given['stream']}.{{backend}}.{{source_partition}}.{{collection}}"
        settings = self._plug_in.settings.model_validate({**self._given, "subject": subject})
        return self._plug_in.build(settings)


class _Store(BucketStore):
    def __init__(self, settings: NatsSettings, name: str) -> None:
        super().__init__(settings)
        self._name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._settings, self._name)

    def _make(self, connection: Connection) -> Bucket:
        bucket = Bucket(connection, self._name)
        bucket.create()
        return bucket


build = NatsService
