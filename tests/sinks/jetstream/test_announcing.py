"""News of the pipeline: kept in a stream of their own, and never in the one of the changes."""

import asyncio
from collections.abc import Callable
from typing import Any

import nats as nats_py
import pytest

from penstock.sinks.jetstream.server import JetStreamServer
from tests.servers import Nats

pytestmark = pytest.mark.live

NEWS = {"backend": "default", "cause": "slot_missing"}


@pytest.fixture
def server_of(own_nats: Callable[..., Nats], sink_of: Any) -> Callable[..., Any]:
    """A server alone (one stream of an account takes all news), and what the sink has of it."""

    def make(subject: str = "cdc.{collection}") -> tuple[Nats, JetStreamServer]:
        nats = own_nats()
        sink = sink_of(nats.url, stream="CDC", subject=subject)
        sink.prepare()
        return nats, JetStreamServer(sink.settings)

    return make


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


def test_news_is_kept_in_its_own_stream_made_when_there_is_some(server_of: Any) -> None:
    nats, server = server_of()
    assert kept(nats, "PENSTOCK_EVENTS") == -1
    for identity, count in (("1", 1), ("1", 1), ("2", 2)):  # the same news is stored once
        where = server.announce("penstock.gap.default", NEWS, identity=identity)
        assert (where, kept(nats, where)) == ("PENSTOCK_EVENTS", count)
    assert kept(nats, "CDC") == 0


def test_a_stream_of_changes_that_takes_the_subject_refuses_the_news(server_of: Any) -> None:
    """Else a message that is no change would be the last of a shard, and the fence would break."""
    nats, server = server_of("penstock.{operation}.{collection}")
    assert listening(nats, server) == ("", b'{"backend":"default","cause":"slot_missing"}')
    assert kept(nats, "CDC") == 0


def listening(nats: Nats, server: JetStreamServer) -> tuple[str, bytes]:
    """Where news is kept, and what a subscriber gets of it."""

    async def listen() -> tuple[str, bytes]:
        connection = await nats_py.connect(nats.url)
        try:
            subscription = await connection.subscribe("penstock.gap.>")
            await connection.flush()
            where = await asyncio.to_thread(
                server.announce, "penstock.gap.default", NEWS, identity="1"
            )
            return where, (await subscription.next_msg(timeout=60)).data
        finally:
            await connection.close()

    return asyncio.run(listen())


def test_an_events_stream_with_other_subjects_keeps_nothing_and_says_so(server_of: Any) -> None:
    nats, server = server_of()

    async def make(jetstream: Any) -> None:
        await jetstream.add_stream(name="PENSTOCK_EVENTS", subjects=["elsewhere.>"])

    asked(nats, make)
    assert listening(nats, server)[0] == ""
