"""The pipeline file -> a `Pipeline`, or one error that lists every mistake with its line."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from penstock.config.document import Document, parse
from penstock.config.pipeline import Backend, Deployment, Pipeline, SinkChoice
from penstock.model.errors import SettingsError
from penstock.model.problems import Path, Problem, blot, dotted, nearest, problems_of, refuse
from penstock.process.plugins import is_known, known, plugin

D = TypeVar("D", bound=Deployment)


def load_pipeline(
    file: str | FilePath,
    environment: Mapping[str, str] | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
) -> Pipeline:
    """Reads a pipeline file; raises SettingsError with every mistake in it, a line each.

    `overrides` are top-level keys that replace the file's: what a command's flags say.
    """
    return load_file(file, Pipeline, environment, overrides=overrides)


def load_file(
    file: str | FilePath,
    model: type[D],
    environment: Mapping[str, str] | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
) -> D:
    """The same for a file of another kind, which has backends, too."""
    path = FilePath(file)
    return _parsed(_text(path), model, path.name, environment, overrides)


def keys_of(file: str | FilePath) -> frozenset[str]:
    """The top-level keys of a file, which say of what kind it is; none of one that is no map."""
    data = parse(_text(FilePath(file)), os.environ).data
    return frozenset(map(str, data)) if isinstance(data, dict) else frozenset()


def _text(path: FilePath) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path.name}: is not UTF-8 text", "config.file-unreadable") from error
    except OSError as error:
        raise SettingsError(
            f"{path}: {(error.strerror or 'cannot be read').lower()}", "config.file-unreadable"
        ) from error


def parse_pipeline(
    text: str,
    *,
    name: str = "pipeline.yaml",
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Pipeline:
    """The same for a file's text; `name` is what errors call it."""
    return _parsed(text, Pipeline, name, environment, overrides)


def _parsed(
    text: str,
    model: type[D],
    name: str,
    environment: Mapping[str, str] | None,
    overrides: Mapping[str, Any] | None,
) -> D:
    document = parse(text, os.environ if environment is None else environment)
    if overrides and isinstance(document.data, dict):
        document.data |= overrides
    return _built(document, model, name)


def build_pipeline(data: Mapping[str, Any], *, name: str, secrets: Iterable[str]) -> Pipeline:
    """The same from plain data, as a command's flags give it; `secrets` are kept out of errors."""
    return _built(Document(data=dict(data), secrets=set(secrets)), Pipeline, name)


def _built(document: Document, model: type[D], name: str) -> D:
    found = None if document.problems else _validate(document, model)
    if found is None:
        raise refuse(list(_lines(document, name)))
    return cast(D, found.renewed()) if isinstance(found, Pipeline) else found


def _lines(document: Document, name: str) -> Iterator[str]:
    def at(problem: Problem) -> int:
        return document.line(problem.path) or 0

    for problem in sorted(document.problems, key=at):
        line = f":{at(problem)}" if at(problem) else ""
        place = f"{dotted(problem.path)}: " if problem.path else ""
        yield f"{name}{line}: {place}{blot(problem.text, document.secrets)}"


def _validate(document: Document, model: type[D]) -> D | None:
    data, problems = document.data, document.problems
    if not isinstance(data, dict):
        parts = " and a sink" if "sink" in model.model_fields else ""
        problems.append(Problem(path=(), text=f"must be a map with backends{parts}"))
        return None
    data = dict(data)
    if isinstance(data.get("backends"), list):
        data["backends"] = _backends(data["backends"], problems)
    if isinstance(data.get("sink"), dict) and "sink" in model.model_fields:
        data["sink"] = _plugged("sinks", data["sink"], ("sink",), problems)
        if data["sink"].map_file:
            data.setdefault("backends", [])
    found = _try(model, data, (), problems)
    return found if isinstance(found, model) and not problems else None


def _backends(items: list[Any], problems: list[Problem]) -> list[Any]:
    items = [{"name": "default"} | item if isinstance(item, dict) else item for item in items]
    names = [item["name"] if isinstance(item, dict) else None for item in items]
    for i, name in enumerate(names):
        if isinstance(name, str) and name in names[:i]:
            text = f"another backend is called {name!r}; names are part of event ids"
            problems.append(Problem(path=("backends", i, "name"), text=text))
    return [
        _plugged("feeds", item, ("backends", i), problems) if isinstance(item, dict) else item
        for i, item in enumerate(items)
    ]


# What stands in for a part that is wrong and was reported: valid, so that pydantic goes on.
_HOLES: dict[str, Any] = {
    "feeds": Backend.model_construct(name="hole", type="", settings=None),
    "sinks": SinkChoice.model_construct(type="", settings=None),
}


def _plugged(kind: str, data: dict[str, Any], path: Path, problems: list[Problem]) -> Any:
    """One backend or sink: its plug-in by `type`, its settings by the plug-in's model."""
    before = len(problems)
    model: type[BaseModel] = Backend if kind == "feeds" else SinkChoice
    shell = {key: data.get(key) for key in model.model_fields if key != "settings"}
    if (plug := _plugin(kind, data.get("type"), path, problems)) is not None:
        fields = plug.settings.model_fields
        if "partitions" in fields:  # the feed's own, which are no hash partitions
            shell.pop("partitions", None)
        own = {key: value for key, value in data.items() if key not in shell or key in fields}
        shell["settings"] = _try(plug.settings, own, path, problems)
    if len(problems) == before:
        return _try(model, shell, path, problems) or _HOLES[kind]
    return _HOLES[kind]


def _plugin(kind: str, name: Any, path: Path, problems: list[Problem]) -> Any:
    if not isinstance(name, str):
        text = f"is missing; known: {', '.join(known(kind))}"
    elif not is_known(kind, name):
        text = f"there is no {kind.removesuffix('s')} {name!r}{nearest(name, known(kind))}"
    else:
        try:
            return plugin(kind, name)
        except SettingsError as error:
            text = str(error)
    problems.append(Problem(path=(*path, "type"), text=text))
    return None


def _try(
    model: type[BaseModel], data: Any, path: Path, problems: list[Problem]
) -> BaseModel | None:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems.extend(problems_of(error, model, path))
        return None
