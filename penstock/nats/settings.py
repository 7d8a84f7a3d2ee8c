"""How to reach a NATS server: what every user of the client (sink, leases, tail) shares."""

from pydantic import Field

from penstock.model.settings import Duration, Secret, Settings


class NatsSettings(Settings):
    """Addresses, credentials and TLS of a NATS account."""

    url: Secret
    """`nats://[user:password@|token@]host[:4222]`, `tls://...`; several, by commas."""
    user: str | None = None
    """A user's name, with `password`."""
    password: Secret | None = None
    """The user's password."""
    token: Secret | None = None
    """In place of a user."""
    nkey: Secret | None = None
    """The seed of a user's key, `SU...`."""
    credentials: str | None = None
    """The path of a .creds file: a JWT and its seed."""
    tls_ca: str | None = None
    """The path of the authorities' certificates, PEM; default: the system's."""
    tls_cert: str | None = None
    """The path of our certificate, where the server asks for one."""
    tls_key: str | None = None
    """The path of its key."""
    timeout: Duration = Field(default=5.0, gt=0)
    """Seconds without an answer until the server counts as gone."""
