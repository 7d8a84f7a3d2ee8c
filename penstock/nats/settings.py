"""How to reach a NATS server: what every user of the client (sink, leases, tail) shares."""

from pydantic import Field, model_validator

from penstock.model.settings import Duration, Secret, Settings

_TOKENS = r"^[^\s.*>]+(\.[^\s.*>]+)*$"  # of subjects
_API = "$JS.API"


class NatsSettings(Settings):
    """Addresses, credentials and TLS of a NATS account."""

    url: Secret
    """`nats://[user:password@|token@]host[:4222]`, `tls://...`; several servers with commas."""
    user: str | None = None
    """A user's name, with `password`."""
    password: Secret | None = None
    """The user's password."""
    token: Secret | None = None
    """A token, in place of a user."""
    nkey: Secret | None = None
    """The seed of a user's key, `SU...`."""
    credentials: str | None = None
    """The path of a .creds file: a JWT and its seed."""
    tls_ca: str | None = None
    """The path of the authorities' certificates, PEM; default: the system's."""
    tls_cert: str | None = None
    """The path of the client's certificate, if the server asks for one."""
    tls_key: str | None = None
    """The path of the key of `tls_cert`."""
    timeout: Duration = Field(default=5.0, gt=0)
    """Seconds without an answer, after which the server counts as gone."""
    domain: str | None = Field(default=None, pattern=r"^[^\s.*>]+$")
    """The JetStream domain, if it is not the server's: across a leaf node."""
    api_prefix: str | None = Field(default=None, pattern=_TOKENS)
    """In place of `$JS.API`: the prefix under which the account imports another account's
    JetStream."""
    inbox_prefix: str = Field(default="_INBOX", pattern=_TOKENS)
    """The first part of the subjects of answers, if the user may subscribe to no other."""

    @model_validator(mode="after")
    def _one_api(self) -> "NatsSettings":
        if self.domain and self.api_prefix:
            raise ValueError("domain or api_prefix: a domain is the prefix $JS.DOMAIN.API")
        return self

    @property
    def api(self) -> str:
        """What subjects of JetStream's API begin with."""
        return self.api_prefix or (f"$JS.{self.domain}.API" if self.domain else _API)

    @property
    def is_elsewhere(self) -> bool:
        """Whether JetStream is that of another account or domain."""
        return self.api != _API
