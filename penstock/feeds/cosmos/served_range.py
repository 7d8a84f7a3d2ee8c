"""A key range at the service, and what it can have lost after a place, as gaps."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.feeds import HistoryLost
from penstock.feeds.cosmos.client import ContainerIdentity, CosmosContainer
from penstock.feeds.cosmos.failures import ContainerMissing, Refused, failure
from penstock.feeds.cosmos.ranges import KeyRange
from penstock.feeds.cosmos.settings import CosmosSettings
from penstock.feeds.shared import lost
from penstock.model.errors import PenstockError, Unavailable
from penstock.model.position import Place

# For people; documented in docs/reference/operations.md.
CAUSES: Mapping[str, str] = {
    "container_gone": "the container {container} of {partition} is not there any more",
    "container_replaced": "{container} was deleted and made again: its changes begin anew",
    "retention": "changes of {partition} after {after} are older than the service keeps them",
}
_HINT = "on_gap: continue goes on with what there is; load the container anew to repair the rest"
# Its LSNs begin again, so that nothing can go on under the same names, whatever the policy is.
_REPLACED = "give the backend another `name`: places of another container cannot be compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRange:
    """One range; `passed` are the causes of gaps that it is followed despite."""

    settings: CosmosSettings
    client: CosmosContainer
    key_range: KeyRange
    passed: frozenset[str]

    def lost(self, cause: str, after: Place | None, said: str = "") -> HistoryLost:
        """The error for a gap after a place; `said` is what the service said."""
        settings = self.settings
        detail = CAUSES[cause].format(
            container=settings.path, partition=self.key_range.name, after=after or "its beginning"
        )
        detail += f" ({said})" if said else ""
        if cause == "container_replaced":
            return lost(cause, after, detail, policy="fail", hint=_REPLACED)
        return lost(cause, after, detail, policy=settings.on_gap, hint=_HINT)

    def error_of(
        self, refused: Refused, after: Place | None, identity: ContainerIdentity
    ) -> PenstockError:
        """What a refusal means for the changes of this container after a place."""
        cause, settings = "", self.settings
        subject = f"reading {self.key_range.name} of {settings.path}"
        if refused.status == 404 or refused.is_of_another_container:
            cause = self._cause_of_missing(identity.rid)
            if not cause:
                return Unavailable(f"{subject}: {refused.message}", hint="it is tried again")
        elif refused.status == 400 and settings.every and not refused.is_too_large:
            # "If you attempt to process a change feed after more than the retention window an error
            # (Status Code 400) will be returned": .NET's ChangeFeedMode. Other tokens are refused
            # by it, too, where the mode or the account's backup is off.
            now = self._refusal_of_now()
            cause, refused = ("retention", refused) if now is None else ("", now)
        if cause == "container_gone" and cause in self.passed:
            return Unavailable(
                f"the container {settings.path} is not there yet", code="container-missing"
            )
        if cause and cause not in self.passed:
            return self.lost(cause, after, refused.message)
        return failure(refused.status, refused.sub_status, refused.message, subject)

    def _refusal_of_now(self) -> Refused | None:
        try:
            self.client.page(self.key_range, None, 1)
        except Refused as refused:
            return refused
        return None

    def _cause_of_missing(self, rid: str) -> str:
        """What the container itself says; "" where it is there, and the same."""
        try:
            found = self.client.identity(again=True).rid
        except ContainerMissing:
            return "container_gone"
        return "" if found == rid else "container_replaced"
