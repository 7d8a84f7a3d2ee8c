"""What operators see of dead letters and suspended tables, wherever a sink keeps them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import orjson

from penstock.model.errors import Rejected, SettingsError
from penstock.sinks import Decode
from penstock.sinks.poison.dead_letter import Letter, page_of, row_of
from penstock.sinks.poison.suspension import SuspensionState
from penstock.sinks.rows.part import Part

K = TypeVar("K")

# What a listing has of a letter, and what its contents are besides.
_LISTED = (
    "backend", "partition", "position", "table", "operation", "reason", "error", "raw_bytes",
    "truncated", "committed_at",
)  # fmt: skip
_CONTENTS = ("kind", "raw", "context", "transaction", "relation_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLetter:
    """A letter as a sink has it, with its number there."""

    id: int
    stored_at: str
    letter: Letter

    def listed(self) -> dict[str, Any]:
        """Plain JSON, without its bytes."""
        head = {"id": self.id, "event_id": self.letter.event_id, "stored_at": self.stored_at}
        return head | {name: getattr(self.letter, name) for name in _LISTED}

    def whole(self) -> dict[str, Any]:
        """Plain JSON, with its bytes."""
        fields = orjson.loads(self.letter.body(1 << 40))
        return self.listed() | {name: fields[name] for name in _CONTENTS}

    def change(self, decode: Decode) -> Part:
        """Its change, decoded again. Raises Malformed; Rejected or SettingsError without one."""
        letter = self.letter
        if letter.truncated:
            raise Rejected(
                f"the dead letter {self.id} holds the first {len(letter.raw)} of "
                f"{letter.raw_bytes} bytes only",
                "poison",
                hint="correct the consumers by hand, or copy the table anew",
            )
        batches = decode(page_of(letter)) if letter.kind == "source" else [row_of(letter)]
        found = [batch for batch in batches if len(batch)]
        if sum(map(len, found)) != 1:
            raise SettingsError(
                f"the dead letter {self.id} is of a table that the pipeline does not follow",
                "poison",
                hint="add it to `tables`",
            )
        return Part.of(found[0])


class StoredLetters(Protocol):
    """The letters of a sink; `name` is where they are. Everything raises Unavailable."""

    name: str

    def stored(self) -> Iterator[StoredLetter]:
        """All, oldest first."""

    def get(self, id: int) -> StoredLetter | None:
        """One, by its number."""


def find_letter(letters: StoredLetters, id: str) -> StoredLetter:
    """One, by its number or event id; raises SettingsError."""
    if id.isdecimal():
        found = letters.get(int(id))
    else:
        found = next((each for each in letters.stored() if each.letter.event_id == id), None)
    if found is None:
        raise SettingsError(
            f"there is no dead letter {id} in {letters.name}",
            "poison.no-letter",
            hint="`penstock dead-letters list` names those that there are",
        )
    return found


def find_suspended(known: Mapping[K, Mapping[str, Any]], backend: str | None, table: str) -> K:
    """The one suspended table of that name among these (as `summary` has them); raises
    SettingsError when there is none, or several."""
    suspended = {
        key: each for key, each in known.items() if each["state"] != SuspensionState.FOLLOWING
    }
    found = [
        key
        for key, each in suspended.items()
        if each["table"] == table and backend in (None, each["backend"])
    ]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(sorted(suspended[key]["backend"] for key in found))
        raise SettingsError(
            f"several backends have a suspended table {table}: {names}",
            "poison",
            hint="give --backend",
        )
    whose = f" of the backend {backend}" if backend else ""
    names = ", ".join(sorted(each["table"] for each in suspended.values()))
    raise SettingsError(
        f"no table {table}{whose} is suspended",
        "poison.not-suspended",
        hint=f"suspended: {names or 'none'}",
    )
