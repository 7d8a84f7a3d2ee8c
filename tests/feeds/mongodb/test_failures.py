"""PyMongo's exceptions and the server's codes -> ours: none unmapped, each with a remedy."""

from collections.abc import Iterator
from typing import Any

import bson.errors
import pymongo.errors
import pytest

from penstock.feeds.mongodb.failures import (
    CODES,
    KINDS,
    LOST,
    RESUMABLE,
    Tolerance,
    cause_of,
    code_of,
    translating,
)
from penstock.feeds.mongodb.losses import HINTS
from penstock.model.errors import Malformed, PenstockError, PositionLost, SettingsError, Unavailable

# What the driver's own change streams resume after, by their specification.
SPECIFIED = {
    6, 7, 43, 63, 89, 91, 133, 150, 189, 234, 262, 9001, 10107, 11600, 11602, 13388, 13435, 13436,
}  # fmt: skip


def subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


EXCEPTIONS = sorted(
    {
        pymongo.errors.PyMongoError,
        *subclasses(pymongo.errors.PyMongoError),
        bson.errors.BSONError,
        *subclasses(bson.errors.BSONError),
    },
    key=lambda kind: kind.__name__,
)


def raised(error: BaseException, tolerance: Tolerance | None = None) -> PenstockError:
    with pytest.raises(PenstockError) as caught, translating("reading", tolerance):
        raise error
    return caught.value


def made(kind: type[Any]) -> BaseException:
    if issubclass(kind, pymongo.errors.ClientBulkWriteException):
        return kind({"writeErrors": []}, verbose=False)
    if issubclass(kind, pymongo.errors.BulkWriteError):
        return kind({"writeErrors": []})
    if issubclass(kind, pymongo.errors.EncryptedCollectionError):
        return kind(ValueError("what it said"), {})
    if issubclass(kind, pymongo.errors.EncryptionError):
        return kind(ValueError("what it said"))
    return kind("what it said")


@pytest.mark.parametrize("kind", EXCEPTIONS, ids=lambda kind: kind.__name__)
def test_every_exception_of_the_driver_is_an_error_of_ours(kind: type[Any]) -> None:
    error = raised(made(kind))
    assert type(error) in (SettingsError, Unavailable, PositionLost, Malformed)
    assert error.hint
    assert error.message.startswith("reading: ")


def test_the_driver_has_many_exceptions() -> None:
    assert len(EXCEPTIONS) > 25
    assert set(KINDS) - {OSError} <= set(EXCEPTIONS)


def test_every_lost_connection_is_tried_again() -> None:
    for kind in (pymongo.errors.ConnectionFailure, *subclasses(pymongo.errors.ConnectionFailure)):
        assert isinstance(raised(made(kind)), Unavailable), kind
    assert isinstance(raised(ConnectionResetError("reset")), Unavailable)


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_is_an_error_of_ours(code: int) -> None:
    error = raised(pymongo.errors.OperationFailure("what it said", code, {"errmsg": "said"}))
    assert type(error) is CODES[code][0]
    assert error.hint


def test_what_the_driver_resumes_after_is_tried_again() -> None:
    assert set(RESUMABLE) >= SPECIFIED
    assert not set(RESUMABLE) & set(LOST)


@pytest.mark.parametrize("code", sorted(LOST))
def test_lost_history_has_a_cause_with_a_remedy(code: int) -> None:
    error = raised(pymongo.errors.OperationFailure("what it said", code))
    assert isinstance(error, PositionLost)
    assert HINTS[cause_of(error)]


def test_the_code_of_a_primary_that_steps_down_is_in_its_details() -> None:
    error = pymongo.errors.NotPrimaryError("not primary", {"code": 10107, "ok": 0})
    assert code_of(error) == 10107
    assert isinstance(raised(error), Unavailable)


def test_ten_unknown_errors_in_a_row_end_the_backend() -> None:
    tolerance = Tolerance()
    unknown = pymongo.errors.OperationFailure("who knows", 77_777)
    for _ in range(3):
        assert all(isinstance(raised(unknown, tolerance), Unavailable) for _ in range(9))
        tolerance.succeeded()
    assert all(isinstance(raised(unknown, tolerance), Unavailable) for _ in range(9))
    assert isinstance(raised(unknown, tolerance), SettingsError)


def test_known_errors_are_never_too_many() -> None:
    tolerance = Tolerance()
    for _ in range(50):
        assert isinstance(
            raised(pymongo.errors.OperationFailure("stale", 63), tolerance), Unavailable
        )
        assert isinstance(raised(pymongo.errors.AutoReconnect("gone"), tolerance), Unavailable)


@pytest.mark.parametrize("code", [47, 280, 10334])
def test_messages_that_quote_documents_are_not_repeated(code: int) -> None:
    error = pymongo.errors.OperationFailure("no image of {_id: 'alice@example.org'}", code)
    assert "alice" not in str(raised(error))
