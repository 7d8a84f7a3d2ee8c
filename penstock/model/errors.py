"""What can go wrong, sorted by what to do about it.

The class of an error is the retry decision. Every error carries a hint for the
operator and pickles with its data, because errors cross Spark's processes.
"""

import re
from typing import Literal

__all__ = [
    "InUse",
    "InvalidPosition",
    "InvalidStream",
    "LeaseLost",
    "Malformed",
    "PenstockError",
    "PositionLost",
    "RecordsExpired",
    "RefusedEdit",
    "Rejected",
    "SettingsError",
    "ShardIteratorExpired",
    "Unavailable",
]


def is_caused_by(error: BaseException, *kinds: type[BaseException]) -> bool:
    """Whether an error, or one that led to it, is of these classes: drivers wrap what passes by
    itself and what the operator must change in one class."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, kinds):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


class PenstockError(Exception):
    """Base of every error that penstock raises on purpose.

    `message` says what happened and where; `hint` says what the operator can do about it, in one
    sentence. Neither ever holds a secret or row data. `code` is stable, and a heading of
    docs/reference/errors.md: PART.NAME, or the PART of penstock alone, for the name of the class.
    Errors of others may have none: theirs is the name of the class.
    """

    def __init__(self, message: str, code: str = "", *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(self).__name__).lower()
        whole = code if "." in code else f"{code}.{name.removesuffix('-error')}"
        self.code: str = whole.removeprefix(".")

    def __str__(self) -> str:
        said = f"{self.message} ({self.hint})" if self.hint else self.message
        return f"{said} [{self.code}]"

    @staticmethod
    def of(error: Exception, doing: str) -> "PenstockError":
        """For another thread or process: itself if it is ours; else a defect in `doing`."""
        if isinstance(error, PenstockError):
            return error
        return Malformed(
            f"{doing} failed: {type(error).__name__}: {error}",
            "model",
            hint="this is a defect of penstock; please report it with the log",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.hint), self.__dict__


def _rebuild(kind: type[PenstockError], message: str, hint: str) -> PenstockError:
    return kind(message, hint=hint)


class SettingsError(PenstockError):
    """The operator must change something; trying again does not help."""


class Unavailable(PenstockError):
    """The other side does not answer now: try again, with back-off."""


class InUse(Unavailable):
    """Another reader has what can have only one."""


class PositionLost(PenstockError):
    """The changes after our position are gone at the source."""


class Malformed(PenstockError):
    """Bytes or documents that break their protocol."""


class Rejected(PenstockError):
    """The sink refuses this change for good."""


class LeaseLost(PenstockError):
    """Somebody else owns this now: stop quietly."""


class InvalidPosition(SettingsError, ValueError):
    """A place to begin that no iterator takes, or that this source cannot give."""


class InvalidStream(SettingsError, ValueError):
    """A table without a stream of changes, or one that the model does not fit."""


class RecordsExpired(PositionLost):
    """The records after an iterator's position are gone at the source."""


class ShardIteratorExpired(PositionLost):
    """A shard's iterator expired without a sequence number or a pinned time to go on from."""


class RefusedEdit(SettingsError):
    """The map of a sink of tables refuses an edit. `field`: of the values given, "" for none."""

    def __init__(
        self,
        message: str,
        code: str = "",
        *,
        hint: str = "",
        reason: Literal["duplicate", "in use", "not found", "missing", "invalid"] = "invalid",
        field: str = "",
    ) -> None:
        super().__init__(message, code, hint=hint)
        self.reason = reason
        self.field = field
