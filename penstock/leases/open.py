"""A store by its URL, as the pipeline file writes it."""

from penstock.errors import SettingsError
from penstock.leases import LeaseStore
from penstock.leases.memory import MemoryStore
from penstock.leases.nats import NatsStore
from penstock.leases.sqlite import SqliteStore

__all__ = ["open_store"]

_KNOWN = (
    "known: sqlite:///relative.db, sqlite:////absolute.db, postgresql://..., "
    "nats://host:4222/BUCKET, etcd://host:2379/PREFIX, mongodb://host:27017/DATABASE, memory:"
)


def open_store(url: str) -> LeaseStore:
    """The store that `url` names; does no I/O. Raises SettingsError for an unknown scheme.

    Each call with `memory:` gives a new, empty store.
    """
    scheme, colon, rest = url.partition(":")
    if scheme == "memory" and colon and rest in ("", "//"):
        return MemoryStore()
    if scheme == "sqlite" and rest.startswith("///") and len(rest) > len("///"):
        return SqliteStore(rest.removeprefix("///"))
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        # Late: psycopg is an extra, and the other stores do without.
        from penstock.leases.postgres import PostgresStore

        return PostgresStore(url)
    if scheme in ("nats", "tls") and rest.startswith("//"):
        return NatsStore(url)
    if scheme in ("etcd", "etcds") and rest.startswith("//"):
        from penstock.leases.etcd import EtcdStore

        return EtcdStore(url)
    if scheme in ("mongodb", "mongodb+srv") and rest.startswith("//"):
        from penstock.leases.mongodb import MongoStore

        return MongoStore(url)
    # The rest of the URL may hold a password.
    raise SettingsError(f"no store for positions URL {scheme + colon!r}", hint=_KNOWN)
