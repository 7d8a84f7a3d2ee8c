"""News of the pipeline: kept in a stream of their own, and never in the one of the changes."""

import asyncio
from collections.abc import Callable
from typing import Any

import nats as nats_py
import pytest

from penstock.sinks.jetstream import JetStreamSettings
from penstock.sinks.jetstream.server import JetStreamServer
from penstock.sinks.jetstream.sink import JetStreamSink
from tests.servers import Nats

pytestmark = pytest.mark.live

NEWS = {"backend": "default", "cause": "slot_missing"}


def sink_of(nats: Nats, stream: str, **settings: Any) -> JetStreamSink:
    given = {"subject": f"{stream.lower()}.{{collection}}", "events": f"{stream}_EVENTS"}
    return JetStreamSink(JetStreamSettings(url=nats.url, stream=stream, **{**given, **settings}))


def asked(nats: Nats, question: Callable[[Any], Any]) -> Any:
    async def ask() -> Any:
        connection = await nats_py.connect(nats.url)
        try:
            return await question(connection.jetstream())
        finally:
            await connection.close()

    return asyncio.run(ask())


def kept(nats: Nats, stream: str) -> int:
    async def question(jetstream: Any) -> int:
        try:
            return int((await jetstream.stream_info(stream)).state.messages)
        except nats_py.js.errors.NotFoundError:
            return -1

    return int(asked(nats, question))


def test_news_is_kept_in_its_own_stream_made_when_there_is_some() -> None:
    # Its subjects are all of `penstock.gap.>`: one such stream to an account.
    with Nats() as nats:
        sink = sink_of(nats, "CDC", events="PENSTOCK_EVENTS")
        sink.prepare()
        assert kept(nats, "PENSTOCK_EVENTS") == -1
        server = JetStreamServer(sink.settings)
        assert server.announce("penstock.gap.default", NEWS, identity="1") == "PENSTOCK_EVENTS"
        assert kept(nats, "PENSTOCK_EVENTS") == 1
        server.announce("penstock.gap.default", NEWS, identity="1")
        assert kept(nats, "PENSTOCK_EVENTS") == 1, "the same news is stored once"
        server.announce("penstock.gap.default", NEWS, identity="2")
        assert kept(nats, "PENSTOCK_EVENTS") == 2
        assert kept(nats, "CDC") == 0


def test_a_stream_of_changes_that_takes_the_subject_refuses_the_news() -> None:
    """Else a message that is no change would be the last of a shard, and the fence would break."""
    with Nats() as nats:
        sink = sink_of(nats, "CDC", subject="penstock.{operation}.{collection}")
        sink.prepare()
        heard = listening(nats, sink)
        assert heard["kept"] == ""
        assert heard["message"] == b'{"backend":"default","cause":"slot_missing"}'
        assert kept(nats, "CDC") == 0


def listening(nats: Nats, sink: JetStreamSink) -> dict[str, Any]:
    """What a subscriber gets, and what the sink says of where it is kept."""

    async def listen() -> dict[str, Any]:
        connection = await nats_py.connect(nats.url)
        try:
            subscription = await connection.subscribe("penstock.gap.>")
            await connection.flush()
            where = await asyncio.to_thread(
                JetStreamServer(sink.settings).announce, "penstock.gap.default", NEWS, identity="1"
            )
            message = await subscription.next_msg(timeout=60)
            return {"kept": where, "message": message.data}
        finally:
            await connection.close()

    return asyncio.run(listen())


def test_an_events_stream_with_other_subjects_keeps_nothing_and_says_so() -> None:
    with Nats() as nats:

        async def make(jetstream: Any) -> None:
            await jetstream.add_stream(name="PENSTOCK_EVENTS", subjects=["elsewhere.>"])

        asked(nats, make)
        sink = sink_of(nats, "CDC", events="PENSTOCK_EVENTS")
        sink.prepare()
        assert listening(nats, sink)["kept"] == ""
