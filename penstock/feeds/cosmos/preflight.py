"""Preflight of a container: whether it is there and its change feed can be read in the mode."""

from collections.abc import Iterator

from penstock.feeds.cosmos.client import CosmosContainer, container_of
from penstock.feeds.cosmos.failures import Refused, translating
from penstock.feeds.cosmos.settings import CosmosSettings
from penstock.model.finding import Finding, finding

_BACKUP = (
    "give the account continuous backup and enable the feature AllVersionsAndDeletesChangeFeed:"
    " `az cosmosdb update --backup-policy-type Continuous`, then Features in the portal"
)


def findings(settings: CosmosSettings) -> Iterator[Finding]:
    """Every finding. Raises what asking the service does."""
    client = container_of(settings)
    name = f"{settings.database}/{settings.container}"
    identity = client.identity(again=True)
    keys = ", ".join(identity.paths)
    yield finding("ok", "container", f"{name} is there, partitioned by {keys}")
    ranges = client.ranges()
    yield finding("ok", "ranges", f"it has {len(ranges)} physical partition(s)")
    yield _reading(settings, client)
    if not settings.every:
        text = "latest_version shows no deletes and no versions between two reads"
        yield finding("ok", "mode", text)


def _reading(settings: CosmosSettings, client: CosmosContainer) -> Finding:
    try:
        with translating("reading its change feed", refusals=False):
            client.page(client.ranges()[0], None, 1)
    except Refused as refused:
        if refused.status == 400 and settings.every:
            text = f"the mode {settings.mode} is refused: {refused.message}"
            return finding("error", "change feed", text, _BACKUP)
        with translating("reading its change feed"):
            raise
    return finding("ok", "change feed", f"it can be read in the mode {settings.mode}")
