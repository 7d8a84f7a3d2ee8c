"""One table over what each driver retries by itself, or each server announces to be over soon: it
is all Unavailable here. A setting is what will be as wrong tomorrow."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore
import psycopg
import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.cosmos import http_constants
from botocore import exceptions as boto
from botocore.retries.standard import ThrottledRetryableChecker, TransientRetryableChecker
from pymongo import errors as mongo
from pymongo import helpers_shared

from penstock.feeds.cosmos.failures import failure as cosmos
from penstock.feeds.cosmos.failures import translating as translating_cosmos
from penstock.feeds.dynamodb.failures import failure as dynamodb
from penstock.feeds.dynamodb.failures import translating as translating_dynamodb
from penstock.feeds.mongodb.failures import Tolerance
from penstock.feeds.mongodb.failures import translating as translating_mongodb
from penstock.feeds.postgres.failures import failure as postgres
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.nats.api import ApiError
from penstock.nats.api import error_of as jetstream
from penstock.nats.dial import error_of as nats

Row = tuple[str, PenstockError]  # what it is and where that is written, and as ours


def raised(translating: Any, error: Exception, *more: Any) -> PenstockError:
    with pytest.raises(PenstockError) as caught, translating("reading", *more):
        raise error
    return caught.value


def _refusal(code: str, message: str = "m", status: int = 400) -> PenstockError:
    answer: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return dynamodb(boto.ClientError(answer, "GetRecords"), "reading")


def _of_botocore() -> Iterator[Row]:
    standard = [
        *TransientRetryableChecker._TRANSIENT_ERROR_CODES,
        *ThrottledRetryableChecker._THROTTLED_ERROR_CODES,
    ]
    for code in standard:
        yield f"{code}: botocore/retries/standard.py", _refusal(code)
    for status in TransientRetryableChecker._TRANSIENT_STATUS_CODES:
        yield f"{status}: botocore/retries/standard.py", _refusal("New", status=status)
    legacy = json.loads((Path(botocore.__file__).parent / "data" / "_retry.json").read_text())
    policies = dict(legacy["definitions"])
    for name in ("__default__", "dynamodb", "sts"):
        policies |= legacy["retry"].get(name, {}).get("__default__", {}).get("policies", {})
    for policy in policies.values():
        answer = policy.get("applies_when", {}).get("response", {})
        if "service_error_code" in answer:
            code, status = answer["service_error_code"], answer["http_status_code"]
            yield f"{code}: botocore/data/_retry.json", _refusal(code, status=status)
    kinds = [*TransientRetryableChecker._TRANSIENT_EXCEPTION_CLS, boto.ChecksumError,
             boto.FlexibleChecksumError]  # fmt: skip
    for kind in kinds:
        error = kind.__new__(kind)
        Exception.__init__(error, "text")
        yield (
            f"{kind.__name__}: standard.py, crc32body of _retry.json",
            raised(translating_dynamodb, error),
        )
    # Of a role of a pod or a machine, by the API references of STS and SSO.
    yield "STS did not reach the identity provider", _refusal("IDPCommunicationError")
    text = "Couldn't retrieve verification key from your identity provider"
    yield "STS did not get the provider's keys", _refusal("InvalidIdentityToken", text)
    yield "a web identity token is being renewed", _refusal("ExpiredTokenException")
    yield "SSO is asked too often", _refusal("SlowDownException")


def _of_libpq() -> Iterator[Row]:
    for name in ("CannotConnectNow", "AdminShutdown", "CrashShutdown", "TooManyConnections",
                 "SerializationFailure", "DeadlockDetected", "ConnectionFailure",
                 "ReadOnlySqlTransaction", "ObjectInUse", "IoError"):  # fmt: skip
        state = getattr(psycopg.errors, name).sqlstate
        yield f"{name}: appendix A of the manual", postgres(state, "text", "reading")
    decoding = "logical decoding cannot be used while in recovery"  # up to 15: logical.c
    yield "the address is a standby's for a moment", postgres("0A000", decoding, "reading")
    texts = {
        "fe-connect.c, tries the next host": [
            "connection failed: FATAL:  the database system is starting up",
            "connection failed: FATAL:  the database system is in recovery mode",
            "session is read-only",
            "server is in hot standby mode",
            "timeout expired",
            "received invalid response to SSL negotiation: H",
            "received invalid response to GSSAPI negotiation: H",
            "server closed the connection unexpectedly",
        ],
        "postinit.c": [
            'FATAL:  database "shop" is not currently accepting connections',
            'FATAL:  too many connections for database "shop"',
        ],
        "auth.c, a directory that is away": [
            'FATAL:  LDAP authentication failed for user "me"',
            'FATAL:  RADIUS authentication failed for user "me"',
            'FATAL:  PAM authentication failed for user "me"',
        ],
        "pgbouncer, while its server is away": [
            "FATAL:  server login has been failing, cached error: connect failed",
            "FATAL:  query_wait_timeout",
            "FATAL:  the database system is shutting down",
        ],
    }
    for source, several in texts.items():
        for text in several:
            yield f"{text}: {source}", postgres(None, text, "reading")


def _of_pymongo() -> Iterator[Row]:
    sources = {
        "pymongo/helpers_shared.py": {
            *helpers_shared._RETRYABLE_ERROR_CODES,
            helpers_shared._REAUTHENTICATION_REQUIRED_CODE,
        },
        # Its categories Interruption, NetworkError, NotPrimaryError, RetriableError,
        # NeedRetargettingError, SystemOverloadedError, and what a cluster gives while it starts.
        "error_codes.yml of mongodb/mongo": {24, 70, 94, 112, 146, 211, 246, 249, 290, 365, 462},
    }
    for source, codes in sources.items():
        for code in sorted(codes):
            yield f"{code}: {source}", _in_a_row(mongo.OperationFailure("m", code))
    for label in ("ResumableChangeStreamError", "RetryableError", "RetryableWriteError",
                  "SystemOverloadedError", "TransientTransactionError"):  # fmt: skip
        details = {"errmsg": "m", "errorLabels": [label]}
        error = mongo.OperationFailure("m", 77_777, details)
        yield f"{label}: the server's, pymongo/synchronous/mongo_client.py", _in_a_row(error)
    for code in (18, helpers_shared._AUTHENTICATION_FAILURE_CODE, 8000):
        error = mongo.OperationFailure("Authentication failed.", code)
        yield f"{code}: LDAP, STS or the like is away while it runs", _in_a_row(error, worked=True)


def _in_a_row(error: Exception, *, worked: bool = False) -> PenstockError:
    """The twelfth."""
    tolerance = Tolerance()
    if worked:
        tolerance.succeeded()
    return [raised(translating_mongodb, error, tolerance) for _ in range(12)][-1]


def _of_cosmos() -> Iterator[Row]:
    status, sub = http_constants.StatusCodes, http_constants.SubStatusCodes
    # azure/cosmos/_retry_utility.py, and the policies that it names.
    for code, detail in [
        (status.TOO_MANY_REQUESTS, 0), (status.REQUEST_TIMEOUT, 0), (status.RETRY_WITH, 0),
        (status.SERVICE_UNAVAILABLE, 0), (status.INTERNAL_SERVER_ERROR, 0),
        (status.SERVICE_UNAVAILABLE, sub.INSUFFICIENT_BINDABLE_PARTITIONS),
        (status.FORBIDDEN, sub.WRITE_FORBIDDEN),
        (status.FORBIDDEN, sub.DATABASE_ACCOUNT_NOT_FOUND),
        (status.NOT_FOUND, sub.READ_SESSION_NOTAVAILABLE),
        (status.NOT_FOUND, sub.CONTAINER_CREATE_IN_PROGRESS),
        (status.GONE, sub.PARTITION_KEY_RANGE_GONE), (status.GONE, sub.COMPLETING_SPLIT),
        (status.GONE, sub.COMPLETING_PARTITION_MIGRATION), (status.GONE, sub.NAME_CACHE_IS_STALE),
    ]:  # fmt: skip
        yield f"{code}/{detail}: _retry_utility.py", cosmos(code, detail, "m", "reading")
    # azure/core/pipeline/policies/_retry.py, and Entra's reference of error codes.
    for answered, text in [(429, "m"), (500, "m"), (503, "m"), (408, "m"),
                           (400, "temporarily_unavailable"), (400, "AADSTS90033: transient"),
                           (401, "AADSTS700024: assertion is not within its valid time range"),
                           (None, "ManagedIdentityCredential: no response")]:  # fmt: skip
        error = ClientAuthenticationError(text)
        error.status_code = answered
        yield f"a token, {answered} {text}", raised(translating_cosmos, error)


def _of_nats() -> Iterator[Row]:
    # server/errors.go and client.go; those that nats.go reconnects after.
    for text in ("User Authentication Expired", "Account Authentication Expired",
                 "Authentication Timeout", "Stale Connection", "Slow Consumer",
                 "maximum connections exceeded", "maximum account active connections exceeded",
                 "Server Shutdown", "Cluster Name Conflict"):  # fmt: skip
        yield f"{text}: server/errors.go", nats(text, "nats://h")
    # server/errors.json: those of 503, and what a cluster gives while a server is away.
    for code, status in {10008: 503, 10009: 503, 10023: 503, 10118: 500,
                         10077: 503, 10002: 503, 10194: 503}.items():  # fmt: skip
        yield f"{code}: server/errors.json", jetstream(ApiError(code, status, "m"), "x")
    for text in ("peer offline", "insufficient storage"):  # server/jetstream_cluster.go
        error = ApiError(10005, 400, f"no suitable peers for placement, {text}")
        yield f"10005, {text}: selectPeerError", jetstream(error, "x")


ROWS = [*_of_botocore(), *_of_libpq(), *_of_pymongo(), *_of_cosmos(), *_of_nats()]


@pytest.mark.parametrize(("what", "error"), ROWS, ids=[what[:60] for what, _ in ROWS])
def test_what_a_driver_retries_passes(what: str, error: PenstockError) -> None:
    assert isinstance(error, Unavailable), what


_WRONG_TOMORROW: list[Row] = [
    ("a wrong secret", _refusal("InvalidSignatureException", "does not match")),
    ("no rights", _refusal("AccessDeniedException")),
    ("another provider", _refusal("InvalidIdentityToken", "No OpenIDConnect provider found")),
    ("password", postgres(None, 'FATAL:  password authentication failed for user "me"', "x")),
    ("database", postgres(None, 'FATAL:  database "shop" does not exist', "x")),
    ("option", postgres(None, 'invalid connection option "x"', "x")),
    ("wal_level", postgres("55000", 'logical decoding requires "wal_level" >= "logical"', "x")),
    ("login", _in_a_row(mongo.OperationFailure("Authentication failed.", 18))),
    ("no change streams", _in_a_row(mongo.OperationFailure("m", 40573), worked=True)),
    ("a firewall", cosmos(403, 0, "blocked by your firewall settings", "x")),
    ("no role", cosmos(403, 5300, "cannot be authorized by AAD token", "x")),
    ("a revoked user", nats("User Authentication Revoked", "nats://h")),
    ("a wrong password", nats("Authorization Violation", "nats://h")),
    ("copies", jetstream(ApiError(10005, 400, "no suitable peers for placement"), "x")),
    ("no JetStream", jetstream(ApiError(10076, 503, "m"), "x")),
]


@pytest.mark.parametrize(("what", "error"), _WRONG_TOMORROW, ids=[w for w, _ in _WRONG_TOMORROW])
def test_what_is_as_wrong_tomorrow_is_a_setting(what: str, error: PenstockError) -> None:
    assert isinstance(error, SettingsError), what
    assert error.hint
