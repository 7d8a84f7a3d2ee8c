"""Resume tokens as marks: a token is a document of the server's, kept whole and never compared.

A mark is `{"token": {...}}`, `{"time": [seconds, counter]}` before the first token is known, and
`era` beside either where it is not the first, `cluster` where the server's is known, and `database`
(`NAME/`) where only one is followed: cluster times are of all databases.
"""

from base64 import b64decode, b64encode
from hashlib import blake2b
from typing import Any

import bson
import orjson
from bson.binary import Binary
from bson.errors import BSONError

from penstock.model.errors import Malformed

# The elements of a token that has no other field than `_data`.
_START = b"\x02_data\x00"


def mark_of(token: bytes, era: str, cluster: str = "") -> dict[str, Any]:
    """The mark for a place exactly at the event with this token (BSON)."""
    fields = {name: _to_json(value) for name, value in bson.decode(token).items()}
    return {"token": fields, **history_of(era, cluster)}


def mark_ending(era: str, cluster: str, database: str = "") -> str:
    """What `mark_text` ends with in all marks of one history."""
    found = history_of(era, cluster, database)
    return "," + orjson.dumps(found).decode()[1:] if found else "}"


def mark_text(token: bytes, ending: str) -> str | None:
    """The mark as JSON text; None where the event has no token."""
    if not token:
        return None
    text = token[15:-2]
    if token[4:11] == _START and text.isalnum():
        return f'{{"token":{{"_data":"{text.decode()}"}}{ending}'
    return orjson.dumps(mark_of(token, "")).decode()[:-1] + ending


def history_of(era: str, cluster: str, database: str = "") -> dict[str, str]:
    """What a mark has of the history that it is of, beside its token or time."""
    named = {"era": era, "cluster": cluster, "database": database}
    return {name: text for name, text in named.items() if text}


def token_from_mark(mark: Any) -> dict[str, Any]:
    """The token document of a mark; raises Malformed."""
    try:
        return {name: _from_json(value) for name, value in mark["token"].items()}
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise Malformed("this mark has no resume token of MongoDB's", "wire") from error


def hash_of(token: bytes) -> str:
    """16 hex digits that stand for the token in an event id."""
    return blake2b(token, digest_size=8).hexdigest()


def _to_json(value: Any) -> Any:
    if isinstance(value, bytes):
        subtype = value.subtype if isinstance(value, Binary) else 0
        return {"$binary": {"base64": b64encode(value).decode(), "subType": f"{subtype:02x}"}}
    if isinstance(value, str | int | float):
        return value
    raise Malformed(f"a resume token has a field of the type {type(value).__name__}", "wire")


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        binary = value["$binary"]
        return Binary(b64decode(binary["base64"]), int(binary["subType"], 16))
    return value


def is_token(document: bytes) -> bool:
    """Whether these bytes are a token (BSON) that a mark can hold."""
    try:
        mark_of(document, "")
    except (BSONError, Malformed):
        return False
    return True
