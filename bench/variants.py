"""Options of the command line -> further keys of the pipeline file. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml


def merged(*documents: Mapping[str, Any]) -> dict[str, Any]:
    """One document of several; a later value wins, mappings are merged."""
    found: dict[str, Any] = {}
    for document in documents:
        for key, value in document.items():
            known = found.get(key)
            both = isinstance(known, dict) and isinstance(value, Mapping)
            found[key] = merged(known, value) if both else value
    return found


def pipeline_keys(
    settings: Iterable[str],
    *,
    messages: str | None = None,
    encoding: str | None = None,
    delivery: str | None = None,
    trigger: str | None = None,
    transform: str | None = None,
) -> dict[str, Any]:
    """`settings` are `sink.messages=batch`, or a YAML mapping. Raises ValueError."""
    sink = {"messages": messages, "encoding": encoding, "delivery": delivery}
    named: dict[str, Any] = {
        "sink": {key: value for key, value in sink.items() if value is not None},
        "spark": {"trigger": trigger} if trigger is not None else {},
    }
    if transform is not None:
        named["transform"] = [{"sql": transform}]
    shortcuts = {key: value for key, value in named.items() if value}
    return merged(shortcuts, *map(_document, settings))


def _document(text: str) -> Mapping[str, Any]:
    path, equals, value = text.partition("=")
    if equals and not text.lstrip().startswith("{"):
        found: Any = yaml.safe_load(value)
        for name in reversed(path.strip().split(".")):
            found = {name: found}
    else:
        found = yaml.safe_load(text)
    if not isinstance(found, Mapping):
        raise ValueError(f"not a.b=value and no YAML mapping: {text!r}")  # noqa: TRY004
    return found
