"""Records of an iterator whose source may take its time."""

import json
import time
from typing import Any

from penstock.model.errors import PenstockError
from penstock.stream import Stream

PATIENCE = 60.0


def some(
    stream: Stream, count: int, *, through: type[PenstockError] | tuple[()] = ()
) -> list[dict[str, Any]]:
    """The next `count` records; `through` passes by itself."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, found
        try:
            record = next(stream)
        except through:
            record = None
        found += [record] if record else []
    return found


def ids(records: list[dict[str, Any]]) -> list[Any]:
    """Their keys, of one column or field."""
    return [value for record in records for value in record["key"].values()]


def saved(stream: Stream) -> Any:
    """The token, as one that was stored and read again."""
    return json.loads(json.dumps(stream.token))
