"""Two documents of a table in the bucket `schemas` -> whether rows may differ between them in a way
that no change in the stream tells. Pure.

What cannot be proven harmless is a difference: then the table is loaded from a new snapshot.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.consumer.mirror.published_tables import Revision, is_past

Document = Mapping[str, Any]
_NOTHING: Document = {}


def difference(old: Document, new: Document) -> str:
    """Why rows under `old` may be others under `new`; "" if they are the same, or only lack columns
    that are null in all of them."""
    was, now = old.get("state") or _NOTHING, new.get("state") or _NOTHING
    if old.get("relation_id") != new.get("relation_id"):
        return "it was dropped and made again, or another table has its name"
    if any(old.get(name) != new.get(name) for name in ("schema", "table")):
        return "it was renamed"
    if was.get("publication") != now.get("publication"):
        return "it is published otherwise: another entry, column list or filter"
    if _key(old) != _key(new):
        return "its key changed"
    if not _are_same_partitions(was.get("partitions"), now.get("partitions")):
        return "its partitions changed"
    return _difference_of_columns(old, new)


def difference_since(revision: int, history: Sequence[Revision]) -> str:
    """The `difference` to each document that followed the one with this revision. A table that left
    the bucket in between was not followed for a while."""
    since = [each for each in history if each.revision >= revision and not is_past(each.document)]
    documents = [each.document for each in since if each.document is not None]
    if not since or since[0].revision != revision:
        return "its document is not in the bucket schemas any more"
    if len(documents) < len(since):
        return "it was not followed for a while"
    return next(filter(None, map(difference, documents, documents[1:])), "")


def _key(document: Document) -> Any:
    names = [one["name"] for one in document["columns"] if one["key"]]
    return names, (document.get("state") or _NOTHING).get("key_index")


def _are_same_partitions(old: Sequence[Any] | None, new: Sequence[Any] | None) -> bool:
    """Whether they are the same with the same files, besides new ones that were empty at first."""
    if old is None or new is None:
        return old is new
    before = {oid: file for oid, file, _ in old}
    return before == {oid: file for oid, file, is_empty in new if oid in before or not is_empty}


def _difference_of_columns(old: Document, new: Document) -> str:
    before = {one["name"]: one for one in old["columns"]}
    after = {one["name"]: one for one in new["columns"]}
    added = [one for name, one in after.items() if name not in before]
    if any(_type(before[name]) != _type(one) for name, one in after.items() if name in before):
        return "its columns changed"
    if added and before.keys() - after.keys():
        return "its columns changed"
    if any(_is_filled(one, old, new) for one in added):
        return "a new column has values in old rows"
    return ""


def _type(column: Document) -> Any:
    return column["data_type"], column.get("type"), column.get("number")


def _is_filled(column: Document, old: Document, new: Document) -> bool:
    """Whether rows that are older than the column may have another value in it than null: unless it
    was added, and the table was not rewritten."""
    was, now = old.get("state") or _NOTHING, new.get("state") or _NOTHING
    is_new = column.get("number", 0) > was.get("last_number", sys.maxsize)
    return (
        not is_new
        or was.get("file") != now.get("file")
        or column["has_missing"]
        or column["is_generated"]
    )
