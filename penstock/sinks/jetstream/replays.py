"""What operators do about poison: look at dead letters, publish them after all, resume tables.

A replayed change is published after everything that is in the stream, not where it belonged, with
the event id that it always had. It does not move the record of how far the stream is: its
`Penstock-Position` and `Penstock-Mark` are those of the message before it, and a running pipeline
goes on undisturbed.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from penstock.model.position import Place
from penstock.nats.api import swapped
from penstock.sinks import Decode
from penstock.sinks.jetstream.poison import DeadLetters
from penstock.sinks.jetstream.publishing.places import ShardState, read_shards
from penstock.sinks.jetstream.publishing.publisher import MSG_ID
from penstock.sinks.jetstream.session import Session
from penstock.sinks.messages.message import EVENT_ID, MARK, POSITION, REPLAYED, Messages
from penstock.sinks.poison.quarantine import now, summary
from penstock.sinks.poison.stored_letters import find_letter, find_suspended
from penstock.sinks.poison.suspension import BY_HAND, Event, Suspension, SuspensionState, Table

_ATTEMPTS = 20
# Before every place of every feed: a stream that lost its last message is still nowhere.
_NOWHERE = Place("0", 0)
_PLACE = re.compile(rb"(\r\n%b: \S+ \S+) [^\r\n]+" % POSITION.encode())
_MARK = re.compile(rb"\r\n%b: [^\r\n]+" % MARK.encode())


class Replays:
    """Over an open session."""

    def __init__(self, session: Session) -> None:
        self._session, self._stream = session, session.settings.stream
        self._dead = DeadLetters(session.connection, session.api, session.settings)

    def letters(self) -> Iterator[dict[str, Any]]:
        """The dead letters as plain JSON, oldest first."""
        return (kept.listed() for kept in self._dead.stored())

    def letter(self, id: str) -> dict[str, Any]:
        """One, by its id or event id, with its raw bytes; raises SettingsError."""
        return find_letter(self._dead, id).whole()

    def replay(self, id: str, decode: Decode) -> dict[str, Any]:
        """Decodes, encodes and publishes a dead letter's change, and takes the letter away.

        Raises Malformed or Rejected when that is still not possible, SettingsError, Unavailable.
        """
        kept = find_letter(self._dead, id)
        letter = kept.letter
        (messages,) = self._session.poison.writer.write(kept.change(decode))
        info = self._session.api.stream(self._stream)
        last = int(info["state"]["last_seq"]) if info else 0
        after = self._dead.begin_replay(kept, last)
        answer = self._publish(messages, letter.event_id, after)
        self._dead.replayed(kept, int(answer["seq"]))
        return {
            "id": kept.id,
            "event_id": letter.event_id,
            "sequence": answer["seq"],
            "duplicate": bool(answer.get("duplicate")),
        }

    def tables(self) -> list[dict[str, Any]]:
        """Every table that is or was suspended, as plain JSON."""
        return list(map(summary, self._session.poison.suspensions.all(within=0).values()))

    def suspend(self, backend: str, table: str) -> dict[str, Any]:
        """Has a table not be followed from its next change on, whatever that is."""

        def step(record: Suspension) -> Suspension:
            if record.state is SuspensionState.SUSPENDED:
                return record
            return record.after(Event.POISONED, now(), reason=BY_HAND, error="", columns=())

        schema, _, collection = table.rpartition(".")
        suspensions = self._session.poison.suspensions
        suspensions.all(within=0)
        return summary(suspensions.change(Table(backend, schema, collection), step))

    def resume(self, backend: str | None, table: str) -> dict[str, Any]:
        """Asks for a suspended table to be followed from its next change on; SettingsError when
        there is none of that name."""
        suspensions = self._session.poison.suspensions
        known = {each: summary(one) for each, one in suspensions.all(within=0).items()}
        found = find_suspended(known, backend, table)

        def ask(record: Suspension) -> Suspension:
            if record.state is SuspensionState.FOLLOWING:
                return record  # it resumed meanwhile
            return record.after(Event.ASKED, now())

        return summary(suspensions.change(found, ask))

    def _publish(self, messages: Messages, event_id: str, after: int | None) -> Mapping[str, Any]:
        """The acknowledgement; unless `after` is None, perhaps of what an earlier replay stored
        after it."""
        session, origin = self._session, messages.runs[0].origin
        subject = messages.subjects[0].as_py().decode()

        def attempt() -> Mapping[str, Any]:
            fenced = session.chosen.delivery == "exactly-once"
            mark = None
            if fenced:
                state = read_shards(session.api, self._stream, session.template, [origin])
                mark = state.shards[origin]
            # After the mark: the fence refuses us for what is stored meanwhile.
            stored = None if after is None else self._stored(subject, event_id, after)
            if stored is not None:
                return {"seq": stored, "duplicate": True}
            headers = _as_at(bytes(messages.headers[0].as_py()), mark)
            if mark is not None:
                headers += (
                    b"Nats-Expected-Last-Subject-Sequence: %d\r\n"
                    b"Nats-Expected-Last-Subject-Sequence-Subject: %b\r\n"
                ) % (mark.sequence, session.template.shard(*origin).encode())
            own = f"{REPLAYED}: {messages.place(0)}\r\n\r\n".encode()
            return session.api.publish(subject, headers + own, messages.bodies[0].as_py())

        return swapped(attempt, f"the change at {messages.place(0)}", attempts=_ATTEMPTS)

    def _stored(self, subject: str, event_id: str, after: int) -> int | None:
        api = self._session.api
        while (found := api.next(self._stream, subject, after + 1)) is not None:
            ids = (found.headers.get(MSG_ID), found.headers.get(EVENT_ID))
            if REPLAYED in found.headers and event_id in ids:
                return found.sequence
            after = found.sequence
        return None


def _as_at(headers: bytes, mark: ShardState | None) -> bytes:
    """Headers that say how far the stream is, and not where their change belongs."""
    if mark is None:
        return headers
    place = str(mark.place or _NOWHERE).encode()
    if mark.mark:
        place += b"\r\n%b: %b" % (MARK.encode(), orjson.dumps(mark.mark))
    own = _MARK.sub(b"", headers, count=1)
    return _PLACE.sub(lambda found: found[1] + b" " + place, own, count=1)
