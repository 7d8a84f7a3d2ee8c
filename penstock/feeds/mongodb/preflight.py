"""Preflight of a MongoDB source: what would keep it from running, or make it lose data.

Looks and changes nothing. Each finding says how to mend it, in commands of mongosh.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime

from penstock.feeds.mongodb import cluster
from penstock.feeds.mongodb.connect import Client, address
from penstock.feeds.mongodb.failures import is_timeout, translating
from penstock.feeds.mongodb.settings import ALL, MongoSettings
from penstock.feeds.mongodb.stream import UNANSWERED, ChangeStream, Limits
from penstock.model.errors import PenstockError, PositionLost, SettingsError
from penstock.model.finding import Finding, failed, finding
from penstock.model.position import Mark

_OLDEST, _NEWEST = 6, 8
_SHORT = 24 * 3600  # seconds of oplog that outlast a night


def findings(settings: MongoSettings) -> Iterator[Finding]:
    """Raises Unavailable, SettingsError where the server can't be asked."""
    with cluster.asking(settings) as client:
        yield from _server(client, settings)
        yield from _identity(client)
        yield from _oplog(client)
    yield from _stream(settings)
    yield from _start(settings)
    yield from _collections(settings)
    yield from _tenant(settings)


def _failed(subject: str, error: PenstockError, remedy: str = "") -> Finding:
    found = failed(subject, error)
    return replace(found, remedy=remedy) if remedy else found


def _server(client: Client, settings: MongoSettings) -> Iterator[Finding]:
    version = cluster.asked(client, "buildInfo")["version"]
    major, message = int(version.split(".")[0]), f"{address(settings)} is MongoDB {version}"
    if major < _OLDEST:
        yield finding(
            "error", "server", message, f"upgrade it to {_OLDEST}.0 or later",
            code="mongodb.server-old",
        )  # fmt: skip
    elif major > _NEWEST:
        message += ", newer than what penstock was tested with"
        yield finding("warning", "server", message, code="mongodb.server")
    else:
        yield finding("ok", "server", message)
    hello = cluster.hello_of(client)
    if cluster.is_sharded(hello):
        yield finding("ok", "topology", "a sharded cluster, through mongos")
    elif "setName" in hello:
        yield finding("ok", "topology", f"the replica set {hello['setName']}")
    else:
        yield finding(
            "error", "topology", "a standalone server: change streams need a replica set",
            "start mongod with --replSet rs0, then in mongosh: rs.initiate()",
            code="mongodb.topology",
        )  # fmt: skip


def _identity(client: Client) -> Iterator[Finding]:
    """Whether a restored or other cluster can be told from this one."""
    hello = cluster.hello_of(client)
    if cluster.read_id(client, hello) is not None:
        return
    database, _, collection = cluster.id_namespace(hello).partition(".")
    yield finding(
        "warning",
        "identity",
        f"the role may not read {database}.{collection}, which has the cluster's id:"
        " another cluster of the same name is not recognized while the stream is idle",
        f'db.getSiblingDB("admin").grantPrivilegesToRole(ROLE, [{{resource: {{db:'
        f' "{database}", collection: "{collection}"}}, actions: ["find"]}}])',
        code="mongodb.identity",
    )


def _oplog(client: Client) -> Iterator[Finding]:
    """How long we may be away. Members of a replica set have an oplog that can be read."""
    if "setName" not in cluster.hello_of(client):
        return
    try:
        with translating("reading the oplog"):
            oldest, newest = cluster.oldest_in(client), cluster.operation_time(client)
    except SettingsError:
        yield finding(
            "warning", "oplog",
            "how far it reaches back is unknown, and `start: beginning` cannot be used",
            'db.grantRolesToUser(USER, [{role: "read", db: "local"}])', code="mongodb.oplog",
        )  # fmt: skip
        return
    seconds = (newest >> 32) - (oldest >> 32)
    time = f"{seconds / 3600:.1f} hours" if seconds >= 3600 else f"{seconds} seconds"
    message = f"it reaches back {time}: a longer stop of penstock loses changes"
    if seconds >= _SHORT:
        yield finding("ok", "oplog", message)
    else:
        yield finding(
            "warning", "oplog", message,
            "on every member: db.adminCommand({replSetResizeOplog: 1, minRetentionHours: 48});"
            " in Atlas the minimum oplog window; or it is new", code="mongodb.oplog",
        )  # fmt: skip


