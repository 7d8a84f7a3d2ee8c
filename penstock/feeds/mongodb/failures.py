"""PyMongo's exceptions -> penstock's, by tables of server codes and classes, without the URL."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bson.errors import BSONError
from dns import resolver
from dns.exception import DNSException, SyntaxError
from pymongo import errors as mongo

from penstock.model.errors import (
    Malformed,
    PenstockError,
    PositionLost,
    SettingsError,
    Unavailable,
    is_caused_by,
)

_LATER = "penstock retries by itself"
_DEFECT = "this is a defect of penstock or of the server: please report it with this message"
_PRIVILEGES = "grant the role that `penstock check` names"
_IMAGES = (
    "write when_available, or, for each collection:"
    " db.runCommand({collMod: NAME, changeStreamPreAndPostImages: {enabled: true}})"
)

# The changes after the token are gone, or the server does not know it.
LOST: Mapping[int, str] = {
    286: "oplog_rolled_over",  # ChangeStreamHistoryLost
    280: "token_unknown",  # ChangeStreamFatalError
    260: "token_invalid",  # InvalidResumeToken
    136: "oplog_rolled_over",  # CappedPositionLost
    9: "token_invalid",  # FailedToParse: of a token
}
# Transient: the stream is opened again at its token.
RESUMABLE: Mapping[int, str] = {
    6: "HostUnreachable", 7: "HostNotFound", 24: "LockTimeout", 43: "CursorNotFound",
    50: "MaxTimeMSExpired", 63: "StaleShardVersion", 70: "ShardNotFound", 89: "NetworkTimeout",
    91: "ShutdownInProgress", 94: "NotYetInitialized", 112: "WriteConflict",
    133: "FailedToSatisfyReadPreference", 134: "ReadConcernMajorityNotAvailableYet",
    146: "ExceededMemoryLimit", 150: "StaleEpoch",
    175: "QueryPlanKilled", 189: "PrimarySteppedDown", 202: "NetworkInterfaceExceededTimeLimit",
    206: "NoSuchSession", 211: "KeyNotFound", 225: "TransactionTooOld",
    234: "RetryChangeStream", 237: "CursorKilled", 246: "SnapshotUnavailable",
    249: "StaleDbVersion", 262: "ExceededTimeLimit", 282: "TransactionCoordinatorSteppingDown",
    290: "TransactionExceededLifetimeLimitSeconds", 317: "ConnectionPoolExpired",
    365: "TemporarilyUnavailable", 384: "ConnectionError", 391: "ReauthenticationRequired",
    462: "IngressRequestRateLimitExceeded", 9001: "SocketException",
    10058: "LegacyNotPrimary", 10107: "NotWritablePrimary", 11600: "InterruptedAtShutdown",
    11601: "Interrupted", 11602: "InterruptedDueToReplStateChange",
    13388: "StaleConfig", 13435: "NotPrimaryNoSecondaryOk", 13436: "NotPrimaryOrSecondary",
    50738: "a cursor of another session",
}  # fmt: skip
_Row = tuple[type[PenstockError], str]

# Server code -> error and hint.
CODES: Mapping[int, _Row] = {
    **dict.fromkeys(RESUMABLE, (Unavailable, _LATER)),
    **dict.fromkeys(LOST, (PositionLost, "see `on_gap`")),
    2: (SettingsError, "correct the setting that the message names"),
    11: (SettingsError, "correct the user in `connection`"),
    13: (SettingsError, _PRIVILEGES),
    14: (SettingsError, _DEFECT),
    17: (SettingsError, _DEFECT),
    18: (SettingsError, "correct user and password, or authSource, in `connection`"),
    20: (SettingsError, "the server does not allow this operation"),
    26: (Unavailable, "create the database"),
    47: (SettingsError, _IMAGES),
    59: (SettingsError, "the server is too old: MongoDB 6.0 and later are supported"),
    72: (SettingsError, _DEFECT),
    73: (SettingsError, "correct `database` and `collections`"),
    115: (SettingsError, "the server does not support change streams"),
    166: (SettingsError, "a view has no change stream: name its collection"),
    323: (SettingsError, "the server's API version does not allow this: leave it out of the URL"),
    8000: (SettingsError, "correct user and password in `connection`"),
    10334: (
        SettingsError,
        "an event is larger than 16 MB: MongoDB 6.0.9 and later split it; or leave out images",
    ),
    40324: (SettingsError, "the server is too old: MongoDB 6.0 and later are supported"),
    40415: (SettingsError, _DEFECT),
    40573: (SettingsError, "change streams need a replica set: initiate one"),
}
# Exceptions without a code that is known; the most special class wins.
KINDS: Mapping[type[Exception], _Row] = {
    mongo.PyMongoError: (SettingsError, _DEFECT),
    mongo.ConnectionFailure: (Unavailable, _LATER),
    mongo.NetworkTimeout: (Unavailable, "the server did not answer in time; " + _LATER),
    mongo.NotPrimaryError: (Unavailable, "the replica set elects a primary; " + _LATER),
    mongo.ServerSelectionTimeoutError: (
        Unavailable,
        "start the server, or correct hosts, replicaSet and TLS in `connection`",
    ),
    mongo.ConfigurationError: (SettingsError, "correct `connection`"),
    mongo.InvalidName: (SettingsError, "correct `database` and `collections`"),
    mongo.ProtocolError: (Unavailable, "the next request asks for fewer changes; " + _LATER),
    mongo.CursorNotFound: (Unavailable, _LATER),
    mongo.ExecutionTimeout: (Unavailable, _LATER),
    mongo.InvalidOperation: (SettingsError, _DEFECT),
    mongo.EncryptionError: (SettingsError, "correct the encryption options in `connection`"),
    mongo.OperationFailure: (Unavailable, "unknown to penstock; " + _LATER),
    BSONError: (Malformed, _DEFECT),
    OSError: (Unavailable, _LATER),
}
# Errors whose messages quote a document or its key.
_WITHOUT_DATA: Mapping[int | None, str] = {
    47: "a pre-image or post-image that is required is not there",
    10334: "an event is too large",
    11000: "a key is there already",
}
# A token has the key of a document in it.
_QUOTED = re.compile(r"\{.*\}|\{.*")
_MOST_UNKNOWN = 10
# Labels by which the server announces that it may be tried again.
_LABELS = (
    "ResumableChangeStreamError", "RetryableError", "RetryableWriteError", "SystemOverloadedError",
    "TransientTransactionError",
)  # fmt: skip
# Codes of a login that is refused.
_LOGIN = (18, 8000)


class Tolerance:
    """Counts errors in a row that nothing is known about; ten end the backend. A login that worked
    is refused while LDAP, STS or the like is away, and while a password is renewed: that passes.
    The first one of a process is a setting, which must be clear at once."""

    def __init__(self) -> None:
        self._unknown = 0
        self._worked = False

    def succeeded(self) -> None:
        """Changes can be read: whatever went wrong is over."""
        self._unknown, self._worked = 0, True

    def judge(self, error: PenstockError, code: int | None) -> PenstockError:
        if code in _LOGIN and self._worked:
            hint = f"the login worked before: {_LATER}. If that does not end: {error.hint}"
            return Unavailable(error.message, error.code, hint=hint)
        if code is None or code in CODES or not isinstance(error, Unavailable):
            return error
        self._unknown += 1
        if self._unknown < _MOST_UNKNOWN:
            return error
        return SettingsError(
            f"{error.message} ({_MOST_UNKNOWN} times in a row)",
            "mongodb.unknown-error",
            hint="penstock does not know this error: see the server's log, then start again",
        )


def code_of(error: BaseException) -> int | None:
    """The server's code of an exception; NotPrimaryError has it in its details only."""
    details = getattr(error, "details", None)
    code = getattr(error, "code", None)
    if code is None and isinstance(details, Mapping):
        code = details.get("code")
    return code if isinstance(code, int) else None


