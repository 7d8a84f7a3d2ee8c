"""A PostgreSQL URL as settings have it, for a source and a destination.

Checked before libpq sees it, whose messages repeat parts of a URL that it cannot read, perhaps the
password.
"""

from typing import Annotated

from psycopg import Error
from psycopg.conninfo import conninfo_to_dict
from pydantic import AfterValidator

from penstock.model.settings import Secret

_SCHEMES = ("postgresql://", "postgres://")


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
