"""Every refusal of the service and every exception of botocore has its class of ours."""

import inspect
import pickle
from typing import Any

import botocore.session
import pytest
from botocore import exceptions as boto
from botocore.exceptions import ClientError

from penstock.config.options import options_from_settings, settings_from_options
from penstock.feeds.dynamodb import DynamodbSettings
from penstock.feeds.dynamodb.failures import _TABLE, Throttled, failure, translating
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.model.position import bookmarks_from_json

OURS = [
    kind
    for kind in vars(boto).values()
    if inspect.isclass(kind) and issubclass(kind, boto.BotoCoreError)
]
_NETWORK = (boto.ConnectionError, boto.HTTPClientError)


def refusal(code: str, status: int = 400, message: str = "m") -> ClientError:
    answer: Any = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, "GetRecords")


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_every_exception_of_botocore_is_one_of_ours(kind: type[Exception]) -> None:
    error = kind.__new__(kind)
    Exception.__init__(error, "text")
    with pytest.raises(PenstockError) as found, translating("reading"):
        raise error
    assert found.value.hint
    if issubclass(kind, _NETWORK) and not issubclass(kind, boto.SSLError):
        assert isinstance(found.value, Unavailable)


def test_every_error_of_the_service_model_is_known() -> None:
    model = botocore.session.get_session().get_service_model("dynamodbstreams")
    codes = {
        shape.name
        for operation in model.operation_names
        for shape in model.operation_model(operation).error_shapes
    }
    assert codes <= set(_TABLE)


def test_an_unknown_error_goes_by_its_status() -> None:
    assert isinstance(failure(refusal("New", 503), "reading"), Unavailable)
    assert isinstance(failure(refusal("New"), "reading"), SettingsError)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (refusal("ExpiredTokenException"), "sso login"),
        (refusal("ExpiredToken", 403), "sso login"),
        (refusal("RequestExpired"), "NTP"),
        # SigV4's two messages for a time that is wrong.
        (refusal("InvalidSignatureException", 400, "Signature expired: 1 is now earlier"), "NTP"),
        (refusal("InvalidSignatureException", 400, "Signature not yet current: 1"), "NTP"),
        (refusal("New", 408), "by itself"),
        (refusal("New", 429), "by itself"),
    ],
)
def test_what_passes_by_itself_is_unavailable(error: ClientError, hint: str) -> None:
    found = failure(error, "reading")
    assert isinstance(found, Unavailable)
    assert hint in found.hint


def test_a_wrong_secret_is_a_setting() -> None:
    text = "The request signature we calculated does not match the signature you provided."
    found = failure(refusal("InvalidSignatureException", 400, text), "reading")
    assert isinstance(found, SettingsError)


def test_throttling_is_unavailable_and_pickles() -> None:
    found = failure(refusal("LimitExceededException"), "reading")
    copy = pickle.loads(pickle.dumps(found))
    assert isinstance(copy, Throttled)
    assert isinstance(copy, Unavailable)
    assert str(copy) == str(found)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "table"),
        ({"table": "a", "stream": "arn:aws:dynamodb:r:1:table/a/stream/l"}, "table"),
        ({"stream": "users"}, "ARN"),
        ({"table": "a", "start": "yesterday"}, "trim_horizon"),
        ({"table": "a", "start": "2026-11-23T10:00:00"}, "zone"),
        ({"table": "a", "start": {"p": 7}}, "token"),
        ({"table": "a", "start": {"partitions": 7}}, "token"),
        ({"table": "a", "start": "{"}, "token"),
        ({"table": "a", "access_key": "k"}, "secret_key"),
        ({"table": "a", "endpoint": "localhost:8000"}, "endpoint"),
        ({"table": "a", "reads": 0}, "reads"),
    ],
)
def test_wrong_settings_say_what_to_write(given: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        DynamodbSettings.model_validate(given)


def test_a_token_is_a_start_also_as_an_option() -> None:
    bookmarks = {"L/S0": {"place": None, "mark": {"from": "trim_horizon"}}}
    for start in (bookmarks, {"version": 1, "backend": "aws", "partitions": bookmarks}):
        found = DynamodbSettings.model_validate({"table": "a", "start": start})
        assert found.at == bookmarks_from_json(bookmarks)
        assert settings_from_options(DynamodbSettings, options_from_settings(found)) == found


def test_secrets_do_not_print() -> None:
    found = DynamodbSettings.model_validate(
        {"table": "a", "access_key": "AKIA1", "secret_key": "hidden", "session_token": "hidden"}
    )
    assert "hidden" not in repr(found)
    assert "AKIA1" not in repr(found)
