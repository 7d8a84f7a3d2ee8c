"""The stand-in: a server that speaks the part of Azure Cosmos DB's REST protocol that the change
feed and the leases need, to the official SDK. It keeps everything in memory, and is not Cosmos DB.

What it cannot prove, because only the service knows: the form of etags, how LSNs are numbered after
a split or a merge, how long 410 lasts, request units, replicas that lag, failover, limits of a
page's bytes, and how an all-versions token that is too old is refused.

    with CosmosServer() as server:
        orders = server.container("shop", "orders")
        orders.put({"id": "a", "pk": "x"})
        left, right = orders.split()
        server.fail("feed", 410, 1002, times=2)
        server.fail("feed", 429, headers={"x-ms-retry-after-ms": "20"})
        server.slow = 0.5                     # seconds before each answer of the feed
        server.counts["feed"]                 # requests so far

Sources: "Azure Cosmos DB: REST API reference" (Microsoft Learn: status codes, access control, "List
documents" with A-IM, "Get partition key ranges"); azure-cosmos `http_constants.py` for headers and
sub-statuses, `_change_feed/change_feed_state.py` for what a feed request carries,
`_routing/routing_map_provider.py` for the look-up of ranges, which ends with a literal 304.
"""

import base64
import hashlib
import hmac
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from azure.cosmos._routing import routing_map_provider

from tests.cosmos.container import ItemConflict, StoredContainer
from tests.servers.http import HttpHandler, HttpStandIn

# Any will do; this one is the emulator's form: 64 bytes, base64.
KEY = base64.b64encode(b"penstock" * 8).decode()
_TYPES = ("dbs", "colls", "docs", "pkranges")


