"""A store by its URL, as the pipeline file writes it."""

from collections.abc import Callable

from penstock.leases import LeaseStore
from penstock.model.errors import SettingsError
from penstock.process.plugins import known, plugin


def open_store(url: str) -> LeaseStore:
    """The store that `url` names; does no I/O. Raises SettingsError, without the URL's password.

    The URL's scheme is the name of an entry point of the group `penstock.stores`, whose value makes
    a store of a URL. Each call with `memory:` gives a new, empty store.
    """
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise SettingsError("`positions` is no URL", hint=f"known: {', '.join(known('stores'))}")
    make: Callable[[str], LeaseStore] = plugin("stores", scheme)
    return make(url)
