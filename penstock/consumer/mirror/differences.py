"""Why a table's rows may be others than under the document that they were read under."""

from collections.abc import Sequence

from penstock.consumer.mirror.published_tables import Revision, is_past
from penstock.tables.difference import difference


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
