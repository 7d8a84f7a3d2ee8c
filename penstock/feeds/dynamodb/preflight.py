"""Preflight of a DynamoDB table: whether its stream is there, can be read, and what it carries."""

from collections.abc import Iterator

from botocore.exceptions import ClientError

from penstock.feeds.dynamodb.client import StreamsClient, client_of
from penstock.feeds.dynamodb.failures import failure
from penstock.feeds.dynamodb.lineage import ShardTree
from penstock.feeds.dynamodb.settings import DynamodbSettings
from penstock.model.finding import Finding, failed, finding

_LACKS = {
    "KEYS_ONLY": "only the keys of an item: `before` and `after` are null",
    "NEW_IMAGE": "no old image: `before` is null",
    "OLD_IMAGE": "no new image: `after` is null",
}


_UPDATE = "aws dynamodb update-table --table-name {} --stream-specification StreamEnabled={}"


def how_to_enable(table: str) -> str:
    return _UPDATE.format(table, "true,StreamViewType=NEW_AND_OLD_IMAGES")


def _how_to_alter(table: str) -> str:
    """The commands that give it both images; what is written in between is in no stream."""
    return _UPDATE.format(table, "false") + " && " + how_to_enable(table)


def findings(settings: DynamodbSettings) -> Iterator[Finding]:
    """Every finding. Raises what asking the service does."""
    client = client_of(settings)
    table = settings.table_name
    arns = [settings.stream] if settings.stream else client.streams(table)
    stream = client.describe(arns[-1]) if arns else None
    if stream is None and settings.stream:
        text = f"the stream of {table} is not there any more"
        yield finding(
            "error", "stream", text, "write the ARN of a newer one, or `table`",
            code="dynamodb.stream",
        )  # fmt: skip
        return
    if stream is None:
        text = f"{table} has no stream, or there is no such table"
        yield finding("error", "stream", text, how_to_enable(table), code="dynamodb.stream")
        return
    if stream.status not in ("ENABLED", "ENABLING"):
        text = f"the stream of {table} is {stream.status}: changes written now are lost"
        yield finding("error", "stream", text, how_to_enable(table), code="dynamodb.stream")
    else:
        yield finding("ok", "stream", f"{table} has a stream, which is {stream.status}")
    if stream.view in _LACKS:
        text = f"the view type {stream.view} carries {_LACKS[stream.view]}"
        yield finding("warning", "view type", text, _how_to_alter(table), code="dynamodb.view-type")
    else:
        yield finding("ok", "view type", f"the view type is {stream.view}")
    tree = ShardTree(stream.shards)
    if tree.open_leaves or stream.status == "ENABLED":
        yield from _reading(client, arns[-1], tree)


def _reading(client: StreamsClient, arn: str, tree: ShardTree) -> Iterator[Finding]:
    leaves = tree.open_leaves
    if not leaves:
        yield finding(
            "warning", "shards", "the stream has no open shard", "try again soon",
            code="dynamodb.shards",
        )  # fmt: skip
        return
    try:
        client.records(client.iterator(arn, leaves[-1].id, "LATEST"))
    except ClientError as error:
        found = failure(error, "reading a shard")
        yield failed("shards", found)
    else:
        count = len(tree.shards)
        text = f"shards can be read: {count} in all, {len(leaves)} of them open"
        yield finding("ok", "shards", text)
