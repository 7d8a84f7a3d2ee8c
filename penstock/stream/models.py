"""Images as instances of a user's class: a dataclass, a msgspec Struct, a pydantic model."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from penstock.model.errors import SettingsError

# An image to an instance; null stays null.
Convert = Callable[[Mapping[str, Any]], Any]

# Images -> the types of events that have them, where the source sends them.
_HAVE = {"new": ("insert", "modify"), "old": ("modify", "remove")}

log = logging.getLogger("penstock")


def table_of(model: Any) -> str | None:
    """The model's `Meta.table_name`, if it has one."""
    name = getattr(getattr(model, "Meta", None), "table_name", None)
    return name if isinstance(name, str) else None


class IncludedImages:
    """The images that the model's `Meta.stream["include"]` names; those that the source does not
    send are told of once."""

    def __init__(self, model: Any) -> None:
        stream = getattr(getattr(model, "Meta", None), "stream", None)
        include = stream.get("include") if isinstance(stream, Mapping) else None
        self._model = getattr(model, "__name__", "")
        self._names = [name for name in _HAVE if name in (include or ())]

    def verify(self, record: Mapping[str, Any]) -> None:
        for name in tuple(self._names):
            if record[name] is None and record["meta"]["event"]["type"] in _HAVE[name]:
                self._names.remove(name)
                log.warning(
                    "Meta.stream of %s includes the image %r, which the source does not send: have"
                    " it send that (DynamoDB: the stream's view type; PostgreSQL: REPLICA IDENTITY;"
                    " MongoDB: pre-images), or leave it out",
                    self._model,
                    name,
                )


def converter(model: Any) -> Convert:
    """What makes instances of a model; raises SettingsError for anything else than a model. What it
    returns raises SettingsError, without the row's values, for an image that the model does not
    take. Columns that a model does not declare are left out."""
    if isinstance(model, type) and issubclass(model, BaseModel):
        return _guarded(model, model.model_validate)
    if isinstance(model, type) and hasattr(model, "__struct_fields__"):
        return _guarded(model, _struct(model))
    if isinstance(model, type) and dataclasses.is_dataclass(model):
        return _guarded(model, _dataclass(model))
    raise SettingsError(
        f"{model!r} is not a model",
        "stream",
        hint="give a dataclass, a msgspec Struct or a pydantic model",
    )


def _struct(model: type) -> Convert:
    from msgspec import convert  # the model's own library: it is there

    return lambda image: convert(image, model, strict=False)


def _dataclass(model: Any) -> Convert:
    names = [field.name for field in dataclasses.fields(model) if field.init]
    return lambda image: model(**{name: image[name] for name in names if name in image})


def _guarded(model: type, convert: Convert) -> Convert:
    def guarded(image: Mapping[str, Any]) -> Any:
        try:
            return convert(image)
        except (TypeError, ValueError) as error:
            raise SettingsError(
                f"{model.__name__} does not take an image with the fields"
                f" {', '.join(map(str, image))}: {_reason(error)}",
                "stream",
                hint="declare the field as the source has it; with a default if it may be absent",
            ) from None

    return guarded


def _reason(error: Exception) -> str:
    """What is wrong, without values of the row."""
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_input=False, include_context=False)
        return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['type']}" for each in found)
    if type(error).__module__.partition(".")[0] == "msgspec":
        return str(error)  # types and paths, no values
    return str(error) if isinstance(error, TypeError) else type(error).__name__
