"""Leases in a Cosmos DB container, for hosts that follow its change feed and have no other store.

A row is an item whose partition key is its `id`. Its revision is the item's etag, which a write
must name (`if-match`): the comparison is the service's. Reads may be late where the account's
consistency is Session or weaker; a write never is.
"""

import logging
from base64 import urlsafe_b64encode
from builtins import list as List  # `list` is a method here
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from azure.core import MatchConditions
from azure.core.exceptions import AzureError
from azure.cosmos import ContainerProxy, CosmosClient, PartitionKey
from azure.cosmos.exceptions import (
    CosmosAccessConditionFailedError,
    CosmosHttpResponseError,
    CosmosResourceExistsError,
    CosmosResourceNotFoundError,
)

from penstock.leases import Lease, changed
from penstock.leases.encoding import fields_of, lease_of
from penstock.leases.stores import ClientStore
from penstock.model.errors import LeaseLost, SettingsError, Unavailable
from penstock.process.plugins import to_install

_HINT = (
    "write cosmos://:KEY@ACCOUNT.documents.azure.com:443/DATABASE/CONTAINER, KEY percent-encoded"
)
_WRITERS = 8  # requests of one `put_all` at a time: the service has no write of many partition keys
_READS = 5  # of all rows, where calls of other threads disturb the SDK
_CONNECT, _TIMEOUT = 5, 10  # seconds: a lease must be renewed long before it lapses
_OPERATOR = {400, 401, 403, 404}
# Sub-statuses of a 404, which is a row's only with none (the SDK's `http_constants.py`): the
# container was deleted; besides a replica that lags behind, and a container that is being made.
_NO_CONTAINER = 1003
_PASSES = {1002, _NO_CONTAINER, 1013}

# The SDK's own log has each request's headers.
_silent = logging.getLogger("penstock.leases.sdk")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class CosmosStore(ClientStore[Any]):
    """A `LeaseStore` in one container, which is made on demand where the login may."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._endpoint, self._key, self._database, self._name = parts_of_cosmos(url)

    def __repr__(self) -> str:
        return f"CosmosStore({self._database}/{self._name})"

    def get(self, name: str) -> Lease | None:
        with self._rows() as rows:
            try:
                return _lease(rows.read_item(_id(name), partition_key=_id(name)))
            except CosmosResourceNotFoundError as error:
                if error.sub_status:  # not this row
                    raise
                return None

    def list(self, prefix: str) -> List[Lease]:
        """See LeaseStore; reads the whole container."""
        with self._rows() as rows:
            found = _all(rows)
        return sorted(
            (each for each in found if each.name.startswith(prefix)), key=lambda each: each.name
        )

    def put(self, lease: Lease) -> Lease:
        with self._rows() as rows:
            return _put(rows, lease)

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        """Each row by itself, several at a time. Unavailable: any may have been written."""
        first = {lease.name: lease for lease in reversed(leases)}

        def written(lease: Lease) -> Lease | LeaseLost:
            try:
                return _put(rows, lease) if first[lease.name] is lease else changed(lease.name)
            except LeaseLost as lost:
                return lost

        with self._rows() as rows, ThreadPoolExecutor(_WRITERS) as pool:
            return list(pool.map(written, leases))

    def delete(self, lease: Lease) -> None:
        if not lease.revision:
            if self.get(lease.name) is not None:
                raise changed(lease.name)
            return
        with self._rows() as rows, _swapping(lease):
            rows.delete_item(
                _id(lease.name),
                partition_key=_id(lease.name),
                etag=lease.revision,
                match_condition=MatchConditions.IfNotModified,
            )

    def close(self) -> None:
        """See LeaseStore: connections close with their pool."""
        with self._lock:
            self._made = None

    @contextmanager
    def _rows(self) -> Iterator[ContainerProxy]:
        with _translated():
            try:
                yield self._client()
            except CosmosResourceNotFoundError as error:
                if error.sub_status == _NO_CONTAINER:
                    self.close()  # the next call looks for it, and makes it
                raise

    def _connect(self) -> ContainerProxy:
        client = CosmosClient(
            self._endpoint,
            credential=self._key or _entra(),
            connection_timeout=_CONNECT,
            read_timeout=_TIMEOUT,
            logger=_silent,
        )
        found = client.get_database_client(self._database).get_container_client(self._name)
        try:
            _refuse_expiry(found.read())
        except CosmosResourceNotFoundError:
            database = client.create_database_if_not_exists(self._database)
            found = database.create_container_if_not_exists(
                self._name, partition_key=PartitionKey(path="/id")
            )
        return found


def _refuse_expiry(properties: Mapping[str, Any]) -> None:
    if (seconds := properties.get("defaultTtl")) is not None and seconds > 0:
        raise SettingsError(
            f"the container of the positions deletes its items after {seconds} s",
            "leases",
            hint="switch its time to live off, or to -1",
        )


def parts_of_cosmos(url: str) -> tuple[str, str, str, str]:
    """Endpoint, key ("" for Entra ID), database and container; raises SettingsError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise SettingsError("the positions URL can't be read", "leases", hint=_HINT) from None
    names = [unquote(each) for each in parts.path.strip("/").split("/")]
    options = parse_qs(parts.query)
    if not host or len(names) != 2 or not all(names) or options.keys() - {"tls"}:
        raise SettingsError(
            "the positions URL names no container of Cosmos DB", "leases", hint=_HINT
        )
    scheme = "http" if options.get("tls") == ["false"] else "https"
    return f"{scheme}://{host}:{port or 443}", unquote(parts.password or ""), names[0], names[1]


