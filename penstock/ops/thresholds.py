"""When a pipeline stops being healthy, and where that is sent: settings of the pipeline file, which
imports nothing else of this room.
"""

from typing import Literal, get_args
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from penstock.model.settings import Duration, Secret, Settings, Size

NotificationKind = Literal["health", "gap", "dead-letter", "at-risk", "snapshot-stuck"]
MessageFormat = Literal["json", "slack", "teams"]

# The ends of hosts whose webhooks take no other format.
_HOSTS: dict[str, MessageFormat] = {
    "hooks.slack.com": "slack", "hooks.slack-gov.com": "slack", ".logic.azure.com": "teams",
    ".webhook.office.com": "teams", ".api.powerplatform.com": "teams",
}  # fmt: skip


class Thresholds(Settings):
    """When things count as wrong; exactly at a threshold counts as above it."""

    stalled_after: Duration = Field(default=30.0, gt=0)
    """A pipeline is unhealthy if it is behind and does not move, or is disconnected, for more
    seconds than this."""
    lag_limit: Size = Field(default=64 * 2**20, ge=0)
    """With more bytes of unconfirmed log than this, a pipeline is "behind"."""
    lag_age: Duration = Field(default=300.0, gt=0)
    """With a change in flight that is older than so many seconds, a pipeline is also behind,
    whatever the source counts."""
    at_risk: float = Field(default=0.25, ge=0, lt=1)
    """Changes are at risk if less than this share of the source's history is left before the stored
    position."""

    @property
    def bounds(self) -> dict[str, float]:
        """What the board must know to tell since when a number is above its bound."""
        return {"lag_bytes": self.lag_limit - 1}


class Webhook(Settings):
    """Where notifications are posted to."""

    url: Secret
    """Anyone who knows the URL can post: the whole URL is a secret."""
    format: MessageFormat | None = None
    """The format of posts; default: by the host of the URL, else json."""
    when: tuple[NotificationKind, ...] = get_args(NotificationKind)
    """The kinds of notifications for this webhook."""

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: Secret) -> Secret:
        """No message repeats any of it."""
        text = url.get_secret_value()
        try:
            found = urlsplit(text)
            is_url = found.scheme in ("http", "https") and found.hostname and found.port != 0
        except ValueError:
            is_url = False
        if not is_url or not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError("is not a URL of http or https")
        if "@" in found.netloc:
            raise ValueError("must not have a user or a password")
        return url

    @field_validator("when")
    @classmethod
    def _has_a_kind(cls, when: tuple[NotificationKind, ...]) -> tuple[NotificationKind, ...]:
        if not when:
            raise ValueError("names no kind: leave it out for all of them")
        return when

    @property
    def message_format(self) -> MessageFormat:
        host = urlsplit(self.url.get_secret_value()).hostname or ""
        found = [form for end, form in _HOSTS.items() if host.endswith(end)]
        return self.format or (found[0] if found else "json")
