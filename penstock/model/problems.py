"""One way to say what is wrong in settings: the place, what is wrong, and the nearest right key.

Pydantic finds the mistakes; here they get the words. No input value is ever repeated, except what
a validator of ours put into its own message, and of that all secrets are blotted out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from penstock.model.errors import SettingsError

Path = tuple[str | int, ...]

_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "unknown key",
    "model_type": "must be a map",
    "dict_type": "must be a map",
    "model_attributes_type": "must be a map",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}
# Said of a default that could not be computed because another key is wrong: noise.
_SILENT = frozenset({"default_factory_not_called"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake: where in the document, and what is wrong there."""

    path: Path
    text: str


def dotted(path: Path) -> str:
    """`("backends", 0, "slot")` -> `backends[0].slot`."""
    parts = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(parts).removeprefix(".")


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'slot'?`, or the list of what is known when nothing is near."""
    names = sorted(known)
    near = get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(names)}" if names else ""


def blot(text: str, secrets: Iterable[str]) -> str:
    """The text without any of the secrets; what is shorter than three characters is none."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***") if len(secret) > 2 else text
    return text


def refuse(lines: Sequence[str], *, hint: str = "") -> SettingsError:
    return SettingsError("\n".join(lines), "config.file-invalid", hint=hint)


def refused(
    error: ValidationError, model: type[BaseModel], secrets: Iterable[str] = ()
) -> SettingsError:
    """All mistakes in settings that are arguments of a call, without any of the secrets."""
    return refuse(
        [
            f"{dotted(problem.path)!r}: {text}" if problem.path else text
            for problem in problems_of(error, model)
            for text in [blot(problem.text, secrets)]
        ]
    )


def problems_of(
    error: ValidationError, model: type[BaseModel], prefix: Path = ()
) -> Iterator[Problem]:
    """What pydantic found, in our words; `model` is what was validated, for the known keys."""
    for item in error.errors(include_url=False, include_input=False):
        if item["type"] not in _SILENT:
            # Pydantic marks a map's wrong key with a step that is no place in the document.
            path = tuple(step for step in item["loc"] if step != "[key]")
            yield Problem(path=prefix + path, text=_text(item, model, path))


def _text(item: Mapping[str, Any], model: type[BaseModel], path: Path) -> str:
    kind = item["type"]
    text: str = _WORDS.get(kind) or item["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        owner = model_of(model, path[:-1])
        text += nearest(str(path[-1]), owner.model_fields if owner else ())
    if kind == "literal_error":
        text = f"must be {item['ctx']['expected']}"
    return text[:1].lower() + text[1:] if text[:2].istitle() else text


def model_of(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The settings model that a path inside `model` leads to, through lists and optionals."""
    owner: type[BaseModel] | None = model
    for step in path:
        if isinstance(step, int) or owner is None:
            continue
        field = owner.model_fields.get(step)
        owner = _inner_model(field.annotation) if field else None
    return owner


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation if issubclass(annotation, BaseModel) else None
    if get_origin(annotation) in (list, tuple, Union, UnionType):
        return next(filter(None, map(_inner_model, get_args(annotation))), None)
    return None
