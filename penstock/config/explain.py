"""Each key of a pipeline: its value, its default, and what it means."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from penstock.model.settings import WRITTEN, Settings

_NONE: Mapping[str, Any] = MappingProxyType({})


@cache
def descriptions(model: type[Settings]) -> Mapping[str, str]:
    """What the text under each field of a class says, or of a class that it inherits from."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__[: model.__mro__.index(Settings)]):
        (tree,) = ast.parse(inspect.getsource(kind)).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in pairwise(tree.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                assert isinstance(field.target, ast.Name)
                found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found


def explained(settings: Settings, shown: Mapping[str, Any], path: str = "") -> Iterator[Any]:
    """`{key, value, default, meaning}` of each key; `shown` is the dump of the settings with the
    context WRITTEN. A group's keys follow it; a feed's and a sink's own stand beside what all of
    them have."""
    model = type(settings)
    meanings = descriptions(model)
    for name in model.model_fields:
        value, place = getattr(settings, name), f"{path}{name}"
        if name == "settings":
            shared = {f"{path}name", f"{path}type"}
            own = explained(value, shown[name], path)
            yield from (each for each in own if each["key"] not in shared)
        elif isinstance(value, Settings):
            yield from explained(value, shown[name], f"{place}.")
        elif value and isinstance(value, tuple) and isinstance(value[0], Settings):
            for number, each in enumerate(value):
                yield from explained(each, shown[name][number], f"{place}[{number}].")
        else:
            yield {
                "key": place, "value": shown[name], "meaning": meanings.get(name, ""),
                "default": default_of(model, name, vars(settings)),
            }  # fmt: skip


def default_of(model: type[Settings], name: str, others: Mapping[str, Any] = _NONE) -> Any:
    """The default of a key as it is written in a file; `others`: the values of other keys."""
    field = model.model_fields[name]
    found = field.get_default(call_default_factory=True, validated_data=dict(others))
    unset = model.model_construct(**{name: None if field.is_required() else found})
    return unset.model_dump(mode="json", include={name}, warnings=False, context=WRITTEN)[name]
