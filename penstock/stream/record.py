"""The types of a record of the iterator, for type checkers: at run time it is a dictionary."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypedDict

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Image = TypeVar("Image", default=dict[str, Any])
else:
    from typing import TypeVar

    Image = TypeVar("Image")  # a mapping, or an instance of the model


class RecordEvent(TypedDict):
    id: str | None
    type: str
    version: str | None


class RecordMeta(TypedDict):
    created_at: datetime
    event: RecordEvent
    sequence_number: str
    operation: str
    partition: str
    database: str | None
    namespace: str | None
    table: str | None
    transaction: str | None
    unchanged: list[str]
    delta: dict[str, Any] | None


class ChangeRecord(TypedDict, Generic[Image]):
    """See docs/reference/python.md."""

    key: dict[str, Any] | None
    new: Image | None
    old: Image | None
    meta: RecordMeta
