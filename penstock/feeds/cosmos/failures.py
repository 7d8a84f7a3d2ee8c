"""The SDK's exceptions -> penstock's, by one table from status and sub-status.

Sources: "HTTP status codes for Azure Cosmos DB" (Microsoft Learn); the SDK's `http_constants.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from azure.core import exceptions as core
from azure.cosmos import exceptions as cosmos

from penstock.model.errors import PenstockError, SettingsError, Unavailable

_LATER = "penstock retries by itself"
_SEE = "see the message"
_KEY = "correct `key` (an account's key, base64), or remove it to use Microsoft Entra ID"
_RIGHTS = "give the identity what docs/how-to/cosmos.md lists, or allow this network"
_START = "begin at `beginning` or `now`: no time can be used after partitions were merged"
_CLOCK = "set this machine's clock (NTP): the service refuses requests that are 15 minutes off"

# What .NET's ExceptionClassifier looks for in the message of a 400.
TOO_LARGE = "Reduce page size and try again"
# "StartTime/IfModifiedSince is not currently supported with merged partitions": of a 400.
_NO_TIME = "IfModifiedSince"


class ContainerMissing(SettingsError):
    """There is no such database or container."""


_TABLE: dict[tuple[int, int], tuple[type[PenstockError], str]] = {
    (401, 0): (SettingsError, _KEY),
    (403, 0): (SettingsError, _RIGHTS),
    (403, 3): (Unavailable, "another region takes writes now; " + _LATER),
    (403, 1008): (Unavailable, "the account leaves this region; " + _LATER),
    (404, 0): (ContainerMissing, "correct `database` or `container`"),
    (404, 1002): (Unavailable, _LATER),  # a replica that lags behind the session
    (404, 1013): (Unavailable, _LATER),  # the container is being made
    (408, 0): (Unavailable, _LATER),
    (409, 0): (Unavailable, _LATER),
    (410, 0): (Unavailable, _LATER),
    (412, 0): (Unavailable, _LATER),
    (429, 0): (Unavailable, _LATER),
    (449, 0): (Unavailable, _LATER),
}


# Of an answer of 400 or 401: the service is away, or a federated token is being renewed
# (reference-error-codes of Microsoft Entra ID).
_PASSING = ("temporarily_unavailable", "AADSTS90033", "AADSTS700024", "AADSTS50196")


def _passes(error: core.ClientAuthenticationError) -> bool:
    """Whether a token that was not given will be. Without a status no answer came: from a metadata
    service, or for a token."""
    status = error.status_code
    if not status or status in (408, 410, 429) or status >= 500:
        return True
    return any(each in str(error) for each in _PASSING)


class Refused(Exception):
    """An answer that the SDK would handle in a way of its own (it repeats a read of a range that is
    gone a thousand times), or that decides how reading goes on. `wait`: seconds to wait."""

    def __init__(self, status: int, sub_status: int, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.sub_status, self.message, self.wait = status, sub_status, message, wait

    @property
    def is_too_large(self) -> bool:
        return self.status == 413 or (self.status == 400 and TOO_LARGE in self.message)


def failure(status: int, sub_status: int, message: str, subject: str) -> PenstockError:
    other = (Unavailable, _LATER) if status >= 500 or not status else (SettingsError, _SEE)
    kind, hint = _TABLE.get((status, sub_status)) or _TABLE.get((status, 0)) or other
    if status in (401, 403) and "date" in message.lower() and "expired" in message.lower():
        kind, hint = Unavailable, _CLOCK
    if status == 400 and _NO_TIME in message:
        hint = _START
    text = message.strip().partition("\n")[0][:300]
    code = f"{status}/{sub_status}" if sub_status else str(status)
    return kind(f"{subject}: {code} {text}".strip(), "cosmos", hint=hint)


@contextmanager
def translating(subject: str, *, refusals: bool = True) -> Iterator[None]:
    """The SDK's errors as ours; `refusals` also those of our own reading of an answer."""
    try:
        yield
    except Refused as refused:
        if not refusals:
            raise
        raise failure(refused.status, refused.sub_status, refused.message, subject) from refused
    except cosmos.CosmosHttpResponseError as error:
        message = str(error.http_error_message or error.message)
        found = failure(error.status_code or 0, error.sub_status or 0, message, subject)
        raise found from error
    except core.ClientAuthenticationError as error:
        kind = Unavailable if _passes(error) else SettingsError
        raise kind(f"{subject}: {str(error).partition(chr(10))[0]}", "cosmos", hint=_KEY) from error
    except core.HttpResponseError as error:
        raise failure(error.status_code or 0, 0, str(error.message), subject) from error
    except core.AzureError as error:  # no answer, or none in time
        text = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        raise Unavailable(f"{subject}: {text}", "cosmos", hint=_LATER) from error
    except RecursionError as error:
        raise Unavailable(f"{subject}: the range is still gone", "cosmos", hint=_LATER) from error
    except RuntimeError as error:
        # The SDK copies the last answer's headers while calls of other threads write into them.
        if "during iteration" not in str(error):
            raise
        raise Unavailable(f"{subject}: {error}", "cosmos", hint=_LATER) from error
