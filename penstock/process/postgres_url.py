"""A PostgreSQL URL as settings have it, for a source and a destination.

Checked before libpq sees it, whose messages repeat parts of a URL that it cannot read, perhaps the
password.
"""

import re
from typing import Annotated

from psycopg import Error
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo
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


# User and password, as libpq finds them, and the rest.
_LOGIN = re.compile(r"(\w+://(?:[^@/]*@)?)(.*)", re.DOTALL)
# penstock sets it for the connection that needs it; any other one would not work with it.
_REPLICATION = re.compile(r"(?<=[?&])replication=[^&]*(?:&|$)")
# What libpq reads as late as it connects.
_CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": (
        "any", "read-write", "read-only", "primary", "standby", "prefer-standby",
    ),
}  # fmt: skip


def _checked(value: Secret) -> Secret:
    text = value.get_secret_value()
    if (parts := _LOGIN.fullmatch(text)) and (rest := _REPLICATION.sub("", parts[2])) != parts[2]:
        text = parts[1] + rest.rstrip("?&")
    if text:
        _verify(text)
    return Secret(text)


def _verify(text: str) -> None:
    """Raises ValueError, which repeats no part of a URL that may be of a password."""
    try:
        given = conninfo_to_dict(text) if text.startswith(_SCHEMES) else {}
    except Error:
        raise ValueError(_unknown(text) or _FORM) from None
    if not given:
        raise ValueError(_FORM)
    for name, choices in _CHOICES.items():
        if given.get(name, choices[0]) not in choices:
            raise ValueError(f"libpq has no such {name}: write one of {', '.join(choices)}")
    if given.get("service") and not given.get("dbname"):
        raise ValueError(
            "with `service`, name the database in the URL as well: hosts may differ in their files"
        )


_FORM = "not a URL of the form postgresql://user:password@host:port/database"


def _unknown(text: str) -> str:
    """What is wrong with the name of an option; "" where it may be a part of a password."""
    query = text.partition("?")[2]
    if "@" in query or "password=" in query:  # a password may have a ?, or an &
        return ""
    known = {each.keyword.decode() for each in Conninfo.get_defaults()} | {"ssl"}
    names = (each.partition("=")[0] for each in query.split("&"))
    for name in names:
        if name not in known and re.fullmatch(r"[a-z_]+", name):
            return (
                f"libpq has no option {name}: leave it out; a setting of the session is written"
                f" options=-c%20{name}%3D..."
            )
    return ""


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
