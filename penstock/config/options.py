"""Flat text options, as Spark passes them, to and from typed settings.

Keys ignore case (Spark lower-cases them), nest by dots (`batch.max_size`); a list is written with
commas or as JSON, a map or a nested model as JSON or key by key.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

import orjson
from pydantic import BaseModel, SecretStr, ValidationError

from penstock.model.problems import blot, dotted, nearest, problems_of, refuse
from penstock.model.settings import Settings

S = TypeVar("S", bound=Settings)


class _Shape(NamedTuple):
    """What a field takes: `kind` is a settings model, `list`, `dict` or `str` (one scalar)."""

    kind: type
    optional: bool


def _shape(annotation: Any, *, optional: bool = False) -> _Shape:
    if (origin := get_origin(annotation)) in (Union, UnionType):
        parts = [part for part in get_args(annotation) if part is not NoneType]
        optional = len(parts) < len(get_args(annotation))
        return _shape(parts[0] if len(parts) == 1 else str, optional=optional)
    if origin is Annotated:
        return _shape(get_args(annotation)[0], optional=optional)
    kind = origin or annotation
    if isinstance(kind, type):
        if issubclass(kind, BaseModel):
            return _Shape(kind, optional)
        if issubclass(kind, list | tuple | set | frozenset) or kind is Sequence:
            return _Shape(list, optional)
        if issubclass(kind, dict) or kind is Mapping:
            return _Shape(dict, optional)
    return _Shape(str, optional)


def settings_from_options(model: type[S], options: Mapping[str, str]) -> S:
    """Raises SettingsError that lists every mistake, and repeats no value."""
    problems: list[str] = []
    tree: dict[str, Any] = {}
    for key, text in options.items():
        wrong = _plant(model, key, text, tree)
        problems += [f"option {key!r}: {wrong}"] if wrong else []
    found: S | None = None
    try:
        found = model.model_validate(tree)
    except ValidationError as error:
        for problem in problems_of(error, model):
            # Validators quote what they refuse, and an option's value may be a secret.
            wrong = blot(problem.text, options.values())
            problems.append(f"option {dotted(problem.path)!r}: {wrong}")
    if problems or found is None:
        raise refuse(problems)
    return found


def _plant(model: type[BaseModel], key: str, text: str, tree: dict[str, Any]) -> str:
    """Puts one option into the tree; returns what is wrong with it, or nothing."""
    steps = key.split(".")
    for i, step in enumerate(steps):
        name = next((name for name in model.model_fields if name.lower() == step.lower()), None)
        if name is None:
            return f"unknown{nearest(step, model.model_fields)}"
        shape = _shape(model.model_fields[name].annotation)
        if not (rest := steps[i + 1 :]):
            return _set(tree, name, text, shape)
        if shape.kind is dict:
            return _set(tree.setdefault(name, {}), ".".join(rest), text, _Shape(str, False))
        if not issubclass(shape.kind, BaseModel):
            return f"{'.'.join(steps[: i + 1])!r} has no parts"
        model = shape.kind
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            return "is given twice"
    raise AssertionError(key)


def _set(tree: dict[str, Any], name: str, text: str, shape: _Shape) -> str:
    if name in tree:
        return "is given twice"
    try:
        tree[name] = _value(text, shape)
    except orjson.JSONDecodeError:
        return "is not valid JSON"
    return ""


def _value(text: str, shape: _Shape) -> Any:
    if shape.optional and text == "null":
        return None
    if shape.kind is list:
        if text.lstrip().startswith("["):
            return orjson.loads(text)
        return [part.strip() for part in text.split(",")] if text.strip() else []
    if shape.kind is not str:
        return orjson.loads(text)
    # Where null is possible, text must be distinguished from it: a JSON string is understood.
    if shape.optional and len(text) > 1 and text[0] == text[-1] == '"':
        return orjson.loads(text)
    return text


def options_from_settings(model: Settings) -> dict[str, str]:
    """The inverse, without what equals its default. Reveals secrets: it feeds Spark's options."""
    return dict(_flat(model, ""))


def _flat(model: BaseModel, prefix: str) -> Iterator[tuple[str, str]]:
    dumped = model.model_dump(mode="json")
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if not field.is_required() and value == field.get_default(
            call_default_factory=True, validated_data=vars(model)
        ):
            continue
        shape = _shape(field.annotation)
        if isinstance(value, BaseModel) and shape.kind is not str:
            parts = dict(_flat(value, f"{prefix}{name}."))
            yield from parts.items() if parts else [(prefix + name, "{}")]
        else:
            yield prefix + name, _text(_revealed(value, dumped[name]), shape)


def _revealed(value: Any, dumped: Any) -> Any:
    """`dumped`, which hides secrets, with the secrets of `value` in their places."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, BaseModel):
        return {name: _revealed(getattr(value, name), dumped[name]) for name in dumped}
    if isinstance(value, dict):
        pairs = zip(value.values(), dumped.items(), strict=True)
        return {key: _revealed(item, shown) for item, (key, shown) in pairs}
    if isinstance(value, list | tuple):
        return [_revealed(item, shown) for item, shown in zip(value, dumped, strict=True)]
    return dumped


def _text(value: Any, shape: _Shape) -> str:
    if isinstance(value, str):
        quoted = len(value) > 1 and value[0] == value[-1] == '"'
        as_json = shape.optional and (value == "null" or quoted)
        return orjson.dumps(value).decode() if as_json else value
    return orjson.dumps(value).decode()
