"""Each key of a pipeline says what it means, and what it is where the file does not have it."""

from typing import Any

import pytest

from penstock.config import build_pipeline, explained
from penstock.model.settings import WRITTEN

_MAP = [{"backend": "a", "tables": {"t": {"type": "clone"}}}]
_PLACE = "postgresql://penstock:hidden@host/db"
FEEDS: dict[str, dict[str, Any]] = {
    "cosmos": {"endpoint": "https://host/", "database": "d", "container": "c"},
    "dynamodb": {"table": "t", "region": "r"},
    "memory": {},
    "mongodb": {"connection": "mongodb://host/d"},
    "postgres": {"connection": _PLACE},
}
SINKS: dict[str, dict[str, Any]] = {
    "jetstream": {"url": "nats://host"},
    "memory": {},
    "postgres": {"connection": _PLACE, "map": _MAP},
    "sqlite": {"file": "/mirror.db", "map": _MAP},
}
# What has no default, and what is made of other keys.
_GIVEN = {
    "name", "type", "connection", "url", "file", "endpoint", "database", "container", "table",
    "region", "backend", "tables", "slot", "publication",
}  # fmt: skip


def keys(feed: str, sink: str) -> list[Any]:
    document = {
        "backends": [{"name": "a", "type": feed, **FEEDS[feed]}],
        "sink": {"type": sink, **SINKS[sink]},
    }
    pipeline = build_pipeline(document, name="test", secrets=[])
    return list(explained(pipeline, pipeline.model_dump(mode="json", context=WRITTEN)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("feed", "sink"),
    [*((feed, "memory") for feed in FEEDS), *(("postgres", sink) for sink in SINKS)],
)
def test_each_key_has_a_meaning_and_its_default(feed: str, sink: str) -> None:
    found = keys(feed, sink)
    assert [each["key"] for each in found if not each["meaning"]] == []
    given = [each["key"] for each in found if each["value"] != each["default"]]
    assert {key.rpartition(".")[2] for key in given} <= _GIVEN


@pytest.mark.slow
def test_no_secret_is_in_a_value() -> None:
    assert "hidden" not in str(keys("postgres", "postgres"))
