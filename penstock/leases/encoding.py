"""Revisions and properties in a store's own terms.

A store that counts revisions has numbers, and a lease has text. A store with one column for the
continuation writes the properties after it: so tables of earlier versions stay as they are.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from penstock.leases import Lease

# A number that no row ever has: what a revision of another store stands for.
_NEVER = 2**63 - 1
# The separator of JSON texts (RFC 7464): a control character, so that no JSON text contains it.
_SEPARATOR = "\x1e"


def number_of(revision: str) -> int:
    """The number of which a store made the text; 0 for "", "not stored yet"."""
    if not revision:
        return 0
    number = int(revision) if revision.isdecimal() else 0
    return min(number or _NEVER, _NEVER)


def fields_of(lease: Lease) -> dict[str, Any]:
    """A row as JSON, for stores that keep documents."""
    fields: dict[str, Any] = {"owner": lease.owner, "continuation": lease.continuation}
    return fields | {"properties": dict(lease.properties)} if lease.properties else fields


def lease_of(name: str, fields: Mapping[str, Any], revision: str) -> Lease:
    """What `fields_of` was given; raises KeyError for what is no lease."""
    properties = fields.get("properties")
    return Lease(
        name=name,
        owner=str(fields["owner"]),
        continuation=str(fields["continuation"]),
        properties=properties if isinstance(properties, dict) else {},
        revision=revision,
    )


def text_of(properties: Mapping[str, Any]) -> str:
    """JSON; "" for none."""
    return orjson.dumps(dict(properties)).decode() if properties else ""


def properties_of(text: str) -> dict[str, Any]:
    """Of JSON; empty for what is no object: something else wrote it, or an earlier version."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def packed(continuation: str, properties: Mapping[str, Any]) -> str:
    """Both in one text: the continuation alone, if there are no properties."""
    return f"{continuation}{_SEPARATOR}{text_of(properties)}" if properties else continuation


def unpacked(text: str) -> tuple[str, dict[str, Any]]:
    """What `packed` was given."""
    continuation, _, properties = text.partition(_SEPARATOR)
    return continuation, properties_of(properties)
