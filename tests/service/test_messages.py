"""`/messages`: the newest changes of a stream, for a few viewers with the operator's token."""

import asyncio
import gc
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.responses import StreamingResponse

from penstock.config import SinkChoice, build_pipeline
from penstock.model.settings import Secret
from penstock.ops.requests import Access, Endpoint, OpsRequest
from penstock.ops.server import OpsServer
from penstock.service.messages import MessageViews
from tests.consumer.tail.test_reader import api, change, publish
from tests.servers import Nats, free_port
from tests.waiting import until

pytestmark = pytest.mark.live

ACCESS = Access(token=Secret("key"))
OWNER = {"authorization": "Bearer key"}


def sink(url: str, stream: str) -> SinkChoice:
    document = {
        "backends": [{"type": "memory"}],
        "sink": {"type": "jetstream", "url": url, "stream": stream, "timeout": "2s"},
    }
    return build_pipeline(document, name="test", secrets=[]).sink


def store(server: Nats, stream: str, *numbers: int, **fields: Any) -> None:
    bodies = [orjson.dumps(change(n, key={"id": n}, schema="public", **fields)) for n in numbers]
    publish(server, stream, bodies)


_RUNNER = asyncio.Runner()


class Watched:
    """What a viewer gets."""

    def __init__(self, messages: MessageViews, **query: str) -> None:
        request = OpsRequest(method="GET", path="/messages", query=query, headers=OWNER)
        self.answer = messages.answer(request)
        assert isinstance(self.answer, StreamingResponse)
        self._events = aiter(self.answer.body_iterator)

    def next(self) -> Any:
        return json.loads(_RUNNER.run(self._next()).partition(b"data: ")[2])

    async def _next(self) -> Any:
        return await anext(self._events)

    def numbers(self) -> list[int]:
        return [each["sequence"] for each in self.next()["messages"]]


def code(messages: MessageViews, **headers: str) -> int:
    return messages.answer(OpsRequest(method="GET", path="/messages", headers=headers)).status_code


def test_what_was_there_and_what_comes_is_shown(nats: Nats, stream: str) -> None:
    store(nats, stream, *range(1, 61))
    publish(nats, stream, [b"no change"])
    seen = Watched(MessageViews(ACCESS, sink(nats.url, stream)))
    assert seen.answer.headers["Content-Type"] == "text/event-stream"
    first = seen.next()
    assert [each["sequence"] for each in first["messages"]] == [*range(11, 61)]
    assert first["messages"][-1] | {"change": "", "stored_at": "", "committed_at": ""} == {
        "sequence": 60, "stored_at": "", "subject": f"{stream}.users", "table": "public.users",
        "operation": "INSERT", "key": "id=60", "change": "",
        "columns": [["id", "", "60"]], "committed_at": "",
        "size": len(first["messages"][-1]["change"]),
    }  # fmt: skip
    assert json.loads(first["messages"][-1]["change"])["data"] == {"id": 60}
    store(nats, stream, 61, 62)
    assert seen.next() | {"messages": 0} == {"messages": 0, "left_out": 0}
    store(nats, stream, *range(63, 66))
    assert seen.numbers() == [64, 65, 66]
    with api(nats) as js:
        js.purge(stream, ">")
    assert seen.next() == {"messages": [], "left_out": 0}


def test_of_many_the_newest_are_shown_and_the_others_counted(nats: Nats, stream: str) -> None:
    store(nats, stream, 1)
    messages = MessageViews(ACCESS, sink(nats.url, stream))
    every, some = Watched(messages), Watched(messages, key="id=7")
    assert (every.numbers(), some.numbers()) == ([1], [])
    store(nats, stream, *range(2, 302))
    found = every.next()
    assert [each["sequence"] for each in found["messages"]] == [*range(252, 302)]
    assert found["left_out"] == 250
    # 200 are looked at, without this one.
    assert some.next() == {"messages": [], "left_out": 100}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [({"table": "LIC.us"}, [1, 2, 3]), ({"table": "orders"}, []), ({"operation": "delete"}, [3]),
     ({"key": "id=2"}, [2]), ({"key": "2", "operation": "DELETE"}, [])],
)  # fmt: skip
def test_changes_are_chosen(nats: Nats, stream: str, wanted: Any, expected: list[int]) -> None:
    store(nats, stream, 1, 2)
    store(nats, stream, 3, operation="DELETE")
    assert Watched(MessageViews(ACCESS, sink(nats.url, stream)), **wanted).numbers() == expected


def test_a_large_change_is_cut(nats: Nats, stream: str) -> None:
    store(nats, stream, 1, data={"text": "ä" * 9000})
    (found,) = Watched(MessageViews(ACCESS, sink(nats.url, stream))).next()["messages"]
    assert len(found["change"].encode()) <= 4000 < found["size"]


def test_it_takes_the_operators_token_a_stream_and_a_server(nats: Nats, stream: str) -> None:
    messages = MessageViews(ACCESS, sink(nats.url, stream))
    assert code(messages) == 401
    assert code(messages, authorization="Bearer x") == 403
    assert code(MessageViews(Access(), sink(nats.url, stream)), **OWNER) == 403
    assert code(messages, **OWNER) == 404
    away = sink(f"nats://127.0.0.1:{free_port()}", stream)
    assert code(MessageViews(ACCESS, away), **OWNER) == 503


def test_a_server_that_goes_is_an_event_and_its_return_another(
    own_nats: Any, stream: str, tmp_path: Path
) -> None:
    server = own_nats()
    store(server, stream, 1)
    seen = Watched(MessageViews(ACCESS, sink(server.url, stream)))
    assert seen.numbers() == [1]
    server.kill()
    assert "NATS" in seen.next()["error"]
    server.start()
    store(server, stream, 2)
    until(lambda: [each["sequence"] for each in seen.next().get("messages", ())] == [2])


@pytest.fixture
def served(nats: Nats, stream: str) -> Iterator[OpsServer]:
    store(nats, stream, 1)
    answer = MessageViews(ACCESS, sink(nats.url, stream)).answer
    with OpsServer(
        port=0, access=ACCESS,
        endpoints=[Endpoint("/messages", "GET", answer)],
    ) as found:  # fmt: skip
        yield found


@pytest.fixture
def no_collection() -> Iterator[None]:
    """In a large process the garbage collector may come minutes later."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_three_may_watch_and_whoever_leaves_makes_room(served: OpsServer) -> None:
    def asked() -> tuple[http.client.HTTPConnection, int]:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
        connection.request("GET", "/messages", headers=OWNER)
        return connection, connection.getresponse().status

    viewers = [asked() for _ in range(4)]
    assert [code for _, code in viewers] == [200, 200, 200, 503]
    viewers[0][0].close()

    def again() -> bool:
        connection, code = asked()
        viewers.append((connection, code))
        return code == 200

    until(again)
    for connection, _ in viewers:
        connection.close()
