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

from penstock.model.errors import Rejected, SettingsError
from penstock.model.position import Place
from penstock.nats.api import swapped
from penstock.sinks import Decode
from penstock.sinks.jetstream.poison import DeadLetters, StoredLetter
from penstock.sinks.jetstream.publishing.places import ShardState, read_shards
from penstock.sinks.jetstream.publishing.publisher import MSG_ID
from penstock.sinks.jetstream.session import Session
from penstock.sinks.messages.message import EVENT_ID, MARK, POSITION, REPLAYED, Messages
from penstock.sinks.poison.dead_letter import page_of, row_of
from penstock.sinks.poison.quarantine import now, summary
from penstock.sinks.poison.suspension import Event, Suspension, SuspensionState
from penstock.sinks.rows.part import Part

_ATTEMPTS = 20
# Before every place of every feed: a stream that lost its last message is still nowhere.
_NOWHERE = Place("0", 0)
_PLACE = re.compile(rb"(\r\n%b: \S+ \S+) [^\r\n]+" % POSITION.encode())
_MARK = re.compile(rb"\r\n%b: [^\r\n]+" % MARK.encode())
# What a listing has of a letter, and what its contents are besides.
_SHOWN = (
    "backend", "partition", "position", "table", "operation", "reason", "error", "raw_bytes",
    "truncated", "committed_at",
)  # fmt: skip
_CONTENTS = ("kind", "raw", "context", "transaction", "relation_id")


class Replays:
    """Over an open session."""

    def __init__(self, session: Session) -> None:
        self._session, self._stream = session, session.settings.stream
        self._dead = DeadLetters(session.connection, session.api, session.settings)

    def letters(self) -> Iterator[dict[str, Any]]:
        """The dead letters as plain JSON, oldest first."""
        return map(_shown, self._dead.stored())

    def letter(self, id: str) -> dict[str, Any]:
        """One, by its id or event id, with its raw bytes; raises SettingsError."""
        kept = self._find(id)
        fields = orjson.loads(kept.letter.body(1 << 40))
        return _shown(kept) | {name: fields[name] for name in _CONTENTS}

    def replay(self, id: str, decode: Decode) -> dict[str, Any]:
        """Decodes, encodes and publishes a dead letter's change, and takes the letter away.

        Raises Malformed or Rejected when that is still not possible, SettingsError, Unavailable.
        """
        kept = self._find(id)
        letter = kept.letter
        if letter.truncated:
            raise Rejected(
                f"the dead letter {kept.id} holds the first {len(letter.raw)} of "
                f"{letter.raw_bytes} bytes only",
                hint="correct the consumers by hand, or copy the table anew",
            )
        batches = decode(page_of(letter)) if letter.kind == "source" else [row_of(letter)]
        encode = self._session.poison.encoder.encode
        messages = [encode(Part.of(batch)) for batch in batches if len(batch)]
        if sum(map(len, messages)) != 1:
            raise SettingsError(
                f"the dead letter {kept.id} is of a table that the pipeline does not follow",
                hint="add it to `tables`",
            )
        info = self._session.api.stream(self._stream)
        last = int(info["state"]["last_seq"]) if info else 0
        after = self._dead.begin_replay(kept, last)
        answer = self._publish(messages[0], letter.event_id, after)
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

    def resume(self, backend: str | None, table: str) -> dict[str, Any]:
        """Asks for a suspended table to be followed from its next change on; SettingsError when
        there is none of that name."""
        suspensions = self._session.poison.suspensions
        known = suspensions.all(within=0).values()
        found = [
            record
            for record in known
            if str(record.table) == table
            and backend in (None, record.backend)
            and record.state is not SuspensionState.FOLLOWING
        ]
        if len(found) != 1:
            raise _no_such(table, backend, found, known)

        def ask(record: Suspension) -> Suspension:
            if record.state is SuspensionState.FOLLOWING:
                return record  # it resumed meanwhile
            return record.after(Event.ASKED, now())

        return summary(suspensions.change(found[0].table, ask))

    def _find(self, id: str) -> StoredLetter:
        dead = self._dead
        if id.isdecimal():
            kept = dead.get(int(id))
        else:
            kept = next((one for one in dead.stored() if one.letter.event_id == id), None)
        if kept is None:
            raise SettingsError(
                f"there is no dead letter {id} in {dead.name}",
                hint="`penstock dead-letters list` names those that there are",
            )
        return kept

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


def _shown(kept: StoredLetter) -> dict[str, Any]:
    head = {"id": kept.id, "event_id": kept.letter.event_id, "stored_at": kept.stored_at}
    return head | {name: getattr(kept.letter, name) for name in _SHOWN}


def _no_such(table: str, backend: str | None, found: list[Suspension], known: Any) -> SettingsError:
    if found:
        names = ", ".join(sorted(record.backend for record in found))
        return SettingsError(
            f"several backends have a suspended table {table}: {names}", hint="say --backend"
        )
    suspended = [str(each.table) for each in known if each.state is not SuspensionState.FOLLOWING]
    whose = f" of the backend {backend}" if backend else ""
    return SettingsError(
        f"no table {table}{whose} is suspended",
        hint=f"suspended: {', '.join(sorted(suspended)) or 'none'}",
    )
