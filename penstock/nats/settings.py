"""How to reach a NATS server: what every user of the client (sink, leases, tail) shares."""

from pydantic import Field

from penstock.model.settings import Duration, Secret, Settings


class NatsSettings(Settings):
    """Addresses, credentials and TLS of a NATS account."""

    url: Secret  # nats://[user:password@|token@]host[:4222], tls://...; several, by commas
    user: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    nkey: Secret | None = None  # the seed, SU...
    credentials: str | None = None  # path of a .creds file: a JWT and its seed
    tls_ca: str | None = None  # path of PEM; the system's authorities without it
    tls_cert: str | None = None
    tls_key: str | None = None
    # Seconds without an answer until the server counts as gone.
    timeout: Duration = Field(default=5, gt=0)
