"""psycopg's exceptions -> penstock's, by one table from SQLSTATE.

Never quotes the connection URL. libpq's own messages have host, port, user and database only.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from penstock.model.errors import PenstockError, PositionLost, SettingsError, Unavailable

_Row = tuple[type[PenstockError], str]

_LATER = "penstock retries by itself"
_DEFECT = "this is a defect of penstock or of the server: please report it with this message"

# The longest prefix of the SQLSTATE wins, unless text in the message decides (below).
_TABLE: dict[str, _Row] = {
    "00": (Unavailable, _LATER),
    "08": (Unavailable, "the connection broke; " + _LATER),
    "08P01": (SettingsError, _DEFECT),
    "0A": (SettingsError, "the server does not support this; PostgreSQL 13 to 18 do"),
    "22023": (SettingsError, "correct the setting that the message names"),
    "25": (Unavailable, _LATER),
    "28": (SettingsError, "correct user and password in `connection`, and pg_hba.conf"),
    "28P01": (SettingsError, "correct the password in `connection`"),
    "3D": (SettingsError, "correct the database in `connection`, or create it"),
    "3F": (SettingsError, "correct the schema in `tables`, or create it"),
    "40": (Unavailable, _LATER),
    "42501": (
        SettingsError,
        "as a superuser: ALTER ROLE <user> REPLICATION; and GRANT what the message names",
    ),
    "42704": (SettingsError, "create what the message names: `penstock check` says how"),
    "42710": (Unavailable, "somebody else made it in the same moment; " + _LATER),
    "42P01": (SettingsError, "correct `tables`, or create the table"),
    "53": (Unavailable, "the server is short of memory, disk or connections"),
    "53300": (Unavailable, "raise max_connections, or wait for a free connection"),
    "53400": (SettingsError, "raise max_replication_slots and max_wal_senders at the server"),
    "54": (Unavailable, "the server met one of its limits"),
    "55000": (SettingsError, "the server's configuration forbids it; `penstock check` says how"),
    "55P03": (
        Unavailable,
        "a lock was not given in time: wait for the transaction that holds it, or end that",
    ),
    "55006": (Unavailable, "the slot has one reader at a time: stop the other one"),
    "57": (Unavailable, "the server was stopped by its operator; " + _LATER),
    "57014": (
        Unavailable,
        "the server took too long, perhaps for a long transaction that a new slot waits for",
    ),
    "58": (Unavailable, "the server has trouble with its files: see its log"),
    "XX": (Unavailable, "the server met an internal error: see its log"),
    "": (SettingsError, _DEFECT),
}

# While a failover moves the address; `penstock check` fails all the same.
_STANDBY: _Row = (Unavailable, "connect to the primary, or to a standby of 16+; " + _LATER)
_CLOSED: _Row = (Unavailable, "it is cloned or upgraded, or ALTER DATABASE has closed it")

# (SQLSTATE prefix, part of the message) -> row; before the table.
_BY_TEXT: tuple[tuple[str, str, _Row], ...] = (
    (
        "42501",
        "permission denied for table",
        (SettingsError, "as its owner: GRANT SELECT ON <table> TO <role>; on the whole table"),
    ),
    (
        "42501",
        "row-level security",
        (SettingsError, "ALTER ROLE <role> BYPASSRLS; or leave the table out"),
    ),
    ("55000", "wal_level", (SettingsError, "ALTER SYSTEM SET wal_level = logical; and restart")),
    ("55000", "max_replication_slots", _TABLE["53400"]),
    ("55000", "can no longer", (PositionLost, "drop the slot, and copy the tables anew")),
    ("55000", "cannot read from", (PositionLost, "drop the slot, and copy the tables anew")),
    ("55000", "invalidated", (PositionLost, "drop the slot, and copy the tables anew")),
    (
        "58P01",  # of other files, too, while the server's package is replaced
        "requested WAL segment",
        (PositionLost, "if it stays so, WAL that the slot needs is gone: drop the slot"),
    ),
    ("0A000", "recovery", _STANDBY),
    ("55000", "recovery", _STANDBY),
    ("55000", "not currently accepting", _CLOSED),
    ("53300", "max_wal_senders", (Unavailable, "raise max_wal_senders, or stop another reader")),
    (
        "42704",
        "publication",
        (
            SettingsError,
            "create it (`penstock check` says how); one that is younger than what the slot has to"
            " send yet is not there for it: then drop the slot as well, and start from now",
        ),
    ),
    (
        "42704",
        "replication slot",
        (PositionLost, "the slot is gone, and what it kept with it: copy the tables anew"),
    ),
)

# What libpq says when there is no SQLSTATE: nothing came from the server.
_WITHOUT_STATE: tuple[tuple[str, _Row], ...] = (
    ("received invalid response to", (Unavailable, "does a proxy answer for a server? " + _LATER)),
    ("not currently accepting connections", _CLOSED),
    ("password authentication failed", _TABLE["28P01"]),
    ("no password supplied", (SettingsError, "put the password into `connection`")),
    ("no pg_hba.conf entry", (SettingsError, "allow this host and user in pg_hba.conf")),
    ("must be superuser or replication role", _TABLE["42501"]),
    ("permission denied to start WAL sender", _TABLE["42501"]),
    ("number of requested standby connections", (Unavailable, "raise max_wal_senders")),
    ("too many clients", _TABLE["53300"]),
    ("remaining connection slots", _TABLE["53300"]),
    ("too many connections", _TABLE["53300"]),
    ('role "', (SettingsError, "correct the user in `connection`, or create the role")),
    ('database "', _TABLE["3D"]),
    ("server does not support SSL", (SettingsError, "drop sslmode=require from `connection`")),
    ("certificate", (SettingsError, "correct sslmode and sslrootcert in `connection`")),
    ("invalid ", (SettingsError, "correct `connection`")),
    ("missing ", (SettingsError, "correct `connection`")),
    (  # a name that no language of the server's messages translates
        "MULE_INTERNAL",
        (
            SettingsError,
            "penstock reads UTF-8, and the server converts this encoding to none: load a dump"
            " (pg_dump --encoding) into a database with encoding UTF8",
        ),
    ),
    ("resolve host", (Unavailable, "correct the host in `connection`")),
    ("Name or service not known", (Unavailable, "correct the host in `connection`")),  # psycopg 3.2
    ("could not translate host name", (Unavailable, "correct the host in `connection`")),
    ("Connection refused", (Unavailable, "start the server, or correct host and port")),
)


def failure(state: str | None, message: str, subject: str) -> PenstockError:
    """The error for a SQLSTATE (None: libpq itself) and its message; `subject` says what failed."""
    text = " ".join(message.split())
    kind, hint = _row(state, text)
    return kind(f"{subject}: {text}" if text else subject, "postgres", hint=hint)


def _row(state: str | None, text: str) -> _Row:
    if not state:
        for part, row in _WITHOUT_STATE:
            if part in text:
                return row
        return Unavailable, _LATER
    for prefix, part, row in _BY_TEXT:
        if state.startswith(prefix) and part in text:
            return row
    return next(_TABLE[state[:end]] for end in range(len(state), -1, -1) if state[:end] in _TABLE)


def is_internal(error: PenstockError) -> bool:
    """Whether the server failed by a defect of its own (SQLSTATE XX)."""
    return error.hint == _TABLE["XX"][1]


def is_wrong_statement(error: PenstockError) -> bool:
    """Whether the server refused a statement itself: of ours alone that would be a defect."""
    return error.hint == _DEFECT


def translated(error: psycopg.Error, subject: str) -> PenstockError:
    state = error.sqlstate
    if state is None and isinstance(error, (psycopg.ProgrammingError, psycopg.NotSupportedError)):
        state = "P0000"  # a call that the driver itself refused
    message = error.diag.message_primary or str(error)
    detail = error.diag.message_detail
    return failure(state, f"{message} ({detail})" if detail else message, subject)


def backend_error(body: bytes, subject: str) -> PenstockError:
    """An ErrorResponse's fields (type byte and zero-terminated text each) as an error of ours."""
    fields = {part[:1]: part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}
    detail = fields.get(b"D")
    message = fields.get(b"M", "") + (f" ({detail})" if detail else "")
    return failure(fields.get(b"C") or "XX000", message, subject)


@contextmanager
def translating(subject: str) -> Iterator[None]:
    """Raises psycopg's exceptions, and the socket's, as ours."""
    try:
        yield
    except psycopg.Error as error:
        raise translated(error, subject) from error
    except OSError as error:
        raise Unavailable(f"{subject}: {error}", "postgres", hint=_LATER) from error
