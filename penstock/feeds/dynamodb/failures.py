"""botocore's exceptions -> penstock's, by one table from the service's error code."""

from collections.abc import Iterator
from contextlib import contextmanager
from ssl import SSLCertVerificationError

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from penstock.model.errors import PenstockError, SettingsError, Unavailable, is_caused_by

EXPIRED = "ExpiredIteratorException"
NOT_FOUND = "ResourceNotFoundException"
TRIMMED = "TrimmedDataAccessException"
REFUSED = "ValidationException"

_LATER = "penstock retries by itself"
_POLICY = "allow what docs/how-to/dynamodb.md lists, in the role's policy"
_CREDENTIALS = "correct the credentials that boto3 finds: `aws sts get-caller-identity` shows them"
_RENEWED = "credentials of a role renew themselves; renew a session token, or `aws sso login`"
_CLOCK = "set this machine's clock (NTP): AWS refuses requests that are five minutes off"


class Throttled(Unavailable):
    """The service asks for fewer calls."""


# Services of AWS that credentials come from (STS, SSO) answer in these words, too.
_THROTTLED = (
    "BandwidthLimitExceeded", "EC2ThrottledException", "ProvisionedThroughputExceededException",
    "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException", "SlowDown",
    "SlowDownException", "ThrottledException", "Throttling", "ThrottlingException",
    "TooManyRequestsException",
)  # fmt: skip
_PASSING = (
    "IDPCommunicationError", "InternalFailure", "InternalServerError", "InternalServerException",
    "PriorRequestNotComplete", "ReplicatedWriteConflictException", "RequestTimeout",
    "RequestTimeoutException", "ServiceUnavailable", "TransactionInProgressException",
)  # fmt: skip
_TABLE: dict[str, tuple[type[PenstockError], str]] = {
    **dict.fromkeys(_THROTTLED, (Throttled, _LATER)),
    **dict.fromkeys(_PASSING, (Unavailable, _LATER)),
    "LimitExceededException": (Throttled, "more than two readers of a shard, or too many calls"),
    "AccessDeniedException": (SettingsError, _POLICY),
    "UnrecognizedClientException": (SettingsError, _CREDENTIALS),
    "InvalidSignatureException": (SettingsError, _CREDENTIALS),
    "MissingAuthenticationTokenException": (SettingsError, _CREDENTIALS),
    "IncompleteSignatureException": (SettingsError, _CREDENTIALS),
    "ExpiredTokenException": (Unavailable, _RENEWED),
    "ExpiredToken": (Unavailable, _RENEWED),
    "RequestExpired": (Unavailable, _CLOCK),
    "RequestTimeTooSkewed": (Unavailable, _CLOCK),
    NOT_FOUND: (SettingsError, "correct `table`, `stream` or `region`, or create the table"),
    REFUSED: (SettingsError, "this is a defect of penstock; please report it with this message"),
    EXPIRED: (Unavailable, _LATER),
    TRIMMED: (Unavailable, _LATER),
}

# Those without an error code that is known.
_BY_STATUS: dict[int, tuple[type[PenstockError], str]] = {
    408: (Unavailable, _LATER),
    429: (Throttled, _LATER),
}
# How the message of a wrong signature begins where only the time in it is wrong.
_WRONG_TIME = ("Signature expired", "Signature not yet current")

# What botocore raises by itself; the first that fits.
_OWN: tuple[tuple[type[Exception], type[PenstockError], str], ...] = (
    (boto.NoRegionError, SettingsError, "write `region`, or set AWS_DEFAULT_REGION"),
    (boto.InvalidRegionError, SettingsError, "correct `region`"),
    # Also where a metadata service does not answer once.
    (boto.NoCredentialsError, Unavailable, _CREDENTIALS),
    (boto.PartialCredentialsError, SettingsError, _CREDENTIALS),
    (boto.ProfileNotFound, SettingsError, "correct `profile`"),
    (boto.InvalidEndpointDiscoveryConfigurationError, SettingsError, "correct ~/.aws/config"),
    (boto.InvalidConfigError, SettingsError, "correct ~/.aws/config"),
    (boto.ConfigParseError, SettingsError, "correct ~/.aws/config"),
    (boto.ParamValidationError, SettingsError, "correct `table` or `stream`"),
    (boto.SSOError, Unavailable, _RENEWED),
    *(
        (getattr(boto, name), Unavailable, _RENEWED)
        for name in ("LoginRefreshRequired", "LoginTokenLoadError")
        if hasattr(boto, name)  # the oldest botocore that we take lacks them
    ),
    (boto.ConnectionError, Unavailable, _LATER),
    (boto.HTTPClientError, Unavailable, _LATER),
    (boto.MetadataRetrievalError, Unavailable, _LATER),
    (boto.CredentialRetrievalError, Unavailable, _LATER),
    (boto.TokenRetrievalError, Unavailable, _RENEWED),
    (boto.IncompleteReadError, Unavailable, _LATER),
    (boto.ChecksumError, Unavailable, _LATER),
    (boto.FlexibleChecksumError, Unavailable, _LATER),
    (boto.CapacityNotAvailableError, Unavailable, _LATER),
    (boto.BotoCoreError, SettingsError, "see the message"),
)


def code_of(error: boto.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def failure(error: boto.ClientError, subject: str) -> PenstockError:
    kind, hint = verdict_of(error)
    message = error.response.get("Error", {}).get("Message", "")
    return kind(f"{subject}: {code_of(error)} {message}".strip(), "dynamodb", hint=hint)


def verdict_of(error: boto.ClientError) -> tuple[type[PenstockError], str]:
    """What a refusal is as ours: class and hint."""
    code, message = code_of(error), str(error.response.get("Error", {}).get("Message", ""))
    if code == "InvalidSignatureException" and message.startswith(_WRONG_TIME):
        return Unavailable, _CLOCK
    if code == "InvalidIdentityToken" and "retrieve verification key" in message:
        return Unavailable, _LATER  # STS did not reach the cluster's identity provider
    if code in _TABLE:
        return _TABLE[code]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    if status >= 500:
        return Unavailable, _LATER
    return _BY_STATUS.get(status, (SettingsError, "see the message"))


@contextmanager
def translating(subject: str, *, refusals: bool = True) -> Iterator[None]:
    """Raises botocore's exceptions as ours; without `refusals` not those of the service."""
    try:
        yield
    except boto.ClientError as error:
        if not refusals:
            raise
        raise failure(error, subject) from error
    except ResponseParserError as error:
        hint = "is `endpoint` a DynamoDB Streams server?"
        raise Unavailable(
            f"{subject}: the answer is not readable", "dynamodb", hint=hint
        ) from error
    except boto.BotoCoreError as error:
        raise _own(error, subject) from error


def _own(error: Exception, subject: str) -> PenstockError:
    if is_caused_by(error, SSLCertVerificationError):
        hint = "correct `endpoint`, or the machine's certificates"
        return SettingsError(f"{subject}: {error}", "dynamodb", hint=hint)
    kind, hint = next((kind, hint) for each, kind, hint in _OWN if isinstance(error, each))
    return kind(f"{subject}: {error}", "dynamodb", hint=hint)
