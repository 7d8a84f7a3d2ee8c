"""What identifies a table's schema: a hash of its Relation message. Pure.

The same for the message in the log and for one that is built from the catalogue, so that the rows
of a snapshot and the changes after it name one schema.
"""

import hashlib


def schema_version(raw: bytes) -> str:
    """16 hexadecimal digits; `raw` is the message from its tag `R`, without a streamed xid."""
    return hashlib.blake2b(raw, digest_size=8).hexdigest()
