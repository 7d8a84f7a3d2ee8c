"""What a `Quarantine` needs of its sink: where dead letters and records of tables are stored."""

from collections.abc import Callable, Mapping
from typing import Protocol

from penstock.sinks.encoding.encode import Encoder
from penstock.sinks.poison.dead_letter import Letter
from penstock.sinks.poison.suspension import Suspension, Table
from penstock.sinks.settings import SinkSettings


class LetterStore(Protocol):
    """Where a sink keeps dead letters."""

    def store(self, letter: Letter) -> bool:
        """Makes a letter durable, once; False when it was there. Raises Unavailable,
        SettingsError."""
        ...


class RecordStore(Protocol):
    """Where a sink keeps what it knows of suspended tables. Everything raises Unavailable."""

    def all(self) -> Mapping[Table, Suspension]:
        """Every record, as known here."""
        ...

    def refresh(self) -> None:
        """Takes in what others stored since."""
        ...

    def refreshed(self, record: Suspension) -> Suspension:
        """The record as it is stored now, or was a moment ago."""
        ...

    def change(self, table: Table, step: Callable[[Suspension], Suspension]) -> Suspension:
        """Stores what `step` makes of a table's record; `step` may run again."""
        ...


class PoisonSession(Protocol):
    """What a `Quarantine` needs of the sink that it works for, while that is connected."""

    @property
    def settings(self) -> SinkSettings:
        """The policy."""
        ...

    @property
    def encoder(self) -> Encoder:
        """Raises Rejected for what cannot be encoded or is too large."""
        ...

    @property
    def unlimited(self) -> Encoder:
        """The same without a limit of size."""
        ...

    @property
    def limit(self) -> int:
        """Bytes that one message may have."""
        ...

    @property
    def dead_letters(self) -> LetterStore:
        """Where letters go."""
        ...

    @property
    def suspensions(self) -> RecordStore:
        """Where tables are recorded."""
        ...

    @property
    def streaks(self) -> dict[Table, int]:
        """Changes in a row that were too large, by table."""
        ...
