"""What identifies a table's schema: a hash of its Relation message. Pure.

The same for the message in the log and for one that is built from the catalogue, so that the rows
of a snapshot and the changes after it name one schema.
"""

import hashlib
from collections.abc import Sequence


def schema_version(raw: bytes, key: Sequence[str] = ()) -> str:
    """16 hexadecimal digits; `raw` is the message from its tag `R`, without a streamed xid. `key`:
    the columns of the key where the message marks all (REPLICA IDENTITY FULL)."""
    names = b"".join(name.encode(errors="surrogateescape") + b"\0" for name in key)
    return hashlib.blake2b(raw + names, digest_size=8).hexdigest()
