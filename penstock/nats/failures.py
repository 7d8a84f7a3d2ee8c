"""What a server's refusal, or the loss of a connection, means for us."""

from penstock.model.errors import PenstockError, SettingsError, Unavailable

_REFUSED = ("authorization violation", "authentication", "user authentication", "account")


def error_of(text: str, address: str) -> PenstockError:
    """What an -ERR of the server means for us."""
    lower = text.lower()
    if lower.startswith("permissions violation"):
        return SettingsError(
            f"{address} denies what penstock needs: {text}",
            hint="allow it to the user; docs/how-to/nats.md and snapshots.md list all",
        )
    # A timeout: the server got our credentials too late, from a busy machine or a slow network.
    if any(lower.startswith(word) for word in _REFUSED) and not lower.endswith("timeout"):
        return SettingsError(
            f"{address} refuses our credentials: {text}",
            hint="check user and password (or token, nkey, credentials)",
        )
    return Unavailable(f"{address} ended the connection: {text}")


def reason_of(error: BaseException) -> str:
    """Its text without its class."""
    if isinstance(error, PenstockError):
        return error.message
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