def _stream(settings: MongoSettings) -> Iterator[Finding]:
    """Opens the change stream, which is the privilege in question, and closes it."""
    try:
        _opened(settings, None).close()
    except PenstockError as error:
        yield _failed("change stream", error, _role(settings, error))
        return
    scope = "all databases" if settings.database == ALL else f"the database {settings.database}"
    yield finding("ok", "change stream", f"of {scope} can be opened")


def _start(settings: MongoSettings) -> Iterator[Finding]:
    """Whether a first start could begin where the settings say."""
    at = settings.begins_at
    if not isinstance(at, datetime):
        return
    try:
        with closing(_opened(settings, {"time": [int(at.timestamp()), 0]})) as stream:
            known = stream.accepts(stream.more)
    except PositionLost as error:
        yield finding(
            "warning", "start",
            f"the oplog does not reach back to {settings.start}: a first start finds lost"
            f" history ({error.message})", "begin later, or now; a saved position is not affected",
            code="mongodb.start",
        )  # fmt: skip
    except PenstockError as error:
        if not is_timeout(error):
            yield _failed("start", error)
    else:
        message = f"the oplog has {settings.start}"
        if known:
            yield finding("ok", "start", message)
        else:
            yield finding(
                "warning", "start", f"whether {message} is not known: {UNANSWERED}",
                code="mongodb.start",
            )  # fmt: skip


def _opened(settings: MongoSettings, mark: Mark | None) -> ChangeStream:
    return ChangeStream(settings, mark, Limits(settings.silence, 1))


def _role(settings: MongoSettings, error: PenstockError) -> str:
    if not isinstance(error, SettingsError) or getattr(error.__cause__, "code", None) != 13:
        return ""
    database = "" if settings.database == ALL else settings.database
    return (
        'db.getSiblingDB("admin").createRole({role: "penstock", roles: [], privileges: [{resource:'
        f' {{db: "{database}", collection: ""}}, actions: ["find", "changeStream",'
        ' "listCollections"]}]}), and grant it to the user'
    )


def _collections(settings: MongoSettings) -> Iterator[Finding]:
    try:
        found = cluster.collections(settings)
        kept = _with_images(settings, {pair[0] for pair in found})
    except PenstockError as error:
        yield _failed("collections", error, _role(settings, error))
        return
    names = {".".join(each) if settings.database == ALL else each[1] for each in found}
    yield finding("ok", "collections", f"{len(names)} are followed")
    for missing in sorted(set(settings.collections) - names):
        yield finding(
            "warning", "collections",
            f"{missing} does not exist yet, or is a view or a time series, which have no changes",
            "correct `collections`, or create it", code="mongodb.collections",
        )  # fmt: skip
    for key, wanted in (("before", settings.before), ("full_document", settings.full_document)):
        without = [each for each in found if each not in kept]
        if wanted in ("required", "when_available") and without:
            yield _without_images(key, wanted, without)


def _tenant(settings: MongoSettings) -> Iterator[Finding]:
    """Of an update without images only the document key is known."""
    if settings.tenant.startswith("field:") and settings.full_document == settings.before == "off":
        yield finding(
            "warning", "tenant",
            f"{settings.tenant} is null for updates without a document, unless it is part"
            " of the _id or of the shard key",
            "set full_document: update_lookup, or before: when_available", code="mongodb.tenant",
        )  # fmt: skip


def _with_images(settings: MongoSettings, databases: set[str]) -> set[tuple[str, str]]:
    with cluster.asking(settings) as client:
        return {
            (database, each["name"])
            for database in databases
            for each in client[database].list_collections()
            if each.get("options", {}).get("changeStreamPreAndPostImages", {}).get("enabled")
        }


def _without_images(key: str, wanted: str, without: list[tuple[str, str]]) -> Finding:
    database, name = without[0]
    listed = ", ".join(".".join(each) for each in without[:5])
    ends = "ends the change stream" if wanted == "required" else "has none"
    return finding(
        "error" if wanted == "required" else "warning", key,
        f"{len(without)} collections keep no images: a change of them {ends}: {listed}",
        f'for each: db.getSiblingDB("{database}").runCommand({{collMod: "{name}",'
        " changeStreamPreAndPostImages: {enabled: true}})", code="mongodb.images-missing",
    )  # fmt: skip
