"""Every exception of the SDK has a class of ours, and no hint is empty."""

import inspect

import pytest
from azure.core import exceptions as core
from azure.core.utils import CaseInsensitiveDict
from azure.cosmos import exceptions as cosmos

from penstock.feeds.cosmos.failures import Refused, failure, translating
from penstock.model.errors import PenstockError, SettingsError, Unavailable

_KINDS = [
    kind
    for module in (core, cosmos)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, core.AzureError)
]


def made(kind: type[core.AzureError]) -> core.AzureError:
    if issubclass(kind, cosmos.CosmosHttpResponseError):
        return kind(status_code=503, message="busy")
    if kind is cosmos.CosmosBatchOperationError:
        return kind(status_code=503, message="busy", headers={}, operation_responses=[])
    try:
        return kind(message="no")
    except (TypeError, AttributeError):  # it wants a response
        found = kind.__new__(kind)
        found.args, found.message = ("no",), "no"
        found.status_code = 503  # type: ignore[attr-defined]
        return found


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.__name__)
def test_every_exception_of_the_sdk_is_ours(kind: type[core.AzureError]) -> None:
    with pytest.raises(PenstockError) as raised, translating("reading"):
        raise made(kind)
    assert raised.value.hint
    assert "reading" in raised.value.message


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, SettingsError), (401, SettingsError), (403, SettingsError), (404, SettingsError),
     (408, Unavailable), (410, Unavailable), (412, Unavailable), (429, Unavailable),
     (449, Unavailable), (500, Unavailable), (502, Unavailable), (503, Unavailable)],
)  # fmt: skip
def test_a_status_has_its_class(status: int, kind: type[PenstockError]) -> None:
    assert isinstance(failure(status, 0, "said\nand more", "reading"), kind)
    assert "more" not in failure(status, 0, "said\nand more", "reading").message


def test_a_container_that_is_being_made_is_waited_for() -> None:
    assert type(failure(404, 1013, "Collection is not yet available", "reading")) is Unavailable


def test_a_clock_that_is_wrong_is_waited_for() -> None:
    """The service says this of a signature whose x-ms-date is 15 minutes off."""
    text = "The authorization token is not valid: the date header has expired"
    assert type(failure(403, 0, text, "reading")) is Unavailable


def test_a_refusal_of_our_own_is_passed_on_only_where_it_is_asked_for() -> None:
    with pytest.raises(Unavailable), translating("reading"):
        raise Refused(429, 0, "slow down", 1.0)
    with pytest.raises(Refused), translating("reading", refusals=False):
        raise Refused(429, 0, "slow down", 1.0)


def test_headers_that_another_thread_writes_to_pass_by_themselves() -> None:
    """The SDK copies `last_response_headers`, which each call of a client writes into
    (azure/cosmos/_retry_utility.py, Execute)."""
    headers = CaseInsensitiveDict({"etag": "1"})
    with pytest.raises(Unavailable), translating("reading"):
        for _ in headers.items():
            headers["x-ms-throttle-retry-count"] = "0"
    with pytest.raises(RuntimeError, match="another"), translating("reading"):
        raise RuntimeError("another one")