@dataclass
class ScriptedRefusal:
    """A scripted answer, `times` times."""

    status: int
    sub_status: int = 0
    times: int = 1
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class CosmosReply:
    """What is sent."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


class _Handler(HttpHandler):
    def _answer(self) -> None:
        body = self.body()
        headers = {name.lower(): value for name, value in self.headers.items()}
        given = json.loads(body) if body else None
        answer = self.stand_in.answer(self.command, self.path, headers, given)
        sent = b"" if answer.body is None else json.dumps(answer.body).encode()
        more = {"Content-Type": "application/json", "x-ms-request-charge": "1"}
        self.send(answer.status, sent, answer.headers | more)

    do_GET = do_POST = do_PUT = do_DELETE = _answer


class CosmosServer(HttpStandIn):
    """See above."""

    handler = _Handler

    def __init__(self) -> None:
        super().__init__()
        self.key = KEY
        self.slow = 0.0
        self.counts: Counter[str] = Counter()
        self.requests: list[dict[str, str]] = []
        """Headers of the feed's requests."""
        self.databases: dict[str, dict[str, StoredContainer]] = {}
        self._made = 0
        self._refusals: dict[str, list[ScriptedRefusal]] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        # The SDK (4.17) keeps ranges by address, for all clients of a process that are not closed:
        # of another server that had this port, they send it in circles (RecursionError).
        kept: dict[str, dict[str, Any]]
        kept = getattr(routing_map_provider, "_shared_routing_map_cache", {})
        for address in (self.url, f"{self.url}/"):
            kept.get(address, {}).clear()
        return self

    def container(self, database: str, name: str, *paths: str, **given: Any) -> StoredContainer:
        """A new container; one of this name is replaced, under another resource id."""
        self._made += 1
        made = StoredContainer(name, paths or ("/pk",), self._made, **given)
        self.databases.setdefault(database, {})[name] = made
        return made

    def fail(self, what: str, status: int, sub_status: int = 0, **given: Any) -> None:
        """The next requests (`feed`, `pkranges`, `container`, `item`, `account`) are refused."""
        self._refusals.setdefault(what, []).append(ScriptedRefusal(status, sub_status, **given))

    def heal(self) -> None:
        """Forgets what was to be refused."""
        self._refusals.clear()

    def answer(self, verb: str, path: str, headers: dict[str, str], body: Any) -> CosmosReply:
        """One request."""
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/") if part]
        what = _what(parts, headers)
        self.counts[what] += 1
        waiting = self._refusals.get(what)
        if waiting:
            refusal = waiting[0]
            refusal.times -= 1
            if refusal.times <= 0:
                waiting.pop(0)
            return _refused(refusal.status, refusal.message, refusal.sub_status, refusal.headers)
        if not self._is_signed(verb, parts, headers):
            return _refused(401, "The input authorization token can't serve the request.")
        if what == "account":
            return CosmosReply(200, self._account())
        if what == "feed":
            self.requests.append(headers)
            time.sleep(self.slow)
        return self._resource(verb, parts, headers, body)

    def _is_signed(self, verb: str, parts: list[str], headers: dict[str, str]) -> bool:
        """By the master key: "Access control on Azure Cosmos DB resources"."""
        kind = next((part for part in reversed(parts[::2]) if part in _TYPES), "")
        link = "/".join(parts if len(parts) % 2 == 0 else parts[:-1])
        text = f"{verb.lower()}\n{kind}\n{link}\n{headers.get('x-ms-date', '').lower()}\n\n"
        digest = hmac.new(base64.b64decode(self.key), text.encode(), hashlib.sha256).digest()
        given = unquote(headers.get("authorization", "")).partition("sig=")[2]
        return hmac.compare_digest(base64.b64encode(digest).decode(), given.strip())

    def _account(self) -> dict[str, Any]:
        here = [{"name": "here", "databaseAccountEndpoint": self.url + "/"}]
        return {
            "_self": "",
            "id": "penstock",
            "_rid": "penstock.documents.azure.com",
            "writableLocations": here,
            "readableLocations": here,
            "enableMultipleWriteLocations": False,
            "userConsistencyPolicy": {"defaultConsistencyLevel": "Session"},
            "queryEngineConfiguration": "{}",
        }

    def _resource(
        self, verb: str, parts: list[str], headers: dict[str, str], body: Any
    ) -> CosmosReply:
        if parts == ["dbs"]:
            self.databases.setdefault(body["id"], {})
            return CosmosReply(201, {"id": body["id"], "_rid": "AAAAAA=="})
        containers = self.databases.get(parts[1])
        if containers is None:
            return _refused(404, "Resource Not Found", 1003)
        if verb == "DELETE" and len(parts) in (2, 4):
            gone = (self.databases if len(parts) == 2 else containers).pop(parts[-1], None)
            return _refused(404, "Resource Not Found") if gone is None else CosmosReply(204)
        if len(parts) == 2:
            return CosmosReply(200, {"id": parts[1], "_rid": "AAAAAA==", "_self": "dbs/AAAAAA==/"})
        if len(parts) == 3:
            return self._created(parts[1], body)
        found = containers.get(parts[3])
        if found is None:
            return _refused(404, "Resource Not Found", 1003)
        return _in_container(found, verb, parts, headers, body)

    def _created(self, database: str, body: Any) -> CosmosReply:
        if body["id"] in self.databases[database]:
            return _refused(409, "Resource with specified id or name already exists.")
        made = self.container(database, body["id"], *body["partitionKey"]["paths"])
        return CosmosReply(201, made.properties)


def _in_container(
    found: StoredContainer, verb: str, parts: list[str], headers: dict[str, str], body: Any
) -> CosmosReply:
    if len(parts) == 4:
        return CosmosReply(200, found.properties)
    if headers.get("x-ms-cosmos-intended-collection-rid", found.rid) != found.rid:
        return _refused(400, "The requested resource id is of another collection", 1024)
    if parts[4] == "pkranges":
        return _ranges(found, headers)
    return _feed(found, headers) if "a-im" in headers else _item(found, verb, parts, headers, body)


