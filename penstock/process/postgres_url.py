"""A PostgreSQL URL as settings have it, for a source and a destination.

Checked before libpq sees it, whose messages repeat parts of a URL that it cannot read, perhaps the
password.
"""

import re
from typing import Annotated

from psycopg import Error
from psycopg.conninfo import conninfo_to_dict
from pydantic import AfterValidator

from penstock.model.settings import Secret

_SCHEMES = ("postgresql://", "postgres://")
# Where libpq finds a secret: before the first @, and among the parameters.
_PASSWORD = re.compile(
    r"(^\w+://[^@/:]*:(?=[^@/]*@)"
    r"|[?&](?:(?:ssl)?password|oauth_client_secret|scram_(?:client|server)_key)=)"
    r"((?<=:)[^@/]*|(?<==)[^&]*)"
)
_MASK = "***"


def _checked(value: Secret) -> Secret:
    text = value.get_secret_value()
    try:
        fine = not text or (text.startswith(_SCHEMES) and bool(conninfo_to_dict(text)))
    except Error:
        fine = False
    if not fine:
        raise ValueError("not a URL of the form postgresql://user:password@host:port/database")
    return value


# Empty only where that is the default.
PostgresUrl = Annotated[Secret, AfterValidator(_checked)]


def masked(url: str) -> str:
    """The URL with its passwords as `***`."""
    return _PASSWORD.sub(rf"\g<1>{_MASK}", url)


def is_masked(url: str) -> bool:
    """Whether a password of the URL is `***`."""
    return any(match[2] == _MASK for match in _PASSWORD.finditer(url))


def is_same_login(url: str, other: str) -> bool:
    """Whether two URLs name one user of one server, who may be given the same password."""
    one, another = conninfo_to_dict(url), conninfo_to_dict(other)
    return all(one.get(key) == another.get(key) for key in ("host", "hostaddr", "port", "user"))


def unmasked(url: str, known: str) -> str:
    """The URL with the passwords that it has as `***` taken from another URL."""
    passwords = {_place(match): match[2] for match in _PASSWORD.finditer(known)}
    return _PASSWORD.sub(
        lambda match: (
            match[1] + (passwords.get(_place(match), _MASK) if match[2] == _MASK else match[2])
        ),
        url,
    )


def _place(password: re.Match[str]) -> str:
    return password[1].lstrip("?&") if password[1].endswith("=") else ""


def server_name(backend: str, sid: str) -> str:
    """What penstock calls its slot and publication at a source."""
    parts = [each for each in ("penstock", backend, sid) if each]
    return re.sub(r"[^a-z0-9_]", "_", "_".join(parts).lower())[:63]
