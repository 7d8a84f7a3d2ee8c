"""Two documents of a source's table -> whether rows may differ between them in a way that no change
of the log tells. Pure. Mirrors compare those of the bucket `schemas`, sinks of tables the catalogue
with what the ledger has.

What cannot be proven harmless is a difference: then the table is loaded anew.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]
_NOTHING: Document = {}


def difference(old: Document, new: Document) -> str:
    """Why rows under `old` may be others under `new`; "" if they are the same, or only lack columns
    that are null in all of them."""
    return rows_differ(old, new) or _difference_of_columns(old, new)


def rows_differ(old: Document, new: Document) -> str:
    """As `difference`, but for columns: changes of the table come with those that they have."""
    return next((reason for differs, reason in _reasons(old, new) if differs), "")


def _key(document: Document) -> Any:
    names = [one["name"] for one in document["columns"] if one["key"]]
    return names, (document.get("state") or _NOTHING).get("key_index")


def _are_same_partitions(old: Sequence[Any] | None, new: Sequence[Any] | None) -> bool:
    """Whether they are the same with the same files, besides new ones that were empty at first."""
    if old is None or new is None:
        return old is new
    before = {oid: file for oid, file, _ in old}
    return before == {oid: file for oid, file, is_empty in new if oid in before or not is_empty}


def _changed(was: Document, now: Document, name: str) -> bool:
    """Documents of before a release that wrote this field are no evidence."""
    return name in was and name in now and was[name] != now[name]


def _was_rewritten(was: Document, now: Document) -> bool:
    """Whether rows were written without the log. TRUNCATE and VACUUM FULL make another file, too,
    but no other TOAST table. A table that a publication lists cannot be made UNLOGGED."""
    if was.get("toast") or was.get("is_listed", True):
        return bool(was.get("toast")) and _changed(was, now, "toast")
    return _changed(was, now, "file")


def _have_other_texts(was: Document, now: Document) -> bool:
    """Whether values of a type look otherwise now; a new label of an enum is in no row."""
    before, after = was.get("shapes") or _NOTHING, now.get("shapes") or _NOTHING
    return any(
        before[oid]["attributes"] != after[oid]["attributes"]
        or not (before[oid]["labels"] or {}).items() <= (after[oid]["labels"] or {}).items()
        for oid in before.keys() & after.keys()
    )


def _expressions(document: Document) -> Mapping[str, Any]:
    return {
        one["name"]: one.get("column_default")
        for one in document["columns"]
        if one.get("is_generated")
    }


def _are_calculated_otherwise(old: Document, new: Document) -> bool:
    before, after = _expressions(old), _expressions(new)
    return any(before[name] != after[name] for name in before.keys() & after.keys())


def _reasons(old: Document, new: Document) -> Iterator[tuple[bool, str]]:
    """Whether it is so -> why rows may differ."""
    was, now = old.get("state") or _NOTHING, new.get("state") or _NOTHING
    yield (
        old.get("relation_id") != new.get("relation_id"),
        "it was dropped and made again, or another table has its name",
    )
    yield any(old.get(name) != new.get(name) for name in ("schema", "table")), "it was renamed"
    yield (
        was.get("publication") != now.get("publication"),
        "it is published otherwise: another entry, column list or filter",
    )
    yield _key(old) != _key(new), "its key changed"
    are_same = _are_same_partitions(was.get("partitions"), now.get("partitions"))
    yield not are_same, "its partitions changed"
    yield _changed(was, now, "named"), "it had another name or schema for a while"
    yield _changed(was, now, "attached"), "it was no partition for a while"
    yield _was_rewritten(was, now), "it was rewritten"
    yield _have_other_texts(was, now), "a type of its columns changed"
    yield _are_calculated_otherwise(old, new), "a generated column has another expression"


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