def _what(parts: list[str], headers: dict[str, str]) -> str:
    if not parts:
        return "account"
    if parts[-1] == "pkranges":
        return "pkranges"
    if len(parts) <= 4:
        return "container"
    return "feed" if "a-im" in headers else "item"


def _refused(
    status: int, message: str, sub_status: int = 0, headers: dict[str, str] | None = None
) -> CosmosReply:
    given = {"x-ms-substatus": str(sub_status)} if sub_status else {}
    return CosmosReply(status, {"code": str(status), "message": message}, given | (headers or {}))


def _ranges(found: StoredContainer, headers: dict[str, str]) -> CosmosReply:
    with found.lock:
        etag = f'"{found.generation}"'
        known = headers.get("if-none-match", "")
        if known == etag:
            return CosmosReply(304, None, {"etag": etag})
        after = int(known.strip('"')) if known.strip('"').isdigit() else 0
        listed = [
            {
                "id": each.id,
                "_rid": found.rid,
                "minInclusive": each.min,
                "maxExclusive": each.max,
                "parents": list(each.parents),
                "status": "online",
            }
            for each in found.ranges
            if each.born > after
        ]
    body = {"_rid": found.rid, "PartitionKeyRanges": listed, "_count": len(listed)}
    return CosmosReply(200, body, {"etag": etag})


def _feed(found: StoredContainer, headers: dict[str, str]) -> CosmosReply:
    place = found.find(headers.get("x-ms-documentdb-partitionkeyrangeid", ""))
    if place is None:
        return _refused(410, "The requested resource is no longer available at the server.", 1002)
    every = headers["a-im"] == "Full-Fidelity Feed"
    match = headers.get("if-none-match", "").strip('"')
    since = headers.get("if-modified-since")
    after = None if match == "*" else int(match or 0)
    if every and after is not None and after < found.retained:
        return _refused(400, "The continuation is older than the change feed's retention.")
    page = found.feed(
        place,
        after=after,
        since=parsedate_to_datetime(since).timestamp() if since else None,
        keys=(headers.get("x-ms-start-epk", place.min), headers.get("x-ms-end-epk", place.max)),
        most=int(headers.get("x-ms-max-item-count", 100)),
        every=every,
    )
    sent = {
        "etag": page.etag,
        "x-ms-session-token": f"{place.id}:-1#{page.lsn}",
        "lsn": str(page.lsn),
    }
    if not page.documents:
        return CosmosReply(304, None, sent)
    body = {"_rid": found.rid, "Documents": page.documents, "_count": len(page.documents)}
    return CosmosReply(200, body, sent | {"x-ms-item-count": str(len(page.documents))})


def _item(
    found: StoredContainer, verb: str, parts: list[str], headers: dict[str, str], body: Any
) -> CosmosReply:
    if len(parts) == 5 and verb == "GET":
        with found.lock:
            documents = list(found.items.values())
        return CosmosReply(
            200, {"_rid": found.rid, "Documents": documents, "_count": len(documents)}
        )
    etag = headers.get("if-match", "")
    try:
        if len(parts) == 5:
            upserts = headers.get("x-ms-documentdb-is-upsert", "").lower() == "true"
            stored = found.put(body, how="upsert" if upserts else "create", etag=etag)
            return CosmosReply(201, stored, {"etag": stored["_etag"]})
        epk = found.epk(json.loads(headers["x-ms-documentdb-partitionkey"]))
        known = found.items.get((epk, parts[5]))
        if known is None:
            return _refused(404, "Entity with the specified id does not exist in the system.")
        if verb == "GET":
            return CosmosReply(200, known, {"etag": known["_etag"]})
        how, item = ("delete", known) if verb == "DELETE" else ("replace", body)
        stored = found.put(item, how=how, etag=etag)
    except ItemConflict as conflict:
        return _refused(conflict.status, str(conflict))
    return (
        CosmosReply(204)
        if verb == "DELETE"
        else CosmosReply(200, stored, {"etag": stored["_etag"]})
    )
