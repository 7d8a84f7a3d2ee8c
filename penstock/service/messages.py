"""`/messages`: the newest changes of the sink's stream, as server-sent events for a few viewers.

Row data, so it takes the operator's token. Each second a viewer gets what is new, the newest of it
where that is a lot: a viewer costs the server of the stream a few requests, whatever is stored.
"""

import threading
import time
from collections.abc import AsyncGenerator, Generator, Mapping
from typing import Any

import orjson
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.responses import Response

from penstock.config import SinkChoice
from penstock.consumer.tail.lines import changed_columns, key_of, table_of
from penstock.consumer.tail.reader import Message, TailReader
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.images import base64_of
from penstock.ops.requests import Access, OpsRequest, refused, server_sent

_VIEWERS = 3
_EVERY = 1.0  # seconds between two events
_SHOWN = 50  # changes in one event
_LOOKED_AT = 200  # messages for one event, where filters leave changes out
_TOGETHER = 10  # that are asked for at once, which bounds memory
_LONGEST = 4000  # bytes of a change that are shown
_CELLS, _CELL = 40, 200  # columns of a change, and characters of a value
MESSAGES = "server-sent events: the newest changes of the stream: row data"
FILTERS = ("table", "operation", "key")


class MessageViews:
    """Answers with the changes that a sink stores in its stream."""

    def __init__(self, access: Access, sink: SinkChoice) -> None:
        self._access, self._sink = access, sink
        self._room = threading.BoundedSemaphore(_VIEWERS)

    def answer(self, request: OpsRequest) -> Response:
        """Events until the client goes; 404 where there is no stream, 503 where it cannot be
        reached or others watch it already."""
        if denied := self._access.refusal_to_write(request):
            return denied
        events = self._events({name: request.query.get(name, "") for name in FILTERS})
        try:
            first = next(events)
        except PenstockError as error:
            status = 404 if isinstance(error, SettingsError) else 503
            return refused(status, "no_messages", error.message, error.hint)
        return server_sent(_sent(first, events))

    def _events(self, wanted: Mapping[str, str]) -> Generator[bytes, None, None]:
        """Raises PenstockError at the first one only."""
        reader = self._sink.plug_in.reader
        assert reader is not None
        if not self._room.acquire(blocking=False):
            raise Unavailable(
                f"{_VIEWERS} viewers watch the messages already", "service", hint="close one"
            )
        try:
            with reader(self._sink.settings, None) as tail:
                end = tail.end()
                shown, _ = _newest(tail, max(0, end - _LOOKED_AT), end, wanted)
                yield _event(messages=shown, left_out=0)
                while True:
                    time.sleep(_EVERY)
                    try:
                        newest = tail.end()
                        # (A stream that was made anew begins with 1.)
                        shown, left_out = _newest(tail, min(end, newest), newest, wanted)
                        end = newest
                        yield _event(messages=shown, left_out=left_out)
                    except PenstockError as error:
                        yield _event(error=error.message, hint=error.hint)
        finally:
            self._room.release()


async def _sent(first: bytes, events: Generator[bytes, None, None]) -> AsyncGenerator[bytes, None]:
    try:
        yield first
        async for each in iterate_in_threadpool(events):
            yield each
    finally:
        await run_in_threadpool(events.close)


def _newest(
    reader: TailReader, after: int, end: int, wanted: Mapping[str, str]
) -> tuple[list[dict[str, Any]], int]:
    """The newest changes that are wanted, the oldest of them first; and how many messages were not
    looked at, or changes not shown."""
    found: list[Message] = []
    floor = max(after, end - _LOOKED_AT)
    while end > floor and len(found) < _SHOWN:
        first = max(floor, end - _TOGETHER) + 1
        found[:0] = [each for each in reader.between(first, end) if _fits(each, wanted)]
        end = first - 1
    return [_shown(each) for each in found[-_SHOWN:]], end - after + max(0, len(found) - _SHOWN)


def _fits(message: Message, wanted: Mapping[str, str]) -> bool:
    return (
        wanted["table"].lower() in table_of(message.body).lower()
        and wanted["operation"].upper() in message.operation
        and wanted["key"] in _key(message)
    )


def _key(message: Message) -> str:
    return key_of(message.body) or str(message.body.get("document_id") or "")


def _shown(message: Message) -> dict[str, Any]:
    change = orjson.dumps(message.body, base64_of, orjson.OPT_NON_STR_KEYS)
    columns = changed_columns(message.body)[:_CELLS]
    return {
        "sequence": message.sequence, "stored_at": message.stored_at, "subject": message.subject,
        "committed_at": message.committed_at or message.stored_at,
        "table": table_of(message.body), "operation": message.operation, "key": _key(message),
        "columns": [[text[:_CELL] for text in column] for column in columns],
        "change": change[:_LONGEST].decode(errors="ignore"), "size": len(change),
    }  # fmt: skip


def _event(**data: Any) -> bytes:
    return b"event: messages\ndata: %b\n\n" % orjson.dumps(data)
