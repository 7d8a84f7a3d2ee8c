"""The SDK's client for one container, one for each process: it does not pickle, and is made where
it is used.

One call reads one page of one range, by a token that is made anew each time: iterators of the SDK
take a page of another range's token where threads share a client, cannot go on from a time, and
read the children of a part of a physical partition unclipped.
"""

import base64
import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from azure.cosmos import CosmosClient

from penstock.feeds.cosmos.failures import Refused, translating
from penstock.feeds.cosmos.ranges import FeedMark, KeyRange, number_of
from penstock.feeds.cosmos.settings import CosmosSettings
from penstock.model.errors import Malformed, SettingsError
from penstock.process.plugins import to_install
from penstock.wire.cosmos.decoder import Document

# Statuses that decide how reading goes on, before the SDK acts on them; 400/1024 it would answer by
# reading another container of the same name.
_OURS = frozenset({400, 404, 410, 413, 429})
_BEHIND = (404, "1002")  # a replica that lags behind the session, which the SDK asks again
# The SDK has an identity of the container apart from ours, which it renews by itself.
_INTENDED = "x-ms-cosmos-intended-collection-rid"
_REPLACED = (400, 1024, "the container is another one than the continuation's")
_WAIT = 1.0  # seconds, where a 429 does not say
_MODES = {True: "AllVersionsAndDeletes", False: "LatestVersion"}


class ContainerIdentity(NamedTuple):
    """Which container: its resource id, and the paths of its partition key."""

    rid: str
    paths: tuple[str, ...]


class FeedAnswer(NamedTuple):
    """A page of the change feed. `ranges` are those that the answer's token has: others than the
    one asked for after a split. `newest` is the LSN of the physical partition, None if unknown."""

    etag: str
    ranges: tuple[KeyRange, ...]
    documents: Sequence[Document]
    body: bytes
    newest: int | None

    def is_cut_short(self, before: str | None) -> bool:
        """Whether an answer without documents, asked for after the etag `before`, is not the last:
        on a part of a merged partition the service may stop before its newest LSN, with a new
        continuation."""
        begun, reached = number_of(before), number_of(self.etag)
        if reached is None or self.newest is None or self.etag == before:
            return False
        return (begun is None or begun < reached) and reached < self.newest


class CosmosContainer:
    """The calls; errors are ours, and of `page` also `Refused`. Thread-safe."""

    def __init__(self, settings: CosmosSettings) -> None:
        self._subject = f"Cosmos DB's container {settings.path}"
        self._settings = settings
        self._lock = threading.Lock()
        self._identity: ContainerIdentity | None = None
        with translating(self._subject):
            client = CosmosClient(
                settings.endpoint,
                credential=credential_of(settings),
                connection_timeout=settings.connect_timeout,
                read_timeout=settings.timeout,
                logger=_silent,
            )
            database = client.get_database_client(settings.database)
            self._container = database.get_container_client(settings.container)
        self._client = client

    def identity(self, *, again: bool = False) -> ContainerIdentity:
        """As it was asked for first, or `again`. Does I/O."""
        with self._lock:
            if self._identity is None or again:
                with translating(self._subject):
                    found = self._container.read()
                    self._identity = ContainerIdentity(
                        rid=str(found["_rid"]), paths=tuple(found["partitionKey"]["paths"])
                    )
                if again:
                    self._client.client_connection.refresh_routing_map_provider()
            return self._identity

    def ranges(self) -> list[KeyRange]:
        """The physical partitions now. Does I/O."""
        with translating(self._subject):
            listed = self._container.read_feed_ranges(force_refresh=True)
            found = [_range_of(each["Range"]) for each in listed]
        return sorted(found)

    def page(self, key_range: KeyRange, mark: FeedMark | None, most: int) -> FeedAnswer:
        """The page after a mark; None is now. Raises Refused too."""
        bodies: list[bytes] = []
        heads: list[Mapping[str, Any]] = []
        found: list[Document] = []

        def answered(headers: Mapping[str, Any], answer: Any) -> None:
            heads.append(headers)
            found[:] = (answer or {}).get("Documents", ())

        def arrived(response: Any) -> None:
            http = response.http_response
            asked = response.http_request.headers.get(_INTENDED)
            if mark is not None and asked not in (None, mark.rid):
                raise Refused(*_REPLACED)
            sub_status = http.headers.get("x-ms-substatus")
            if http.status_code in _OURS and (http.status_code, sub_status) != _BEHIND:
                raise _refused(http)
            bodies.append(http.body())

        with translating(self._subject, refusals=False):
            pages = self._container.query_items_change_feed(
                **self._from(key_range, mark),
                max_item_count=most,
                response_hook=answered,
                raw_response_hook=arrived,
            ).by_page()
            try:
                next(pages, None)
            except ValueError as error:
                if "Invalid continuation" not in str(error):
                    raise
                raise Refused(*_REPLACED) from error  # "[Mismatch collection rid]", before it asks
        if not heads:
            raise Malformed(f"{self._subject}: the SDK gave no answer of the change feed", "cosmos")
        return _answer(heads[-1], found, bodies[-1])

    def peek(self, key_range: KeyRange, mark: FeedMark | None = None) -> FeedAnswer:
        """The same, of one item at most; refusals are errors of ours."""
        with translating(self._subject):
            return self.page(key_range, mark, 1)

    def _from(self, key_range: KeyRange, mark: FeedMark | None) -> dict[str, Any]:
        if mark is not None and mark.etag is not None:
            return {"continuation": _token(key_range, mark, self._settings.every)}
        start = "Now" if mark is None else mark.since or "Beginning"
        return {
            "feed_range": {"Range": _document(key_range)},
            "start_time": start,
            "mode": _MODES[self._settings.every],
        }