@contextmanager
def translating(subject: str, tolerance: Tolerance | None = None) -> Iterator[None]:
    """Raises PyMongo's exceptions, and the socket's, as ours."""
    try:
        yield
    except (mongo.PyMongoError, BSONError, OSError) as error:
        ours = _translated(error, subject)
        is_announced = isinstance(error, mongo.PyMongoError) and any(
            map(error.has_error_label, _LABELS)
        )
        if tolerance is not None and not is_announced:
            ours = tolerance.judge(ours, code_of(error))
        raise ours from error


def _translated(error: Exception, subject: str) -> PenstockError:
    code = code_of(error)
    if isinstance(error, mongo.ConfigurationError) and is_dns_away(error):
        return Unavailable(f"{subject}: {_text(error)}", "mongodb", hint=_LATER)
    of_class = next(KINDS[each] for each in type(error).__mro__ if each in KINDS)
    kind, hint = of_class if code is None else CODES.get(code, of_class)
    text = _WITHOUT_DATA[code] if code in _WITHOUT_DATA else _text(error)
    if code in LOST:
        text = _QUOTED.sub("{...}", text)
    return kind(f"{subject}: {text}" if text else subject, "mongodb", hint=hint)


def is_dns_away(error: Exception) -> bool:
    """Whether a name of `mongodb+srv` was not resolved, though it may exist: a server did not
    answer, or reported a failure of its own."""
    is_wrong = is_caused_by(error, resolver.NXDOMAIN, SyntaxError)
    return is_caused_by(error, DNSException, OSError) and not is_wrong


def _text(error: Exception) -> str:
    """The server's message, without the reply that PyMongo puts after it."""
    details = getattr(error, "details", None)
    reported = details.get("errmsg") if isinstance(details, Mapping) else None
    text = str(reported or error).partition(", full error:")[0].partition(", Timeout: ")[0]
    return " ".join(text.split())[:300]


def cause_of(error: PositionLost) -> str:
    """The cause of the gap that a lost position means."""
    code = None if error.__cause__ is None else code_of(error.__cause__)
    return LOST.get(code or 0, "token_invalid")


def is_unsplit(error: PositionLost) -> bool:
    """Whether the token is of a part of an event that is whole by now, because a document that it
    looks up has shrunk (document_source_change_stream_split_large_event.cpp): nothing is lost."""
    return cause_of(error) == "token_unknown" and "was not large enough" in error.message


def is_timeout(error: PenstockError) -> bool:
    """Whether the server did not answer in time, while the connection stood."""
    return isinstance(error.__cause__, mongo.NetworkTimeout)


def is_too_large(error: PenstockError) -> bool:
    return isinstance(error.__cause__, mongo.ProtocolError)
