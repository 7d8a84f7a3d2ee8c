"""What operators do about poison: look at dead letters, publish them after all, resume tables.

A replayed change is published after everything that is in the stream, not where it belonged, with
the event id that it always had. It does not move the record of how far the stream is: its
`Penstock-Position` and `Penstock-Mark` are those of the message before it, and a running pipeline
goes on undisturbed.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from penstock.model.position import Place
from penstock.nats.api import swapped
from penstock.sinks import Decode, KeepsLetters
from penstock.sinks.jetstream.poison import DeadLetters
from penstock.sinks.jetstream.publishing.places import ShardState, read_shards
from penstock.sinks.jetstream.publishing.publisher import MSG_ID
from penstock.sinks.jetstream.session import Session, borrowed
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.sinks.messages.message import EVENT_ID, MARK, POSITION, REPLAYED, Messages
from penstock.sinks.poison.quarantine import FRESH, RecordStore, now, summary
from penstock.sinks.poison.stored_letters import find_letter, find_suspended
from penstock.sinks.poison.suspension import BY_HAND, Event, Suspension, SuspensionState, Table

_ATTEMPTS = 20
# Before every place of every feed: a stream that lost its last message is still nowhere.
_NOWHERE = Place("0", 0)
_PLACE = re.compile(rb"(\r\n%b: \S+ \S+) [^\r\n]+" % POSITION.encode())
_MARK = re.compile(rb"\r\n%b: [^\r\n]+" % MARK.encode())


class Replays(KeepsLetters):
    settings: JetStreamSettings

    def dead_letters(self) -> Iterator[Mapping[str, Any]]:
        with self._letters() as (_, dead):
            for kept in dead.stored():
                yield kept.listed()

    def dead_letter(self, id: str) -> Mapping[str, Any]:
        with self._letters() as (_, dead):
            return find_letter(dead, id).whole()

    def replay(self, id: str, decode: Decode, *, force: bool = False) -> Mapping[str, Any]:
        """See `KeepsLetters`: a message undoes none, so that nothing is to be forced."""
        with self._letters() as (session, dead):
            kept = find_letter(dead, id)
            letter = kept.letter
            (messages,) = session.poison.writer.write(kept.change(decode))
            info = session.api.stream(self.settings.stream)
            after = dead.begin_replay(kept, int(info["state"]["last_seq"]) if info else 0)
            answer = _publish(session, messages, letter.event_id, after)
            dead.replayed(kept, int(answer["seq"]))
        return {
            "id": kept.id,
            "event_id": letter.event_id,
            "sequence": answer["seq"],
            "duplicate": bool(answer.get("duplicate")),
        }

    def tables(self) -> Sequence[Mapping[str, Any]]:
        with self._suspensions() as suspensions:
            return list(map(summary, suspensions.all().values()))

    def suspend_table(self, backend: str, table: str) -> Mapping[str, Any]:
        def step(record: Suspension) -> Suspension:
            if record.state is SuspensionState.SUSPENDED:
                return record
            return record.after(Event.POISONED, now(), reason=BY_HAND, error="", columns=())

        schema, _, collection = table.rpartition(".")
        with self._suspensions() as suspensions:
            found = suspensions.change(Table(backend, schema, collection), step)
        time.sleep(FRESH)  # from now on each writer knows
        return summary(found)

    def resume_table(self, backend: str | None, table: str) -> Mapping[str, Any]:
        def ask(record: Suspension) -> Suspension:
            if record.state is SuspensionState.FOLLOWING:
                return record  # it resumed meanwhile
            return record.after(Event.ASKED, now())

        with self._suspensions() as suspensions:
            known = {each: summary(one) for each, one in suspensions.all().items()}
            return summary(suspensions.change(find_suspended(known, backend, table), ask))

    @contextmanager
    def _letters(self) -> Iterator[tuple[Session, DeadLetters]]:
        with borrowed(self.settings, is_open=True) as session:
            yield session, DeadLetters(session.connection, session.api, session.settings)

    @contextmanager
    def _suspensions(self) -> Iterator[RecordStore]:
        """As the stream has them now."""
        with borrowed(self.settings, is_open=True) as session:
            session.poison.suspensions.all(within=0)
            yield session.poison.suspensions


def _publish(
    session: Session, messages: Messages, event_id: str, after: int | None
) -> Mapping[str, Any]:
    """The acknowledgement; or that of an earlier replay, which stored it after `after`."""
    stream, origin = session.settings.stream, messages.runs[0].origin
    subject = messages.subjects[0].as_py().decode()

    def attempt() -> Mapping[str, Any]:
        mark = None
        if session.chosen.delivery == "exactly-once":
            mark = read_shards(session.api, stream, session.template, [origin]).shards[origin]
        # After the mark: the fence refuses us for what is stored meanwhile.
        found = () if after is None else session.api.each(stream, subject, after=after)
        for stored in found:
            ids = (stored.headers.get(MSG_ID), stored.headers.get(EVENT_ID))
            if REPLAYED in stored.headers and event_id in ids:
                return {"seq": stored.sequence, "duplicate": True}
        headers = _as_at(bytes(messages.headers[0].as_py()), mark)
        if mark is not None:
            headers += (
                b"Nats-Expected-Last-Subject-Sequence: %d\r\n"
                b"Nats-Expected-Last-Subject-Sequence-Subject: %b\r\n"
            ) % (mark.sequence, session.template.shard(*origin).encode())
        own = f"{REPLAYED}: {messages.place(0)}\r\n\r\n".encode()
        return session.api.publish(subject, headers + own, messages.bodies[0].as_py())

    return swapped(attempt, f"the change at {messages.place(0)}", attempts=_ATTEMPTS)


def _as_at(headers: bytes, mark: ShardState | None) -> bytes:
    """Headers that say how far the stream is, and not where their change belongs."""
    if mark is None:
        return headers
    place = str(mark.place or _NOWHERE).encode()
    if mark.mark:
        place += b"\r\n%b: %b" % (MARK.encode(), orjson.dumps(mark.mark))
    own = _MARK.sub(b"", headers, count=1)
    return _PLACE.sub(lambda found: found[1] + b" " + place, own, count=1)