def _answer(headers: Mapping[str, Any], found: list[Document], body: bytes) -> FeedAnswer:
    try:
        token = json.loads(base64.b64decode(headers["etag"]))
        parts = token["continuation"]["continuation"]
        etag = next((str(each["token"]) for each in parts if each["token"] is not None), "")
        ranges = tuple(sorted(_range_of(each["range"]) for each in parts))
    except (KeyError, ValueError, TypeError) as error:
        raise Malformed("the SDK's continuation is not readable", "cosmos") from error
    newest = _lsn(str(headers.get("x-ms-session-token", "")))
    return FeedAnswer(etag=etag, ranges=ranges, documents=found, body=body, newest=newest)


def _lsn(session: str) -> int | None:
    """The newest LSN in a session token `RANGE:VERSION#LSN[#...]` or `RANGE:LSN`; as in .NET."""
    _, _, text = session.partition(":")
    parts = text.split("#")
    digits = parts[1] if len(parts) > 1 else parts[0]
    return int(digits) if digits.isdecimal() else None


def _token(key_range: KeyRange, mark: FeedMark, every: bool) -> str:
    document = _document(key_range)
    token = {
        "v": "v2",
        "containerRid": mark.rid,
        "mode": _MODES[every],
        "startFrom": {"Type": "Now" if every else "Beginning"},
        "continuation": {
            "v": "v2",
            "rid": mark.rid,
            "continuation": [{"token": mark.etag, "range": document}],
            "Range": document,
        },
    }
    return base64.b64encode(json.dumps(token).encode()).decode()


def _document(key_range: KeyRange) -> dict[str, Any]:
    return {"min": key_range.min, "max": key_range.max,
            "isMinInclusive": True, "isMaxInclusive": False}  # fmt: skip


def _range_of(document: Mapping[str, Any]) -> KeyRange:
    return KeyRange(str(document["min"]), str(document["max"]))


def _refused(http: Any) -> Refused:
    headers = http.headers
    try:
        message = str(json.loads(http.text()).get("message", ""))
    except (ValueError, AttributeError):
        message = ""
    wait = headers.get("x-ms-retry-after-ms")
    return Refused(
        http.status_code,
        int(headers.get("x-ms-substatus") or 0),
        message,
        int(wait) / 1000 if wait else _WAIT,
    )


def credential_of(settings: CosmosSettings) -> Any:
    """The key as a dictionary, as the SDK takes it, or Entra ID's default credential."""
    if settings.key is not None:
        key = settings.key.get_secret_value()
        try:
            base64.b64decode(key, validate=True)
        except ValueError:
            raise SettingsError(
                "`key` is not an account's key: these are base64", "cosmos.key-invalid"
            ) from None
        return key
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        raise SettingsError(
            "without `key` the login is Microsoft Entra ID's, which needs azure-identity",
            "cosmos.login-missing",
            hint=f"pip install '{to_install('cosmos-entra')}', or write `key`",
        ) from None
    return DefaultAzureCredential()


# The SDK's own log has each request's headers; ours has places only.
_silent = logging.getLogger("penstock.cosmos.sdk")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


def container_of(settings: CosmosSettings) -> CosmosContainer:
    """This process's client for a container; where to start does not matter to it."""
    return _container_of(os.getpid(), settings.model_copy(update={"start": "now"}))


@lru_cache(maxsize=64)
def _container_of(_: int, settings: CosmosSettings) -> CosmosContainer:
    return CosmosContainer(settings)