def _entra() -> Any:
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        raise SettingsError(
            "a positions URL without a key needs azure-identity",
            "leases",
            hint=f"pip install '{to_install('cosmos-entra')}', or write the key into the URL",
        ) from None
    return DefaultAzureCredential()


def _id(name: str) -> str:
    """An item's id, in which the service takes neither of / \\ ? #."""
    return urlsafe_b64encode(name.encode()).decode()


def _put(rows: ContainerProxy, lease: Lease) -> Lease:
    item = {"id": _id(lease.name), "name": lease.name, **fields_of(lease)}
    with _swapping(lease):
        if lease.revision:
            stored = rows.replace_item(
                item["id"], item, etag=lease.revision, match_condition=MatchConditions.IfNotModified
            )
        else:
            stored = rows.create_item(item)
    return replace(lease, revision=str(stored["_etag"]))


@contextmanager
def _swapping(lease: Lease) -> Iterator[None]:
    """Raises LeaseLost for a row that was changed."""
    try:
        yield
    except (
        CosmosResourceExistsError,
        CosmosAccessConditionFailedError,
        CosmosResourceNotFoundError,
    ) as error:
        if error.status_code == 404 and error.sub_status:
            raise
        raise changed(lease.name) from None


def _all(rows: ContainerProxy) -> List[Lease]:
    for tries_left in reversed(range(_READS)):
        try:
            return [_lease(each) for each in rows.read_all_items()]
        except RuntimeError as error:
            if not tries_left or not _is_race(error):
                raise
    raise AssertionError("unreachable")


def _is_race(error: RuntimeError) -> bool:
    # The SDK copies the last answer's headers while calls of other threads write into them.
    return "during iteration" in str(error)


def _lease(item: dict[str, Any]) -> Lease:
    try:
        return lease_of(str(item["name"]), item, str(item["_etag"]))
    except KeyError:
        raise SettingsError(
            f"the item {item.get('id')!r} of the container is no lease",
            "leases",
            hint="give the positions a container of their own",
        ) from None


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except CosmosHttpResponseError as error:
        text = f"positions container: {error.status_code} {error.http_error_message}"
        text = text.partition("\n")[0][:300]
        if error.status_code in _OPERATOR and not (
            error.status_code == 404 and error.sub_status in _PASSES
        ):
            raise SettingsError(
                text, "leases", hint="correct the key and the names in `positions`"
            ) from error
        raise Unavailable(text, "leases", hint="penstock retries by itself") from error
    except AzureError as error:
        raise Unavailable(
            f"positions container: {type(error).__name__}",
            "leases",
            hint="is the address in `positions` right?",
        ) from error
    except RuntimeError as error:
        if not _is_race(error):
            raise
        raise Unavailable(f"positions container: {error}", "leases") from error
    except ValueError:
        # Not its text: it may quote the URL.
        raise SettingsError(
            "Cosmos DB does not accept the positions URL", "leases", hint=_HINT
        ) from None
